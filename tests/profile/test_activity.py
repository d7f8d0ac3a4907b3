"""GPUs and ranks, filters, repetitions: exports with answers worked out by hand."""

import csv
import json

import pytest
from make_nsys import Export
from memory_profile import EventProfile

from kernelderby.errors import DerbyError
from kernelderby.profile.activity import activity_of
from kernelderby.profile.critical_path import critical_path
from kernelderby.profile.filters import make_selection
from kernelderby.profile.pace import pace_of
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import Span, SpanKind
from kernelderby.report.profile.activity import activity_report
from kernelderby.report.profile.ranks import labels
from kernelderby.report.text import render

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def made(path, **more):
    """GPU time (us): a 0-10, b 12-20 (queued), c 50-60 (launched at 40, after a wait that ended at 35), d 90-100
    (launched at 80 without a wait), the collective 95-110 on another stream, e 120-130 without a launch."""
    with Export(path, "2025.5", gpu="NVIDIA H200", **more) as export:
        for number, (name, launch, start, end, stream) in enumerate(
            (
                ("a", -5, 0, 10, 7),
                ("b", -4, 12, 20, 7),
                ("c", 40, 50, 60, 7),
                ("d", 80, 90, 100, 7),
                (ALLREDUCE, 81, 95, 110, 9),
            ),
            1,
        ):
            export.kernel(name, at(start), at(end), number, stream=stream)
            export.call("cudaLaunchKernel_v7000", at(launch), at(launch) + 1000, number)
        export.kernel("e", at(120), at(130), 99)
        export.call("cudaStreamSynchronize_v3020", at(15), at(35), 50)
    return path


def at(us):
    return 1_000_000 + us * 1000


def test_idle_by_cause_overlap_and_launches(tmp_path):
    found = activity_of(open_profile(made(tmp_path / "a.sqlite")))
    [gpu] = found.gpus
    assert (gpu.wall_ns, gpu.busy_ns) == (130_000, 58_000)
    assert gpu.idle_ns == {
        "dependency": 2_000,  # b was launched long before
        "synchronisation": 30_000,  # c: the host had waited until 35
        "host late": 30_000,  # d: nothing waited between 60 and 80
        "communication": 0,
        "unknown": 10_000,  # e
    }
    assert sum(gpu.idle_ns.values()) == gpu.wall_ns - gpu.busy_ns and found.unlinked == 1
    assert (gpu.communication_ns, gpu.overlap_ns, gpu.exposed_ns) == (15_000, 5_000, 10_000)
    assert gpu.launch_median_ns == 10_000  # 5, 16, 10, 10, 14 us
    assert gpu.queue_largest == 1  # b is launched while a waits, the collective while d does
    assert next((call.name, call.calls) for call in found.api) == ("cudaStreamSynchronize", 1)


def test_ranks_that_all_call_their_gpu_0(tmp_path):
    path = tmp_path / "a.sqlite"
    with Export(path, "2025.5") as export:
        export.kernel("a", at(0), at(90), 1, process=111)
        export.kernel("a", at(0), at(100), 1, process=222)
        export.kernel("a", at(95), at(100), 2, process=111)
    found = activity_of(open_profile(path))
    assert [(gpu.label, gpu.busy_ns) for gpu in found.gpus] == [
        ("0 of process 111", 95_000),
        ("0 of process 222", 100_000),
    ]


def test_one_gpu_of_two_processes_is_one_by_its_uuid(tmp_path):
    path = tmp_path / "a.sqlite"
    with Export(path, "2025.5") as export:
        export.kernel("a", at(0), at(50), 1, process=111)
        export.kernel("a", at(20), at(80), 1, process=222)
        export.connection.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid)")
        for process in (111, 222):
            export.connection.execute(f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, {process}, 'GPU-1')")
    [gpu] = activity_of(open_profile(path)).gpus
    assert gpu.busy_ns == 80_000


def test_several_profiles_side_by_side(derby, tmp_path):
    files = [made(tmp_path / f"r{rank}.sqlite") for rank in range(2)]
    code, out, err = derby("profile", "activity", *files)
    assert code == 0, err
    assert "r0, GPU 0" in out and "r1, GPU 0" in out and "r0 (r0.sqlite): " in out and "0.0% apart" in out
    code, out, _ = derby("profile", "kernels", *files)
    assert code == 0 and "Kernels side by side" in out
    _, out, _ = derby("profile", "kernels", *files, "--format", "csv", "--table", "ranks")
    rows = list(csv.DictReader(out.splitlines()))
    assert {row["profile"] for row in rows} == {"r0.sqlite", "r1.sqlite"}
    assert all(float(row["spread"]) == 0 for row in rows)


@pytest.mark.parametrize(
    "words, names",
    [
        (("--window", "0us:15us"), {"a", "b"}),
        (("--window", "85us:"), {"d", ALLREDUCE, "e"}),
        (("--stream", "9"), {ALLREDUCE}),
        (("--device", "0", "--window", ":1us"), {"a"}),
    ],
)
def test_filters_keep_the_named_part_and_say_so(derby, tmp_path, words, names):
    code, out, err = derby("profile", "kernels", made(tmp_path / "a.sqlite"), *words, "--json")
    assert code == 0, err
    [profile] = json.loads(out)["profiles"]
    assert {row["name"] for row in profile["rows"]} == names
    assert any(warning.startswith("only ") for warning in profile["warnings"])


def test_filters_that_take_nothing_say_what_there_is(derby, tmp_path):
    path = made(tmp_path / "a.sqlite")
    code, _, err = derby("profile", "kernels", path, "--device", "3")
    assert code == 1 and "nothing in it is GPU 3; there are GPUs 0;" in err
    for words, said in (
        (("--window", "abc"), "is no FROM:TO"),
        (("--window", "2s:1s"), "is no FROM:TO"),
        (("--window", ""), "is no FROM:TO"),
        (("--range", ""), "--range: is empty"),
        (("--range", "("), "no regular expression"),
        (("--repetition", "2"), "add --range"),
        (("--range", "x", "--repetition", "0"), "is no N or N-M"),
    ):
        code, _, err = derby("profile", "kernels", path, *words)
        assert code == 1 and said in err and err.count("\n") == 1, words


def steps(path, slow=3):
    """Ten ranges `step`, 100 us apart, two kernels of 10 us in each; in one step the second takes 60."""
    with Export(path, "2025.5") as export:
        for step in range(10):
            base = step * 100
            export.nvtx("step", at(base), at(base + 40))
            for number, offset in ((2 * step + 1, 5), (2 * step + 2, 20)):
                end = offset + (60 if step == slow and offset == 20 else 10)
                export.call("cudaLaunchKernel_v7000", at(base + offset - 2), at(base + offset - 1), number)
                export.kernel("k", at(base + offset), at(base + end), number)
        export.connection.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 132, gridY = 2, gridZ = 1, blockX = 128, blockY = 1, "
            "blockZ = 1, registersPerThread = 168, staticSharedMemory = 1024, dynamicSharedMemory = 98304"
        )
    return path


def test_pace_and_what_falls_out(derby, tmp_path):
    path = steps(tmp_path / "a.sqlite")
    found = pace_of(open_profile(path), "^step$")
    assert [row.number for row in found.repetitions] == list(range(1, 11))
    assert {row.span_ns for row in found.repetitions} == {25_000, 75_000}
    assert {row.busy_ns for row in found.repetitions} == {20_000, 70_000}
    assert [row.number for row in found.outliers] == [4]
    assert all(row.period_ns == 100_000 for row in found.repetitions[:-1])
    code, out, _ = derby("profile", "pace", path, "--within", "step")
    assert code == 0 and "1 out of line" in out and "deviations" in out
    with pytest.raises(DerbyError, match="no range fits 'nothing'; there are step; name one with --within"):
        pace_of(open_profile(path), "nothing")
    with Export(tmp_path / "bare.sqlite") as export:
        export.kernel("k", 0, 10, 1)
    with pytest.raises(DerbyError, match="has no ranges, so none fits 'step'; mark the steps in the program with"):
        pace_of(open_profile(tmp_path / "bare.sqlite"), "step")


def test_repetitions_can_be_chosen(tmp_path):
    from kernelderby.profile.filters import SelectedProfile

    path = steps(tmp_path / "a.sqlite")
    chosen = SelectedProfile(open_profile(path), make_selection(within="step", repetition="4-5"))
    [row] = chosen.sums()
    assert (row.instances, row.total_ns) == (4, 90_000)


def test_kernels_are_counted_by_launch_configuration(tmp_path):
    [shape] = activity_of(open_profile(steps(tmp_path / "a.sqlite"))).shapes
    assert (shape.name, shape.instances, shape.grid, shape.block) == ("k", 20, (132, 2, 1), (128, 1, 1))
    assert (shape.registers, shape.shared_bytes) == (168, 99_328)
    assert activity_of(open_profile(made(tmp_path / "b.sqlite"))).shapes == ()  # no grids in it


def test_a_profile_without_the_solutions_stages_is_an_error(derby, checkout, tmp_path):
    path = made(tmp_path / "a.sqlite")
    for verb in ("stages", "whatif"):
        code, out, err = derby("profile", verb, path, "--solution", "triton_fused_v2", "--root", checkout)
        assert code == 1 and out == "" and "nothing in it fits a stage of triton_fused_v2" in err


def test_a_total_that_the_source_states_is_no_stage_of_another_solution(derby, checkout):
    table = checkout / "profiles" / "triton_fused_v2_b200.csv"
    code, out, err = derby("profile", "stages", table, "--solution", "triton_compact", "--root", checkout)
    assert code == 1 and out == "" and "nothing in it fits a stage of triton_compact" in err


def test_any_variant_of_a_gpu_tells_the_older_architecture(derby, tmp_path):
    path = tmp_path / "a.sqlite"
    with Export(path, "2025.5", gpu="NVIDIA H100 NVL") as export:
        export.kernel("ampere_sgemm_128x64_nn", at(0), at(50), 1)
    _, out, _ = derby("profile", "kernels", path)
    assert "runs kernels for sm_80 on an sm_90 GPU (NVIDIA H100 NVL)" in " ".join(out.split())
    _, out, _ = derby("profile", "kernels", path, "--gpu", "NVIDIA GeForce RTX 5090")
    assert "on an sm_120 GPU (NVIDIA GeForce RTX 5090)" in " ".join(out.split())


def numbered(path):
    """Ranges as torch.autograd.profiler.emit_nvtx writes them: each has its own numbers behind the operator."""
    with Export(path, "2025.5") as export:
        for step in range(6):
            base = step * 100
            export.nvtx(f"aten::addmm, seq = {40 + step}, op_id = {900 + step}", at(base), at(base + 40))
            export.call("cudaLaunchKernel_v7000", at(base + 2), at(base + 3), step + 1)
            export.kernel("k", at(base + 5), at(base + (90 if step > 3 else 15)), step + 1)
    return path


def test_ranges_are_meant_by_the_name_that_tables_show(derby, tmp_path):
    from kernelderby.profile.filters import SelectedProfile

    path = numbered(tmp_path / "a.sqlite")
    assert len(pace_of(open_profile(path), "^aten::addmm$").repetitions) == 6
    assert len(pace_of(open_profile(path), "op_id = 903$").repetitions) == 1
    chosen = SelectedProfile(open_profile(path), make_selection(within="^aten::addmm$", repetition="2"))
    assert [row.instances for row in chosen.sums()] == [1]
    with pytest.raises(DerbyError, match="there are aten::addmm; name one"):
        pace_of(open_profile(path), "nothing")


def test_rows_of_the_pace_are_at_most_as_many_as_asked_for(derby, tmp_path):
    path = numbered(tmp_path / "a.sqlite")
    _, out, _ = derby("profile", "pace", path, "--within", "addmm", "--rows", "3")
    assert [line.split(":")[0] for line in out.splitlines() if "aten::addmm" in line][:4] == ["1", "5", "6"]
    assert "3 more, all in line" in out
    _, out, _ = derby("profile", "pace", path, "--within", "addmm", "--rows", "1")
    assert "5 more, 1 of them out of line" in out


@pytest.mark.parametrize(
    "names, short",
    [
        (["w0_12.169.pt.json", "w1_12.170.pt.json"], ["w0", "w1"]),
        (["mfu_before.sqlite", "mfu_after.sqlite"], ["before", "after"]),
        (["trace_rank_0.json", "trace_rank_1.json"], ["rank_0", "rank_1"]),
        (["run1/report.sqlite", "run2/report.sqlite"], ["run1", "run2"]),
        (["a.sqlite", "b.json.gz"], ["a.sqlite", "b.json.gz"]),
        (["only.sqlite"], ["only.sqlite"]),
        (["a_1_x.json", "a_1_y.json", "a_2_x.json"], ["a_1_x.json", "a_1_y.json", "a_2_x.json"]),
    ],
)
def test_profiles_are_named_by_what_tells_them_apart(names, short):
    assert labels(names) == short


def test_the_critical_path_crosses_streams():
    """Stream 1: a 0-100, c 200-260. Stream 2: b 102-198, waits for a; c waits for b. side 10-90 runs beside a."""
    spans = [
        Span(SpanKind.KERNEL, name, start * 1000, end * 1000, stream=stream)
        for name, start, end, stream in (("a", 0, 100, 1), ("side", 10, 90, 3), ("b", 102, 198, 2), ("c", 200, 260, 1))
    ]
    rows = {row.name: (row.path_ns, row.hidden_ns) for row in critical_path(EventProfile(events=spans))}
    assert rows == {"a": (100_000, 0), "b": (96_000, 0), "c": (60_000, 0), "side": (0, 80_000)}
    text = render(activity_report([activity_of(EventProfile(events=spans))]), width=80)
    assert "Critical path" in text and max(map(len, text.splitlines())) <= 80
    alone = [span for span in spans if span.stream == 1]
    assert critical_path(EventProfile(events=alone)) == ()


def test_a_waiting_kernel_counts_once_on_the_path():
    """b is launched early on a's stream and waits: of its 0 to 150 only 100 to 150 are on the path."""
    spans = [
        Span(SpanKind.KERNEL, "a", 0, 100_000, stream=1),
        Span(SpanKind.KERNEL, "b", 20_000, 150_000, stream=1),
        Span(SpanKind.KERNEL, "x", 30_000, 40_000, stream=2),
    ]
    rows = {row.name: row.path_ns for row in critical_path(EventProfile(events=spans))}
    assert rows["a"] + rows["b"] == 150_000 and rows["x"] == 0


def test_memory_of_a_trace(tmp_path):
    def held(time, total, device=0, kind=1):
        args = {"Total Allocated": total, "Total Reserved": 4096, "Device Type": kind, "Device Id": device}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": time, "args": args}

    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5, "args": {"device": 0}}
    path = tmp_path / "trace.json"
    odd = [held(14, "many"), held(15, -1), held(16, 10**30)]
    path.write_text(
        json.dumps({"traceEvents": [kernel, held(11, 100), held(12, 900), held(13, 50), held(9, 9999, kind=0), *odd]})
    )
    [found] = activity_of(open_profile(path)).memory
    assert (found.device, found.peak_bytes, found.peak_at_ns, found.last_bytes, found.reserved_bytes) == (
        0,
        900,
        2000,
        50,
        4096,
    )


def test_work_before_its_launch_is_told(tmp_path):
    """The clock of the GPU is 4.9 us behind the host's."""
    with Export(tmp_path / "a.sqlite") as export:
        for number in range(3):
            export.call("cudaLaunchKernel", number * 1000 + 5000, number * 1000 + 5010, number + 1)
            export.kernel("k", number * 1000 + 100, number * 1000 + 700, number + 1)
    (told,) = activity_of(open_profile(tmp_path / "a.sqlite")).warnings
    assert told.startswith("3 operations start before the launch, by up to 4.9 us: the clocks of host and GPU differ")
