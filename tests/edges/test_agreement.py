"""Rows that contradict their surroundings are left out with a line and fail `pack --check`; written pages name them,
and no page gets shorter for them in silence."""

import json
from functools import partial

import pytest
from mutating import run
from test_strangers import DEFINITION, TRACES, WORKLOADS, D, edit

from kernelderby.catalog import Catalog
from kernelderby.catalog.model import Tolerance
from kernelderby.catalog.pack import problems


def own(row, **fields):
    row["measurement"].update(fields)


def environment(row, **fields):
    row["measurement"]["environment"].update(fields)


def evaluation(row, part, **fields):
    row["evaluation"][part].update(fields)


def expect_left_out(root, words):
    found = problems(root)
    assert len(found) == 1 and all(word in found[0] for word in words), found
    catalog = Catalog.open(root)
    assert len(catalog.traces()) == 3 and found[0] in catalog.warnings[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (partial(evaluation, part="environment", hardware="NVIDIA B200"), ("'b200' but the path says 'h200'",)),
        (partial(evaluation, part="environment", libs={"torch": "9"}), ("libs.torch", "'2.13.0'", "'9'")),
        (partial(evaluation, part="performance", reference_latency_ms=0.5, speedup_factor=62.5), ("reference_lat",)),
        (partial(evaluation, part="performance", speedup_factor=2.1), ("speedup_factor: is 2.1", "give 2")),
        (partial(evaluation, part="correctness", max_absolute_error=0.5), ("max_absolute_error: is 0.0, but 0.5",)),
        (partial(evaluation, part="correctness", max_relative_error="NaN"), ("max_relative_error",)),
        (partial(own, wall_us=7.0), ("latency_us: is 8, longer than wall_us 7",)),
        (partial(own, wall_us=9.0, host_us=10.0), ("host_us: is 10, longer than wall_us 9",)),
        (
            partial(
                own, times={kind: {"median_us": us, "samples_us": [[us]]} for kind, us in (("busy", 9), ("eager", 8))}
            ),
            ("times.busy.median_us: is 9, longer than times.eager.median_us 8",),
        ),
        (
            lambda row: row["measurement"]["correctness"].update(matched_ratio={"exact": 0.999}),
            ("matched_ratio.exact: is 0.999 in a passed row", "demands 1"),
        ),
        *(
            (
                lambda row, ratios=ratios: row["measurement"]["correctness"].update(matched_ratio=ratios),
                ("matched_ratio: lacks exact in a passed row, which scale_rows_h4 demands",),
            )
            for ratios in ({}, {"another": 1.0})
        ),
        (
            partial(own, graph_missing="none", times={"graph": {"median_us": 8, "samples_us": [[8]]}}),
            ("graph_missing: says why there is no graph time",),
        ),
        (
            partial(own, times={"eager": {"median_us": 8, "samples_us": [[8]]}}, samples_us=[[5.0]]),
            ("latency_us: is 8, but the median of the samples 5",),
        ),
        (
            partial(evaluation, part="correctness", max_absolute_error=-1),
            ("max_absolute_error: must be a number of 0",),
        ),
        (partial(evaluation, part="correctness", relative_error_norm=5), ("relative_error_norm: is 0.0, but 5",)),
        (
            partial(evaluation, part="correctness", matched_ratio={"exact": 0.1}),
            ("matched_ratio.exact: is 1.0, but 0.1",),
        ),
        (
            partial(environment, empty_kernel_us={"eager": 900.0}),
            ("eager time is 8 us, but", "empty_kernel_us.eager, 900"),
        ),
        *(
            (partial(environment, **{field: value}), (field, "must be"))
            for field in ("gpu_uuid", "apart")
            for value in ([1], {"a": []}, 5)
        ),
        *(
            (partial(environment, clocks=clocks), ("measurement.environment",))
            for clocks in (5, [{"sm_mhz": 10**400}], [{"throttled_by": 5}], [{"power_watts": "hot"}])
        ),
        (
            lambda row: row["workload"]["inputs"].update(zzz={"type": "random"}),
            ("inputs: 'zzz' stands in the row or in",),
        ),
        (
            lambda row: row["workload"].update(uuid="another", axes={"rows": 2, "columns": 3}),
            ("axes: 'columns' stands in the row or in scale_rows_h4, not in both",),
        ),
        (
            lambda row: (own(row, solution_hash=None), evaluation(row, "environment", hardware="NVIDIA B200")),
            ("'b200' but the path says 'h200'",),
        ),
        (
            lambda row: (row.pop("measurement"), evaluation(row, "environment", hardware="NVIDIA B200")),
            ("'b200' but the path says 'h200'",),
        ),
        (partial(environment, driver="another"), ("environment.driver: is another, unlike 3 rows of its session s1",)),
        (partial(environment, empty_kernel_us={"eager": 1.0}), ("empty_kernel_us", "unlike 3 rows")),
        (partial(own, protocol="another"), ("measurement.protocol: is another, unlike 3 rows of its session",)),
    ],
)
def test_a_row_that_contradicts_what_stands_around_it(small_set, change, words):
    path = small_set / TRACES
    known = {"driver": "580.1", "empty_kernel_us": {"eager": 2.0}}
    for line in range(4):
        edit(path, partial(environment, **known), line)
    assert problems(small_set) == []
    edit(path, change)
    expect_left_out(small_set, (f"{TRACES}:1: ", *words))


def test_of_two_that_contradict_each_other_nobody_is_believed(small_set):
    for line, driver in enumerate("ab"):
        edit(small_set / TRACES, lambda row, driver=driver: environment(row, driver=driver), line)
    assert len(Catalog.open(small_set).traces()) == 2
    assert f"{TRACES}:1: measurement.environment.driver: is a, unlike others" in problems(small_set)[0]


def test_another_gpu_of_the_session_has_figures_of_its_own(small_set):
    for line, gpu in enumerate("aabb"):
        times = {"eager": 1.0 + (gpu == "b")}
        edit(small_set / TRACES, lambda row, g=gpu, t=times: environment(row, gpu_uuid=g, empty_kernel_us=t), line)
    assert problems(small_set) == []


def test_a_file_under_another_op_type(small_set):
    there = small_set / "traces/h200/other"
    (small_set / "traces/h200/toy").rename(there)
    assert "op_type: is 'toy' but the path says 'other'" in problems(small_set)[0]
    assert Catalog.open(small_set).traces() == []


def test_a_time_that_no_gpu_reaches(small_set):
    """36 MB at 4.8 TB/s take 7.5 us; in place, with half of it, 3.75."""
    edit(small_set / WORKLOADS, lambda line: line.update(cost={"flops": {}, "bytes_read": 18e6, "bytes_written": 18e6}))
    (small_set / WORKLOADS).write_text((small_set / WORKLOADS).read_text().replace("18000000.0", "18000000"))

    def quick(us, row):
        own(row, latency_us=us, samples_us=[[us]])
        evaluation(row, "performance", latency_ms=us / 1e3, speedup_factor=None)

    edit(small_set / TRACES, partial(quick, 0.2))
    assert problems(small_set) == []
    edit(small_set / TRACES, partial(quick, 0.18))
    expect_left_out(small_set, (f"{TRACES}:1: the eager time is 0.18 us, but NVIDIA H200 needs 1.88 us",))


def test_of_few_elements_fewer_may_match_than_of_many():
    """As the judge has it: of 100 elements 10 may fail, and 4.5 x sqrt(10 x 0.9) = 13.5 more by chance."""
    tolerance = Tolerance("t", 1, 0.1, 0.9, "a test")
    assert tolerance.least_ratio(100) == pytest.approx(1 - 0.235)
    assert tolerance.least_ratio(4) == 0.5, "never more than half"
    assert tolerance.least_ratio(2048) == pytest.approx(0.9 - 4.5 * (0.1 * 0.9 / 2048) ** 0.5), "no edge at any size"
    assert 0.899 < tolerance.least_ratio(10**7) < 0.9 == tolerance.least_ratio(0)
    assert Tolerance("t", 1, 0.1, 1.0, "a test").least_ratio(100) == 1.0


def test_published_times_are_times(small_set):
    (small_set / "profiles").mkdir()
    (small_set / "profiles/published_shapes.csv").write_text("operator,shape_id,tprod_xpua_us\na,1,1e-200\n")
    assert "tprod_xpua_us: must be a time from 1e-06" in problems(small_set)[0]


# ------------------------------------------------------------------------------------------------- pages and blocks


BLOCK = "before\n\n<!-- derby rank -->\n<!-- /derby -->\n\nafter\n"


def test_what_is_left_out_stands_in_a_block_and_shortens_none(small_set, tmp_path):
    page, path = tmp_path / "page.md", small_set / TRACES
    page.write_text(BLOCK)
    words = ("rank", "--write", page, "--root", small_set)
    assert run(*words).code == 0
    whole, rows = page.read_text(), path.read_text()
    edit(path, partial(own, wall_us=1.0), 3)
    refused = run(*words)
    assert refused.code == 1 and page.read_text() == whole
    assert "not written: it shows" in refused.err and f"{TRACES}:4" in refused.err
    page.write_text(BLOCK)
    assert run(*words).code == 0 and "**Left out, since it is broken**" in page.read_text()
    assert f"{TRACES}:4: measurement.latency_us: is 4" in page.read_text()
    assert run(*words).code == 0, "it says the same again"
    path.write_text(rows)
    assert run(*words).code == 0 and page.read_text() == whole


@pytest.mark.parametrize("words", [("report.html",), ("report.md", "--markdown"), ("--picture", "race.svg")])
def test_no_page_gets_shorter_in_silence(small_set, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    [page] = [tmp_path / word for word in words if "." in word]
    ask = partial(run, "report", *words, "--root", small_set)
    assert ask().code == 0
    whole = page.read_bytes()
    broken = (small_set / TRACES).read_text().splitlines()
    (small_set / TRACES).write_text("\n".join([*broken[:2], "{", "{"]) + "\n")
    refused = ask()
    assert refused.code == 1 and page.read_bytes() == whole
    assert f"{page.name}: not written: it " in refused.err and "empty the page first" in refused.err
    page.unlink()
    assert ask().code == 0 and page.read_bytes() != whole
    if page.suffix == ".md":
        assert f"{TRACES}:3" in page.read_text()


@pytest.mark.parametrize("verb", [("rank",), ("list",), ("show", D), ("roofline", "--traces"), ("report", "r.html")])
def test_strict_makes_a_left_out_row_an_error(small_set, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    assert run(*verb, "--strict", "--root", small_set).code == 0
    (tmp_path / "r.html").unlink(missing_ok=True)
    edit(small_set / TRACES, partial(own, wall_us=1.0))
    assert run(*verb, "--root", small_set).code == 0
    (tmp_path / "r.html").unlink(missing_ok=True)
    found = run(*verb, "--strict", "--root", small_set)
    assert found.code == 1 and not found.out and not (tmp_path / "r.html").exists()
    first, last = found.err.splitlines()
    assert f"{TRACES}:1" in first and "--strict: 1 of the set left out" in last


def test_rows_of_no_definition_are_left_out_too(small_set):
    there = small_set / TRACES
    strange = json.loads(there.read_text().splitlines()[0]) | {"definition": "nowhere"}
    there.with_name("nowhere.jsonl").write_text(json.dumps(strange) + "\n")
    assert run("rank", "--root", small_set).code == 0
    assert run("rank", "--strict", "--root", small_set).code == 1
    assert (small_set / DEFINITION).is_file()
