"""Tables and traces of profilers with impossible numbers, and very long pages."""

import json

import pytest
from mutating import run

TABLE = (
    'Time (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,{total},{count},{average},gemm\n40.0,400,4,100.0,"copy"\n'
)
HUGE = ["1e400", "-1e400", "9" * 400, "1" + "0" * 5000, "1e-400000", "٥", "1_000", "0x10", "True", "inf", "x" * 100_000]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("place", ["total", "count", "average"])
def test_a_number_beyond_measure(tmp_path, place, value):
    cells = {"total": "600", "count": "6", "average": "100.0", place: value}
    (tmp_path / "table.csv").write_text(TABLE.format(**cells))
    outcome = run("profile", "kernels", tmp_path / "table.csv")
    assert outcome.code == 1 and "table.csv:2: " in outcome.err and "; " in outcome.err and len(outcome.err) < 400


def test_a_page_of_blanks_before_a_table(tmp_path):
    """run() looks at the time, which grew with the square of the lines."""
    fine = TABLE.format(total=600, count=6, average=100.0)
    for before in (
        "\n" * 300_000,
        " " * 300_000 + "\n",
        ":" * 300_000 + "\n",
        "GPU" + ":" * 300_000 + "\n",
        "(" * 300_000 + "\n",
    ):
        (tmp_path / "table.csv").write_text(before + fine)
        assert "gemm" in run("profile", "kernels", tmp_path / "table.csv").out


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("GPU: NVIDIA H200", "NVIDIA H200"),
        ("**GPU**: NVIDIA H200 (SXM, 141 GB)", "NVIDIA H200"),
        ("# gpu = NVIDIA H100 PCIe.", "NVIDIA H100 PCIe"),
    ],
)
def test_the_gpu_of_a_page(tmp_path, line, gpu):
    (tmp_path / "table.csv").write_text(f"{line}\n\n" + TABLE.format(total=600, count=6, average=100.0))
    assert f"CSV · {gpu} ·" in " ".join(run("profile", "kernels", tmp_path / "table.csv").out.split())


def test_a_trace_with_a_number_of_thousands_of_digits(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 3, "args": {}}
    text = json.dumps({"schemaVersion": 1, "traceEvents": [event]}).replace('"dur": 3', f'"dur": {"9" * 5000}')
    (tmp_path / "trace.json").write_text(text)
    outcome = run("profile", "kernels", tmp_path / "trace.json")
    assert outcome.code == 1 and "thousands of digits" in outcome.err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1.0", "true", "1e300"])
@pytest.mark.parametrize("place", ["rows", "printed"])
def test_a_module_table_with_what_is_no_time(tmp_path, checkout, place, value):
    """TOML has nan and inf."""
    lines = (checkout / "profiles/deepseek_d4_decode.toml").read_text().splitlines()
    mark = "h800 = " if place == "rows" else "value = "
    at = next(number for number, line in enumerate(lines) if mark in line)
    head, _, rest = lines[at].partition(mark)
    lines[at] = f"{head}{mark}{value}{rest[len(rest) - len(rest.lstrip('0123456789.')) :]}"
    (tmp_path / "table.toml").write_text("\n".join(lines))
    outcome = run("profile", "layers", tmp_path / "table.toml", "--json")
    assert outcome.code == 1 and "table.toml: " in outcome.err


@pytest.mark.parametrize(
    "text",
    [
        "with [" * 200_000,
        f"with [{'a' * 1_000_000}",
        "**" + "(" * 500_000,
        "#" * 1_000_000,
        f"a|b\n|{'-' * 1_000_000}x",
    ],
    ids=["paths", "path", "titles", "headings", "rule"],
)
def test_a_line_without_end_is_read_once(tmp_path, text):
    """Each of these took the square of its length, or its cube. run() fails after ten seconds."""
    path = tmp_path / "t.csv"
    path.write_text(f"{text}\n")
    assert "is no profile that derby knows" in run("profile", "kernels", path).err


def test_a_module_table_of_very_many_rows(tmp_path):
    path = tmp_path / "t.md"
    rows = "".join(f"| g | m{number % 50} | k | 5us |\n" for number in range(10_000))
    path.write_text(f"| 组 | 模块 | kernel | 耗时 |\n|---|---|---|---|\n{rows}")
    outcome = run("profile", "layers", path, "--json")
    assert outcome.code == 0 and outcome.out.count("k (200)") == 50
