"""nsys SQLite exports of every schema generation, against answers worked out by hand (see make_nsys.standard)."""

import random
import sqlite3
import statistics
import time

import pytest
from make_nsys import GEMM, GENERATIONS, SCHEMA_VERSION, SOFTMAX, Export, global_id, standard

from kernelderby.errors import DerbyError
from kernelderby.profile.filters import SelectedProfile, make_selection
from kernelderby.profile.kernels.summary import summarise
from kernelderby.profile.sources import open_profile
from kernelderby.profile.sources.sqlite.schema import connect
from kernelderby.profile.spans import SpanKind, sum_spans
from kernelderby.profile.timeline import TimelineBuilder, timelines_of

H2D, D2H = "[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]"


@pytest.fixture(params=GENERATIONS)
def export(request, tmp_path):
    return standard(tmp_path / "report.sqlite", request.param)


def test_every_generation_gives_the_same_spans(export):
    spans = [
        (
            span.kind.value,
            span.name,
            span.start_ns,
            span.end_ns,
            span.process,
            span.device,
            span.stream,
            span.ranges,
            span.bytes,
        )
        for span in open_profile(export).spans()
    ]
    assert spans == [
        ("memcpy", H2D, 100, 150, 100, 0, 7, ("step 1",), 4096),
        ("kernel", GEMM, 200, 300, 100, 0, 7, ("step 1", "attention"), 0),
        ("kernel", GEMM, 250, 450, 200, 1, 7, ("other",), 0),
        ("kernel", SOFTMAX, 300, 360, 100, 0, 7, ("step 1", "attention", "softmax"), 0),
        ("memset", "[CUDA memset]", 400, 420, 100, 0, 7, ("step 1",), 512),
        ("kernel", GEMM, 500, 620, 100, 0, 7, (), 0),
        ("kernel", SOFTMAX, 700, 740, 100, 0, 7, (), 0),
        ("kernel", GEMM, 800, 880, 100, 0, 9, ("open range",), 0),
        ("memcpy", D2H, 900, 910, 200, 1, 7, (), 64),
    ]


def test_a_kernel_without_a_launch_row_is_counted_whether_or_not_spans_were_walked(export):
    profile = open_profile(export)
    assert profile.unlinked_launches == 1
    walked = open_profile(export)
    list(walked.spans())
    assert walked.unlinked_launches == 1
    list(walked.spans())
    assert [each for each in walked.warnings if "launch" in each] == [
        "1 kernel has no launch in the file, so it is not known in which ranges they ran"
    ]


def test_sums_by_hand(export):
    sums = {each.name: each for each in open_profile(export).sums()}
    assert list(sums) == [GEMM, SOFTMAX, H2D, "[CUDA memset]", D2H]  # largest total first
    gemm = sums[GEMM]  # 80, 100, 120, 200
    assert (gemm.instances, gemm.total_ns, gemm.median_ns, gemm.min_ns, gemm.max_ns) == (4, 500, 110, 80, 200)
    assert gemm.stddev_ns == pytest.approx(((45**2 + 25**2 + 5**2 + 75**2) / 3) ** 0.5)  # of the sample, about 125
    assert gemm.average_ns == 125 and gemm.bytes is None
    assert (sums[H2D].bytes, sums["[CUDA memset]"].bytes, sums[D2H].bytes) == (4096, 512, 64)
    assert sums[H2D].stddev_ns == 0 and sums[H2D].kind == SpanKind.MEMCPY


def test_api_sums_are_those_of_cuda_api_sum(tmp_path):
    profile = open_profile(standard(tmp_path / "new.sqlite", "2024"))
    assert [(each.name, each.calls, each.total_ns) for each in profile.api_sums()] == [
        ("cudaDeviceSynchronize", 1, 500),
        ("cudaLaunchKernel", 5, 31),
        ("cudaMemcpyAsync", 2, 16),
        ("cudaMemsetAsync", 1, 6),
    ]
    assert profile.warnings == []


def test_old_exports_list_doubled_calls_as_nsys_does_and_say_so_once(tmp_path):
    profile = open_profile(standard(tmp_path / "old.sqlite", "2022.2"))
    names = [each.name for each in profile.api_sums()]
    assert names.count("cudaLaunchKernel") == 2
    profile.api_sums()
    assert len(profile.warnings) == 1 and "twice" in profile.warnings[0]


def test_names_of_calls_are_cut_as_nsys_cuts_them(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 1, 2)
        for place, name in enumerate(("cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000", "cuMemcpyHtoD_v2", "cuInit")):
            export.call(name, 0, 9 - place, place + 1)
    assert [each.name for each in open_profile(tmp_path / "a.sqlite").api_sums()] == [
        "cudaLaunchKernel",
        "cudaGraphLaunch_v10000",
        "cuMemcpyHtoD_v2",
        "cuInit",
    ]


def test_form_gpu_and_warnings(tmp_path):
    for generation in GENERATIONS:
        profile = open_profile(standard(tmp_path / generation, generation))
        assert profile.form == f"nsys SQLite, schema {SCHEMA_VERSION[generation]}"
        assert profile.gpu == "NVIDIA H200" and profile.has_events and profile.warnings == []


def test_of_several_gpus_the_one_that_worked_is_named(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.row("TARGET_INFO_GPU", id=1, name="NVIDIA T4", smCount=40, cuDevice=1)
        export.kernel("k", 1, 2, device=1)
    assert open_profile(tmp_path / "a.sqlite").gpu == "NVIDIA T4"
    with Export(tmp_path / "b.sqlite", gpu=None) as export:
        export.kernel("k", 1, 2)
    assert open_profile(tmp_path / "b.sqlite").gpu is None


def test_without_runtime_nvtx_or_memory_tables(tmp_path):
    with Export(tmp_path / "a.sqlite", gpu=None) as export:
        export.kernel("k", 5, 9, 1)
    profile = open_profile(tmp_path / "a.sqlite")
    assert [(span.name, span.ranges) for span in profile.spans()] == [("k", ())]
    assert profile.api_sums() == [] and profile.unlinked_launches == 1


def test_ranges_without_calls_are_a_warning(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 5, 9, 1)
        export.nvtx("step", 0, 10)
    profile = open_profile(tmp_path / "a.sqlite")
    assert [span.ranges for span in profile.spans()] == [()]
    assert "no CUDA API calls" in profile.warnings[0]


def test_a_table_of_the_plain_name_without_rows_gives_way_to_a_suffixed_one(tmp_path):
    path = standard(tmp_path / "a.sqlite", "2026")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
        third = "CUPTI_ACTIVITY_KIND_KERNEL_V3"
        connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 AS SELECT * FROM {third} LIMIT 1")
    assert sum(span.kind == SpanKind.KERNEL for span in open_profile(path).spans()) == 6


def test_two_versions_of_a_table_are_not_added_up_and_it_is_told(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 5, 9)
        export.connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V3 AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL"
        )
    profile = open_profile(tmp_path / "a.sqlite")
    assert [row.instances for row in profile.sums()] == [1]
    assert profile.warnings == [
        "not read: CUPTI_ACTIVITY_KIND_KERNEL_V3, which another version of the same table hides"
    ]


def test_whole_graph_launches_are_a_warning_or_alone_an_error(tmp_path):
    with Export(tmp_path / "some.sqlite") as export:
        export.kernel("k", 5, 9)
        export.graph(10, 2_000_010)
        export.graph(3_000_000, 4_500_000)
    (warning,) = open_profile(tmp_path / "some.sqlite").warnings
    assert warning.startswith("2 CUDA graph launches (3.5 ms)") and "--cuda-graph-trace=node" in warning
    with sqlite3.connect(tmp_path / "some.sqlite") as connection:
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE RENAME COLUMN start TO begin")
    (warning,) = open_profile(tmp_path / "some.sqlite").warnings
    assert warning.startswith("2 CUDA graph launches were recorded whole")
    with Export(tmp_path / "only.sqlite") as export:
        export.graph(10, 20)
    with pytest.raises(DerbyError, match="--cuda-graph-trace=node"):
        open_profile(tmp_path / "only.sqlite")


@pytest.mark.parametrize("start, end", [(None, 9), (5, None), (None, None), ("soon", 9), (5, "late"), (5.5, 9.5)])
def test_missing_or_odd_times_are_counted_too(tmp_path, start, end):
    """Tools that rewrite an export may lose NOT NULL; a comparison with NULL is neither true nor false."""
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 10, 20)
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")]
        connection.execute("CREATE TABLE loose AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
        connection.execute('INSERT INTO loose (start, "end", demangledName) VALUES (?, ?, 1)', (start, end))
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        connection.execute("ALTER TABLE loose RENAME TO CUPTI_ACTIVITY_KIND_KERNEL")
        assert {"start", "end", "demangledName"} <= set(columns)
    profile = open_profile(tmp_path / "a.sqlite")
    assert [span.start_ns for span in profile.spans()] == [10]
    assert [(each.instances, each.total_ns) for each in profile.sums()] == [(1, 10)]
    assert profile.warnings == ["left out: 1 GPU operation without valid times"]


def test_kernels_without_times_are_left_out_and_counted(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 5, 9)
        export.kernel("k", 0, 0)
        export.kernel("k", 7000, 0)
        export.kernel("k", 0, 3)  # the first nanosecond of the session is a time
    profile = open_profile(tmp_path / "a.sqlite")
    assert [span.start_ns for span in profile.spans()] == [0, 5]
    assert profile.sums()[0].total_ns == 7
    assert profile.warnings == ["left out: 2 GPU operations without valid times"]


def test_diagnostics_of_nsys_are_passed_on(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 5, 9)
        export.diagnostic(1, "information")
        export.diagnostic(2, "Not all CUDA\n events collected.")
        export.diagnostic(2, "Not all CUDA\n events collected.")
    assert open_profile(tmp_path / "a.sqlite").warnings == ["nsys: Not all CUDA events collected. (2 times)"]


def test_a_kernel_whose_name_is_lost_has_its_short_name(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        for number in range(4):
            export.kernel(f"void kernel{number}<int>(int)", 100 * number, 100 * number + 50, number + 1)
        export.connection.execute("DELETE FROM StringIds WHERE value LIKE 'void kernel1%' OR value LIKE '%kernel2%'")
    profile = open_profile(tmp_path / "a.sqlite")
    names = ["void kernel0<int>(int)", "kernel1", "(unnamed kernel)", "void kernel3<int>(int)"]
    assert [span.name for span in profile.spans()] == names
    assert sorted(profile.names()) == sorted(row.name for row in profile.sums()) == sorted(names)


def test_two_string_ids_of_one_name_are_one_sum(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 0, 10)
        export.ids.clear()
        export.ids["other"] = 50
        export.kernel("k", 20, 50)
        export.kernel("k", 60, 70)
    (total,) = open_profile(tmp_path / "a.sqlite").sums()
    assert (total.instances, total.total_ns, total.median_ns) == (3, 50, 10)


def test_names_of_kinds_of_copies_need_no_enum_table(tmp_path):
    with Export(tmp_path / "a.sqlite", "2022.2") as export:
        for kind in (8, 10, 99, 98):
            export.memcpy(kind, 10, kind, kind + 2)
    profile = open_profile(tmp_path / "a.sqlite")
    names = {each.name: (each.instances, each.total_ns, each.bytes) for each in profile.sums()}
    assert names == {
        "[CUDA memcpy Device-to-Device]": (1, 2, 10),
        "[CUDA memcpy Peer-to-Peer]": (1, 2, 10),
        "[CUDA memcpy Unknown]": (2, 4, 20),
    }
    assert {span.name for span in profile.spans()} == set(names)


def test_exports_of_other_tools_with_few_columns(tmp_path):
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as connection:
        for table, columns in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId INT, name TEXT"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId INT, globalTid INT"),
            ("NVTX_EVENTS", "text TEXT, globalTid INT"),
        ):
            connection.execute(f"CREATE TABLE {table} (start INT, end INT, {columns})")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 110, 1, 'k')")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (50, 60, 1, ?)", (global_id(3, 4),))
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (40, 70, 'step', ?)", (global_id(3, 4),))
    (span,) = open_profile(path).spans()
    assert (span.name, span.process, span.device, span.stream, span.ranges) == ("k", 0, 0, 0, ("step",))


def test_bad_text_in_a_range_is_no_crash(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 100, 110, 1)
        export.call("cudaLaunchKernel", 50, 60, 1)
        export.nvtx("x", 40, 70)
        export.connection.execute("UPDATE NVTX_EVENTS SET text = CAST(x'ff41' AS TEXT)")
    assert next(open_profile(tmp_path / "a.sqlite").spans()).ranges == ("�A",)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("step", [0, 1 << 32])
def test_ids_that_come_again_are_those_of_the_last_call_before_the_work(tmp_path, generation, step):
    """After 2^32 launches. Ids beyond 32 bits, as other tools write them, fall on the same ids."""
    with Export(tmp_path / "a.sqlite", generation) as export:
        for number, now in enumerate((1000, 20_000, 300_000)):
            for launch in (1, 2):
                start, correlation = now + launch * 100, number * step + launch
                export.call("cudaLaunchKernel_v7000", start, start + 50, correlation)
                if export.old:
                    export.call("cudaLaunchKernel", start + 2, start + 9, correlation, event_class=67)
                    export.call("cudaLaunchKernel", start + 20, start + 29, correlation, event_class=67)
                export.kernel("k", start + 60, start + 90, correlation)
            export.nvtx(f"turn {number}", now, now + 900)
    launched = list(open_profile(tmp_path / "a.sqlite").launched())
    assert [span.start_ns - launch for span, launch, _ in launched] == [60] * 6
    assert [span.ranges for span, _, _ in launched] == [(f"turn {number}",) for number in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("odd", [False, True])
def test_a_range_with_an_empty_text_is_unnamed(tmp_path, odd):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel("k", 100, 110, 1)
        export.call("cudaLaunchKernel", 50, 60, 1)
        export.nvtx("", 40, 70)
        if odd:
            export.connection.execute("INSERT INTO NVTX_EVENTS (start, end, eventType, text) VALUES ('x', 1, 59, 'y')")
    profile = open_profile(tmp_path / "a.sqlite")
    assert next(profile.spans()).ranges == ("(unnamed range)",)
    assert [each.name for each in profile.range_instances()] == ["(unnamed range)"]


@pytest.mark.parametrize("seed", range(20))
def test_ranges_at_launch_agree_with_a_search_through_all_of_them(tmp_path, seed):
    """Any mixture of nested, overlapping (start/end kind), touching and open ranges, on two threads a process."""
    random_ = random.Random(seed)
    ranges = []
    launches = {}
    with Export(tmp_path / "a.sqlite") as export:
        for number in range(40):
            process, thread = random_.choice((1, 2)), random_.choice((11, 12))
            start = random_.randrange(100)
            end = random_.choice((None, start, start + 1 + random_.randrange(40)))
            ranges.append((process, thread, start, end, f"r{number}"))
            export.nvtx(f"r{number}", start, end, process, thread, random_.choice((59, 60)), random_.random() < 0.5)
        for correlation in range(1, 60):
            process, thread, start = random_.choice((1, 2)), random_.choice((11, 12)), random_.randrange(150)
            launches[process, correlation] = thread, start
            export.call("cudaLaunchKernel", start, start + 1, correlation, process, thread)
            export.kernel(f"k{process}-{correlation}", 1000 + random_.randrange(50), 1100, correlation, process)
    for span in open_profile(tmp_path / "a.sqlite").spans():
        process, correlation = map(int, span.name[1:].split("-"))
        thread, start = launches[process, correlation]
        expected = {
            name
            for *where, first, last, name in ranges
            if where == [process, thread] and first <= start and (last is None or start < last)
        }
        assert set(span.ranges) == expected
        starts = [next(each[2] for each in ranges if each[4] == name) for name in span.ranges]
        assert starts == sorted(starts), "outermost first"


@pytest.mark.parametrize("seed", range(10))
def test_sums_equal_the_walk_and_do_not_depend_on_the_order_of_rows(tmp_path, seed):
    random_ = random.Random(seed)
    starts = [random_.randrange(10_000) for _ in range(200)]
    rows = [(random_.choice("abc"), start, start + random_.randrange(500)) for start in starts]
    profiles = []
    for name in ("one", "two"):
        random_.shuffle(rows)
        with Export(tmp_path / name, random_.choice(GENERATIONS)) as export:
            for row in rows:
                export.kernel(*row)
        profiles.append(open_profile(tmp_path / name))
    walks = [[(span.start_ns, span.end_ns) for span in profile.spans()] for profile in profiles]
    assert walks[0] == walks[1] == sorted(walks[0])
    assert profiles[0].sums() == profiles[1].sums()
    for each in profiles[0].sums():
        durations = [end - start for name, start, end in rows if name == each.name]
        assert (each.instances, each.total_ns) == (len(durations), sum(durations))
        assert each.median_ns == statistics.median(durations)
        assert (each.min_ns, each.max_ns) == (min(durations), max(durations))
        assert each.stddev_ns == pytest.approx(statistics.stdev(durations))


def test_a_walk_may_be_left_and_begun_again(export):
    profile = open_profile(export)
    first = profile.spans()
    next(first)
    assert len(list(profile.spans())) == 9
    first.close()


class TestBadDatabases:
    def test_of_another_program(self, tmp_path):
        path = tmp_path / "a.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE other_op (id INTEGER)")
        with pytest.raises(DerbyError, match="no export of nsys .*nsys export --type sqlite"):
            open_profile(path)

    def test_without_gpu_work(self, tmp_path):
        with Export(tmp_path / "a.sqlite") as export:
            export.call("cudaMalloc", 1, 2, 1)
            export.table("CUPTI_ACTIVITY_KIND_KERNEL")
        with pytest.raises(DerbyError, match="no kernels, copies or memsets"):
            open_profile(tmp_path / "a.sqlite")

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
    def test_truncated(self, tmp_path, share):
        path = standard(tmp_path / "a.sqlite")
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DerbyError, match="truncated"):
            open_profile(path)

    def test_with_nothing_but_the_magic(self, tmp_path):
        (tmp_path / "a").write_bytes(b"SQLite format 3\0")
        with pytest.raises(DerbyError, match="truncated"):
            open_profile(tmp_path / "a")

    def test_damaged_inside(self, tmp_path):
        path = standard(tmp_path / "a.sqlite")
        data = bytearray(path.read_bytes())
        data[200:] = b"\x5a" * (len(data) - 200)
        path.write_bytes(data)
        with pytest.raises(DerbyError, match="damaged or truncated"):
            open_profile(path)

    def test_locked(self, tmp_path, monkeypatch):
        monkeypatch.setattr("kernelderby.profile.sources.sqlite.schema._LOCK_SECONDS", 0.05)
        path = standard(tmp_path / "a.sqlite")
        writer = sqlite3.connect(path)
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DerbyError, match="locked by another program"):
            open_profile(path)
        writer.rollback()
        assert open_profile(path)

    def test_in_wal_mode_in_a_folder_that_cannot_be_written_to(self, tmp_path, monkeypatch):
        path = standard(tmp_path / "a.sqlite")
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        monkeypatch.setattr("os.access", lambda folder, mode: False)
        with connect(path) as connection:
            assert connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone() == (6,)
            assert [each.name for each in tmp_path.iterdir()] == ["a.sqlite"]

    def test_a_kernel_table_of_a_schema_to_come(self, tmp_path):
        path = tmp_path / "a.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (startNs INTEGER, endNs INTEGER)")
            connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2)")
        with pytest.raises(DerbyError, match="has no column end"):
            open_profile(path)

    def test_errors_are_one_line_and_name_the_file(self, tmp_path):
        path = tmp_path / "a.sqlite"
        sqlite3.connect(path).execute("CREATE TABLE x (y)")
        with pytest.raises(DerbyError) as caught:
            open_profile(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    def test_nothing_is_written(self, export):
        before = export.read_bytes()
        profile = open_profile(export)
        list(profile.spans()), profile.sums(), profile.api_sums()
        assert export.read_bytes() == before and [each.name for each in export.parent.iterdir()] == [export.name]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    "words",
    [{"window": "50ns:250ns"}, {"device": 0}, {"stream": 7}, {"process": 100}, {"window": ":200ns", "stream": 7}],
)
def test_sqlite_leaves_out_what_a_selection_does(tmp_path, generation, words):
    """The same operations, sums and gaps as a walk over all operations gives, and only these are read."""
    path = standard(tmp_path / "a.sqlite", generation)
    chosen = make_selection(**words)
    first = min(span.start_ns for span in open_profile(path).spans())
    wanted = [
        span
        for span in open_profile(path).spans()
        if (not chosen.window or chosen.window[0] <= span.start_ns - first < chosen.window[1])
        and all(getattr(chosen, name) in (None, getattr(span, name)) for name in ("device", "stream", "process"))
    ]
    found = SelectedProfile(open_profile(path), chosen)
    assert wanted and list(found.spans()) == wanted and [each[0] for each in found.launched()] == wanted
    assert found.sums() == sum_spans(wanted) and found.profile is not found.whole
    builder = TimelineBuilder(found)
    for span in wanted:
        builder.take(span)
    assert timelines_of(found) == builder.timelines()


def test_a_name_of_megabytes_costs_no_more_than_its_beginning(tmp_path):
    name = "void ns::kernel<" + "at::native::Foo<int, float>, " * 100_000 + "int>(int)"
    with Export(tmp_path / "a.sqlite") as made:
        made.kernel(name, 0, 500, 1)
    began = time.perf_counter()
    assert summarise(open_profile(tmp_path / "a.sqlite")).rows[0].instances == 1
    assert time.perf_counter() - began < 5


def test_a_database_of_the_old_rocprof_names_the_files_that_are_read(tmp_path):
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as connection:
        for name in ("HIP", "OPS", "COPY", "KERN"):
            connection.execute(f'CREATE TABLE {name} ("BeginNs" INTEGER, "EndNs" INTEGER)')
    with pytest.raises(DerbyError, match=r"old rocprof, which is not read; name its results\.csv"):
        open_profile(path)
