"""The way out: formats, tables of a CSV, --write beside --json, colour, width, encodings, control characters."""

import csv
import json
import os
import pty
import subprocess
import sys
from io import StringIO

import pytest

from kernelderby.cli.output import has_color

D = "scale_rows_h4"
TABLES = [
    ["list"],
    ["show", D],
    ["rank"],
    ["roofline"],
    ["roofline", D],
    ["doctor"],
    ["profile", "stages"],
    ["profile", "kernels"],
    ["profile", "whatif"],
    ["profile", "compare"],
    ["profile", "layers"],
]


@pytest.fixture
def run(derby, small_set, checkout, asked_once):
    """A verb on the small set, those of profiles on the checkout's published files."""
    table, layers = checkout / "profiles/triton_fused_v2_b200.csv", checkout / "profiles/deepseek_d4_decode.toml"
    files = {
        "stages": [table, "--solution", "triton_fused_v2"],
        "whatif": [table, "--solution", "triton_fused_v2"],
        "kernels": [table],
        "compare": [table, table],
        "layers": [layers],
    }

    def call(words, *more, **options):
        if words[0] != "profile":
            return derby("--root", small_set, *words, *more, **options)
        return derby("--root", checkout, *words, *files[words[1]], *more, **options)

    return call


@pytest.mark.parametrize("words", TABLES, ids=" ".join)
def test_every_verb_with_a_table_has_every_format(run, words):
    assert run(words, "--json")[1] == run(words, "--format", "json")[1]
    json.loads(run(words, "--json")[1])
    assert run(words)[1] == run(words, "--format", "text")[1]
    code, out, _ = run(words, "--format", "markdown")
    assert code == 0 and out.startswith("**") and "| :-- |" in out
    rows = list(csv.reader(StringIO(run(words, "--format", "csv")[1])))
    assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}
    assert all(name and name != "#" for name in rows[0]) and len(set(rows[0])) == len(rows[0])


@pytest.mark.parametrize("words", TABLES, ids=" ".join)
def test_pandas_reads_the_csv_without_arguments(run, words):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(StringIO(run(words, "--format", "csv")[1]))
    assert len(frame) and not any(str(name).startswith("Unnamed") for name in frame.columns)


def test_rank_has_a_rank_and_numbers(run):
    first = next(csv.DictReader(StringIO(run(["rank"], "--format", "csv")[1])))
    assert first["rank"] == "1" and float(first["total_us"]) == 8.0


def test_table_chooses_the_csv_and_wants_one(run):
    names = {
        row["solution"]
        for row in csv.DictReader(StringIO(run(["show", D], "--format", "csv", "--table", "solutions")[1]))
        if row.get("solution")
    }
    assert not names  # the column is `name`, as in the JSON
    out = run(["show", D], "--format", "csv", "--table", "solutions")[1]
    assert [row["name"] for row in csv.DictReader(StringIO(out))] == ["toy_baseline", "toy_fast"]
    code, out, err = run(["show", D], "--table", "solutions")
    assert code == 2 and out == "" and "--table goes with --format csv" in err
    assert run(["rank"], "--format", "csv", "--table", "authors")[0] == 1  # only with --importance


@pytest.mark.parametrize(
    ("asked", "begin"),
    [(["--json"], "{"), (["--format", "csv"], "definition,"), (["--format", "markdown"], "**"), ([], "")],
)
def test_what_was_asked_for_is_printed_beside_write(derby, small_set, tmp_path, asked, begin):
    page = tmp_path / "page.md"
    page.write_text("<!-- derby rank -->\n<!-- /derby -->\n")
    code, out, err = derby("rank", *asked, "--write", page, "--root", small_set)
    assert code == 0 and out.startswith(begin) and bool(out) == bool(asked) and "block rank written" in err
    assert "| toy_baseline |" in page.read_text()


def test_infinity_is_null(derby, small_set, tmp_path):
    """A stage that is the whole pipeline: free, there is no bound to the speedup."""
    from kernelderby.report.answer import to_json

    assert json.loads(to_json({"a": float("inf"), "b": [float("nan"), -float("inf"), 1.5]})) == {
        "a": None,
        "b": [None, None, 1.5],
    }
    table = tmp_path / "one.csv"
    table.write_text("Time (%),Total Time (ns),Instances,Name\n100,1000,1,moe_fused_gate_kernel\n")
    solution = small_set / f"solutions/alice/toy/{D}/toy_fast/solution.toml"
    solution.write_text(
        solution.read_text().split("[[stages]]")[0] + '[[stages]]\nname = "K1"\ntitle = "all"\nkernels = ["moe"]\n'
    )
    code, out, err = derby("profile", "whatif", table, "--solution", "toy_fast", "--json", "--root", small_set)
    assert code == 0, err
    assert json.loads(out)["whatif"][0]["stages"][0]["gone"] is None
    rows = derby("profile", "whatif", table, "--solution", "toy_fast", "--format", "csv", "--root", small_set)[1]
    assert next(csv.DictReader(StringIO(rows)))["gone"] == ""


# Terminal, width, colour, encoding ------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_take_it(monkeypatch, environment, expected):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert has_color(Terminal()) is expected and not has_color(StringIO())


def on_a_terminal(words, **environment):
    """The command's output to a terminal."""
    master, slave = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "kernelderby", *map(str, words)],
        stdout=slave,
        stderr=slave,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
    ) as process:
        os.close(slave)
        read = b""
        try:
            while part := os.read(master, 65536):
                read += part
        except OSError:  # the other end is closed
            pass
        process.wait(timeout=60)
    os.close(master)
    return read.decode()


def test_a_terminal_gets_colour_unless_it_declined(small_set):
    words = ["rank", "--root", small_set]
    assert "\x1b[" in on_a_terminal(words, TERM="xterm-256color", COLUMNS="100")
    assert "\x1b[" not in on_a_terminal(words, TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(words, TERM="dumb")


def test_the_page_says_on_a_terminal_what_takes_so_long(small_set, tmp_path):
    told = on_a_terminal(["report", tmp_path / "x.html", "--root", small_set], TERM="xterm-256color", COLUMNS="100")
    assert "building the page" in told and "x.html: written" in "".join(told.split("\r\n"))


def test_a_pipe_has_80_columns(checkout):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "kernelderby", "list", "--root", checkout],
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("operator ") for line in lines) == 1  # one table, not four below each other
    assert sum(line.startswith("moe_fp8_bl") for line in lines) == 1 and any(
        "left out, too wide: op_type" in line for line in lines
    )


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_asked(run, columns):
    for words in (["list"], ["rank"], ["roofline"], ["profile", "stages"], ["profile", "layers"]):
        assert max(map(len, run(words, columns=columns)[1].splitlines())) <= columns, words


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
@pytest.mark.parametrize("words", [["list"], ["rank"], ["roofline"], ["show", D], ["list", "--format", "markdown"]])
def test_any_encoding_of_stdout_will_do(small_set, encoding, words):
    definition = small_set / f"definitions/toy/{D}.json"
    data = json.loads(definition.read_text())
    definition.write_text(json.dumps(data | {"description": "Zeilen × Faktor – 行 \udc80"}))
    done = subprocess.run(
        [sys.executable, "-m", "kernelderby", *words, "--root", small_set],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    done.stdout.decode(encoding)


# Texts of others ------------------------------------------------------------------------------------------------------

ESCAPE = "evil\x1b]0;owned\x07\x9b31m name\u202e\u2066\r\n| x | <!-- /derby --> `a` [b](http://c) </sub>"


@pytest.fixture
def hostile_set(small_set):
    """Descriptions, a driver and messages that hold escape sequences, line breaks, cells and markers."""
    path = small_set / f"definitions/toy/{D}.json"
    data = json.loads(path.read_text())
    data["description"] = data["axes"]["rows"]["description"] = ESCAPE
    path.write_text(json.dumps(data))
    solution = small_set / f"solutions/alice/toy/{D}/toy_fast/solution.toml"
    solution.write_text(solution.read_text().replace('description = "', f'description = {json.dumps(ESCAPE)} #"', 1))
    traces = small_set / f"traces/h200/toy/{D}.jsonl"
    rows = [json.loads(line) for line in traces.read_text().splitlines()]
    for row in rows:
        row["measurement"].setdefault("environment", {})["driver"] = ESCAPE
        row["evaluation"]["log"] = ESCAPE
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return small_set


@pytest.mark.parametrize("style", ["text", "markdown", "csv", "json"])
@pytest.mark.parametrize("words", [["show", D], ["rank"], ["list"]])
def test_control_characters_reach_no_renderer(derby, hostile_set, style, words):
    code, out, err = derby(*words, "--format", style, "--root", hostile_set)
    assert code == 0 and out
    unseen = "\u200b" if style == "markdown" else ""  # breaks what GitHub would make of a name
    assert all(letter.isprintable() or letter in f"\n{unseen}" for letter in out + err)


def test_a_newline_breaks_no_table(derby, hostile_set):
    out = derby("show", D, "--format", "markdown", "--root", hostile_set)[1]
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert any("evil" in row for row in rows)
    assert all(row.endswith(" |") for row in rows) and "<!-- /derby" not in out and "](http" not in out


def test_a_page_does_not_grow_by_what_it_shows(derby, hostile_set, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- derby rank -->\n<!-- /derby -->\nafter\n")
    sizes = []
    for _ in range(3):
        assert derby("rank", "--write", page, "--root", hostile_set)[0] == 0
        sizes.append(page.stat().st_size)
    assert len(set(sizes)) == 1 and page.read_text().count("<!-- /derby -->") == 1
    assert page.read_text().endswith("<!-- /derby -->\nafter\n") and "--&gt;" in page.read_text()


def test_an_error_is_one_line_without_control_characters(derby, small_set):
    code, _, err = derby("show", "a\x1b[31m\nb", "--root", small_set)
    assert code == 1 and err.count("\n") == 1 and "\x1b" not in err
