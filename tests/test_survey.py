"""derby roofline: the survey of a small set by hand, and the command on it."""

import csv
import json
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog
from kernelderby.hardware import find_gpu
from kernelderby.roofline.operators import PUBLISHED, TRACES, survey

D = "scale_rows_h4"


@pytest.fixture
def published_set(small_set):
    """The small set, its two workloads as shapes 3 and 4 of an operator with published times and an importance; another
    operator with an importance has no definition. Shape 3 moves 72 bytes with 16 flops, shape 4 36,000 with 8,000. The
    traces are of the present sources."""
    path = small_set / f"workloads/toy/{D}.jsonl"
    lines = [json.loads(line) | {"shape_id": shape} for shape, line in enumerate(path.read_text().splitlines(), 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    (small_set / "profiles").mkdir()
    (small_set / "profiles/published_importance.csv").write_text(
        f"# a comment\noperator,importance_percent\n{D},30\nother,70\n"
    )
    (small_set / "profiles/published_shapes.csv").write_text(
        "operator,shape_id,flops,bytes_read,bytes_written,tprod_xpua_us\n"
        f"{D},3,16,40,32,0.001\n{D},4,8000,20000,16000,0.02\nother,0,1,1,1,1\n"
    )
    hashes = {name: solution.hash for name, solution in Catalog.open(small_set).solutions.items()}
    change_traces(small_set, lambda line: line["measurement"].update(solution_hash=hashes[line["solution"]]))
    return small_set


def change_traces(root, change):
    path = root / f"traces/h200/toy/{D}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def look(root, *gpus, **options):
    return survey(Catalog.open(root), [find_gpu(gpu) for gpu in gpus], **options)


def test_published_times_give_a_share(published_set):
    """On XPU-A 36,000 bytes take 0.0067925 us at 5.3 TB/s: S = 33.96 % of 0.02 us. 72 bytes: 1.358e-5 us, 1.358 %."""
    found = look(published_set, "h20", "xpu-a")
    (operator,) = found.operators
    assert [shape.shape_id for shape in operator.shapes] == [3, 4] and operator.middle.shape_id == 4
    assert (operator.importance, operator.regime) == (30, "M")
    assert [shape.times[PUBLISHED].share for shape in operator.shapes] == pytest.approx([0.013585, 0.339623], rel=1e-4)
    assert operator.shares[PUBLISHED].measured == pytest.approx(0.339623, rel=1e-4)
    assert operator.middle.floors["h20"].floor_us == pytest.approx(0.009)
    weighted = found.weighted[PUBLISHED]
    assert (weighted.measured, weighted.everywhere) == pytest.approx((0.339623, 0.101887), rel=1e-4)
    assert (weighted.operators, weighted.of_operators, weighted.weight) == (1, 2, pytest.approx(0.3))


def test_published_times_only_on_their_hardware(published_set):
    found = look(published_set, "h200")
    assert found.sources == () and found.weighted == {} and found.operators[0].shapes[0].times == {}


def test_traces_give_the_fastest_solution_and_the_share_of_the_ceilings(published_set):
    """toy_fast passed both at 4 us. 36,000 bytes: 0.0075 us at 4.8 TB/s, 0.0076612 us at the 4.699 TB/s that a read
    reached; 8,000 flops are less at either."""
    (operator,) = look(published_set, "h200", with_traces=True).operators
    timed = operator.middle.times[TRACES]
    assert (timed.solution, timed.latency_us) == ("toy_fast", 4.0)
    assert (timed.share, timed.share_of_ceilings) == pytest.approx((0.0075 / 4, 0.0076612 / 4), rel=1e-4)
    assert operator.shares[TRACES].shapes == 2


def test_floor_time_and_s_of_a_row_are_of_one_shape(derby, published_set):
    """Wherever an operator's row is printed: the S is the median, and floor over time beside it is that S."""

    def slow(line):  # 1,000 rows, the middle of the list, at S = 0.0075 / 400; one row at 0.000015 / 4 is below it
        if line["workload"]["axes"]["rows"] == 1000:
            line["measurement"] |= {"latency_us": 4e6, "samples_us": [[4e6]]}
            line["evaluation"]["performance"] |= {"latency_ms": 4e3}

    change_traces(published_set, slow)
    (operator,) = look(published_set, "h200", with_traces=True).operators
    shape = operator.typical(TRACES)
    assert shape.shape_id == 3 and operator.middle.shape_id == 4
    assert shape.floors["h200"].floor_us / shape.times[TRACES].latency_us == operator.shares[TRACES].measured
    out = derby("roofline", "--traces", "--format", "csv", "--root", published_set)[1]
    [row] = csv.DictReader(out.splitlines())
    floor_us, latency_us = (
        float(row[f"shape_traces_{name}"]) for name in ("floors_h200_floor_us", "times_traces_latency_us")
    )
    assert floor_us / latency_us == pytest.approx(float(row["share_traces_measured"]))
    assert float(row["share_traces_measured"]) == float(row["shape_traces_times_traces_share"])
    both = derby("roofline", "--traces", "--gpu", "h200,xpu-a", "--format", "markdown", "--root", published_set)[1]
    [line] = [line for line in both.splitlines() if line.startswith(f"| {D}")]
    assert "#4" in line and "#3" in line  # the published S is of another shape, and has its own floor beside it


def test_a_failed_row_is_no_time(published_set):
    def fail(line):
        if line["solution"] == "toy_fast" and line["workload"]["axes"]["rows"] == 1000:
            line["measurement"] |= {"status": "timed_out", "latency_us": None, "samples_us": []}
            line["evaluation"] |= {"status": "TIMEOUT", "performance": None, "correctness": None}

    change_traces(published_set, fail)
    (operator,) = look(published_set, "h200", with_traces=True).operators
    assert [shape.times[TRACES].solution for shape in operator.shapes] == ["toy_fast", "toy_baseline"]


def test_times_of_former_sources_are_marked(derby, published_set):
    assert "†" not in derby("roofline", "--traces", "--root", published_set)[1]
    main = published_set / f"solutions/alice/toy/{D}/toy_fast/main.py"
    main.write_text(main.read_text() + "\nCHANGED = True\n")
    (operator,) = look(published_set, "h200", with_traces=True).operators
    assert operator.middle.times[TRACES].outdated
    output = derby("roofline", "--traces", "--root", published_set)[1]
    assert "4†" in output and "outdated: measured with sources that the solution has no more: toy_fast" in output


def test_a_set_without_published_figures(small_set):
    found = look(small_set, "xpu-a")
    assert found.importance == {} and found.weighted == {}
    assert found.operators[0].importance is None and found.operators[0].shapes[0].times == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "importance",
            "operator,importance_percent\na,ten\n",
            "csv:2: importance_percent: must be a number above 0, 1e9 at most, not 'ten'",
        ),
        (
            "shapes",
            "# c\noperator,shape_id,flops,bytes_read,bytes_written,tprod_xpua_us\na,0,1,1,1,0\n",
            "csv:3: tprod_xpua_us: must be a time from 1e-06 to 1e+12 us, not '0'",
        ),
        ("shapes", "operator,shape_id\na,0\n", "csv:2: tprod_xpua_us: is missing"),
    ],
)
def test_odd_published_figures_are_one_line(published_set, name, text, words):
    (published_set / f"profiles/published_{name}.csv").write_text(text)
    catalog = Catalog.open(published_set)
    survey(catalog, [find_gpu("xpu-a")])
    assert len(catalog.warnings) == 1 and words in catalog.warnings[0] and catalog.warnings[0].endswith("; left out")


def test_the_table_of_operators(derby, published_set):
    code, output, _ = derby("roofline", "--gpu", "h20,xpu-a", "--root", published_set)
    assert code == 0
    (row,) = [line.split() for line in output.splitlines() if line.startswith(D)]
    assert row == [D, "2", "30.0%", "M", "#4", "0.222", "0.009", "0.006792", "0.02", "34.0%"]
    assert "34.0% over the 1 of 2 operators that have a time (30.0% of the importance), 10.2% with 0" in output
    assert "adds up to 100.0 %" in output and "alibaba/atrex-bench" in output


def test_the_table_of_shapes(derby, small_set):
    """Workload 2: 36,000 bytes at 4.8 TB/s = 0.0075 us; 8,000 flops at 67 TFLOP/s = 0.000119 us; 8/36 flops a byte."""
    code, output, _ = derby("roofline", D, "--root", small_set)
    rows = [line.split() for line in output.splitlines()]
    assert code == 0 and ["1000", "4000", "0.222", "0.0075", "0.0001194", "memory"] in rows
    assert "4.8 TB/s, float32 67 TFLOP/s dense" in output and "datasheet" in output
    assert "T_SOL" in derby("roofline", D, "--gpu", "h200,h100", "--root", small_set)[1]


def test_shape_table_with_times(derby, published_set):
    output = derby("roofline", "--shapes", "--traces", "--root", published_set)[1]
    rows = [line.split() for line in output.splitlines()]
    assert ["4", "1000", "4000", "0.222", "0.0075", "0.0001194", "memory", "4", "0.2%", "0.2%", "toy_fast"] in rows
    assert "measured ceilings: 4.699 TB/s" in output and "protocol" in output
    assert "S of the operator on h200, the upper median over 2 of 2 shapes: 0.2%" in output


def test_the_json_has_gpus_and_operators(derby, published_set):
    found = json.loads(derby("roofline", "--json", "--gpu", "NVIDIA H200,xpu-a", "--root", published_set)[1])
    assert [gpu["id"] for gpu in found["gpus"]] == ["h200", "xpu-a"] and "datasheet" in found["gpus"][0]["source"]
    operator = found["operators"][D]
    assert (operator["typical"], operator["weight"]) == ({"published": 1}, pytest.approx(0.3))
    assert operator["regime"] == "M"
    shape = operator["shapes"][1]
    assert (shape["axes"], shape["facts"], shape["floors"]["h200"]["regime"]) == (
        {"rows": 1000},
        {"elements": 4000},
        "memory",
    )
    assert shape["floors"]["h200"]["memory_us"] == pytest.approx(0.0075)
    assert shape["times"]["published"]["latency_us"] == 0.02 and found["sources"] == {"published": {"gpu": "xpu-a"}}


def test_csv_and_markdown(derby, published_set):
    rows = list(csv.DictReader(derby("roofline", "--format", "csv", "--root", published_set)[1].splitlines()))
    assert [(row["operator"], row["importance_percent"], row["regime"], row["of_shapes"]) for row in rows] == [
        (D, "30.0", "M", "2")
    ]
    assert float(rows[0]["shape_middle_floors_h200_floor_us"]) == pytest.approx(0.0075)
    output = derby("roofline", D, "--format", "markdown", "--root", published_set)[1]
    assert "| 4 | 1000 | 4000 | 0.222 | 0.0075 |" in output


def test_it_writes_into_a_page_and_only_between_its_markers(derby, small_set, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- derby roofline {D} --gpu h200 -->\nold\n<!-- /derby -->\nafter\n")
    code, out, err = derby("roofline", D, "--root", small_set, "--write", page)
    assert code == 0 and "written" in err and out == ""
    text = page.read_text()
    assert text.startswith(f"before\n<!-- derby roofline {D} --gpu h200 -->\n")
    assert text.endswith("<!-- /derby -->\nafter\n")
    assert "old" not in text and "| 1000 | 4000 | 0.222 | 0.0075 |" in text
    assert "is up to date" in derby("roofline", D, "--root", small_set, "--write", page)[2]
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "is missing"),
        ("<!-- derby roofline -->\n", "has no <!-- /derby -->"),
        ("<!-- derby roofline -->\n<!-- derby rank -->\n<!-- /derby -->", "has no <!-- /derby -->"),
        ("<!-- derby roofline -->\n<!-- /derby -->\n" * 2, "stands 2 times"),
        ("<!-- derby rooflines -->", "is missing"),
    ],
)
def test_a_page_without_its_markers_stays_as_it_is(derby, small_set, tmp_path, text, said):
    page = tmp_path / "page.md"
    page.write_text(text)
    code, _, err = derby("roofline", "--root", small_set, "--write", page)
    assert code == 1 and str(page) in err and said in err
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h20O"], "did you mean h20"),
        (["scale_rows_h5"], f"did you mean {D}"),
        (["--gpu", "h20", "--traces"], "no row was measured on 'h20'"),
        (["--plot", "s.png"], "there is no S without times"),
        (["--plot", "s.jpg", "--traces"], ".jpg is no picture"),
    ],
)
def test_errors_are_one_line(derby, small_set, arguments, said):
    code, _, err = derby("roofline", *arguments, "--root", small_set)
    assert code == 1 and said in err and err.count("\n") == 1


def test_a_picture_of_nothing_is_refused_before_the_tables(derby, small_set):
    assert derby("roofline", "--plot", "s.png", "--root", small_set)[1] == ""


def test_a_gpu_without_a_peak_for_a_dtype_is_said(derby, small_set):
    code, output, _ = derby("roofline", "--gpu", "h800", "--gpu", "h200", "--root", small_set)
    (row,) = [line.split() for line in output.splitlines() if line.startswith(D)]
    assert code == 0 and row[-2:] == ["n/a", "0.0075"]
    assert f"n/a on h800: its source gives no peak for float32 ({D})" in output
    assert "n/a  n/a" in " ".join(derby("roofline", D, "--gpu", "h800", "--root", small_set)[1].split("\n"))


def test_a_workload_without_cost(derby, small_set):
    path = small_set / f"workloads/toy/{D}.jsonl"
    path.write_text(path.read_text().replace('"cost"', '"costs"'))
    code, _, err = derby("roofline", "--root", small_set)
    assert code == 0 and err.count("\n") == 1 and "cost and of 1 other: is missing; run derby pack" in err


def test_the_picture_is_written(derby, published_set, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "share.png"
    code, output, err = derby("roofline", "--gpu", "xpu-a", "--plot", picture, "--root", published_set)
    assert code == 0 and D in output and f"{picture}: written" in err
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_names_in_a_picture_do_not_lie_on_each_other():
    pytest.importorskip("matplotlib")
    from kernelderby.report.plot import new_figure
    from kernelderby.report.scatter import _keep_apart

    figure, axes = new_figure(Path("s.png"), 8, 4)
    names = [
        axes.annotate(f"operator {index}", (0.5, 0.5), xytext=(7, 5), textcoords="offset points") for index in range(8)
    ]
    _keep_apart(figure, names)
    boxes = [name.get_window_extent() for name in names]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
