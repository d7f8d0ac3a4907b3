"""Numbers, plain texts, tidy frames: small and to the letter."""

import csv
from dataclasses import dataclass

import pytest

from kernelderby.report import markdown
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Column, Report, Table, TableCell
from kernelderby.report.numbers import amount, factor, floor_us, intensity, microseconds, milliseconds, percent
from kernelderby.report.plain import plain


@pytest.mark.parametrize(
    ("write", "values", "texts"),
    [
        (microseconds, (0.5, 2.294, 50.04, 999.96, 14107.3), ("0.50", "2.29", "50.0", "1000.0", "14107")),
        (floor_us, (0.0051211, 9.1821, 45.44, 1514.4), ("0.005121", "9.182", "45.44", "1514")),
        (milliseconds, (8.6e6, 10.4e6, 2602.7e6), ("8.600", "10.4", "2602.7")),
        (factor, (0.5, 1.314, 12.34, 190.2), ("0.50", "1.31", "12.3", "190")),
        (percent, (0.3401, 0.0071, 0.0003, 0.00004, 0.0), ("34.0%", "0.7%", "0.03%", "0.004%", "0.0%")),
        (intensity, (0.0625, 103.4, 15396.2), ("0.0625", "103", "15396")),
        (amount, (0.5, 99.94, 531.2), ("0.5", "99.9", "531")),
    ],
)
def test_numbers_are_written_with_their_digits(write, values, texts):
    assert tuple(map(write, values)) == texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, μs · † — 行", "plain, μs · † — 行"),
        ("a\x1b[31mred\x1b[0m", "a[31mred[0m"),
        ("title\x1b]0;x\x07", "title]0;x"),
        ("two\r\nlines\ttab", "two  lines tab"),
        ("\x9b31m\x7f\x00", "31m"),
        ("a\u202eb\u2066c\u200bd\ufeff", "abcd"),
        ("\ud800\udc80", ""),
        ("a\u2028b\u00a0c", "a b c"),
    ],
)
def test_plain_text_loses_its_markup(text, expected):
    assert plain(text) == expected


def test_a_report_is_plain_in_every_part():
    cell = TableCell("a\nb\x1b")
    report = Report("t\x07", ("f\n",), (Table("T\x1b", (Column("c\n"),), ((cell,),), "k\x1b"),), ("n\x00",))
    (table,) = report.tables
    assert (
        report.title,
        report.facts,
        report.notes,
        table.title,
        table.caption,
        table.columns[0].title,
        cell.text,
    ) == ("t", ("f ",), ("n",), "T", "k", "c ", "a b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<!-- /derby -->", "&lt;!-- /derby --&gt;"),
        ("a|b", "a\\|b"),
        ("*x* ~y~", "\\*x\\* \\~y\\~"),
        ("kernel<int>", "kernel\\<int>"),
        ("[a](http://b)", "[a]\\(http:\u200b//b)"),
        ("&#124;", "&amp;#124;"),
        ("`a", "\\`a"),
        ("a & b", "a & b"),
    ],
)
def test_cells_are_no_markdown(text, expected):
    table = Table("T", (Column("c", "left"),), ((TableCell(text),),))
    assert f"| {expected} |" in markdown.render(Report("t", (), (table,)))


@dataclass
class Inner:
    low: float
    names: tuple[str, ...]


@dataclass
class Outer:
    name: str
    inner: Inner | None
    parts: tuple[Inner, ...]
    ratio: float


def test_a_frame_is_flat_and_has_one_value_a_column():
    rows = [Outer("a,b\n", Inner(1.5, ("x", "y")), (Inner(1, ()),), float("inf")), Outer("c", None, (), 0.1)]
    found = frame("outer", rows)
    assert found.columns == ("name", "inner_low", "inner_names", "ratio")
    assert found.to_dicts()[1] == {"name": "c", "inner_low": None, "inner_names": None, "ratio": 0.1}
    assert found.to_csv() == 'name,inner_low,inner_names,ratio\n"a,b ",1.5,"x, y",\nc,,,0.1\n'


@pytest.mark.parametrize("text", ["=1+1", "@sum(1)", "+cmd|' /C calc'!A0", "-1+1", "\t=1", "＝1", "\r@x"])
def test_a_spreadsheet_computes_nothing_of_a_csv(text):
    header, line = csv.reader(Frame("t", [{text: text, "us": -1.5}]).to_csv().splitlines())
    assert header[0].startswith("'") and line == [header[0], "-1.5"]


@pytest.mark.parametrize("text", ["-", "-1.5", "+2e-3", "+1.2 %", "a=b", "a-b", ""])
def test_numbers_and_names_of_a_csv_stay(text):
    assert Frame("t", [{"a": text, "b": 1}]).to_csv() == f"a,b\n{text},1\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@owner look", "@\u200bowner look"),
        ("fixes #12", "fixes #\u200b12"),
        ("see GH-3", "see GH-\u200b3"),
        ("http://a.b and www.a.b", "http:\u200b//a.b and www\u200b.a.b"),
        ("a@b.c", "a@\u200bb.c"),
        ("#1", "#1"),
        ("6.5 x [2, 4]", "6.5 x [2, 4]"),
    ],
)
def test_nobody_is_called_by_a_page(text, shown):
    table = Table("t", (Column("a", "left"),), ((TableCell(text),),))
    assert f"\n| {shown} |\n" in markdown.render(Report("r", (), (table,)))


@pytest.mark.parametrize("text", ["# h", "- a", "> a", "1. a", "1) a", "```", "    code", "===", "[a]: /b", "---"])
def test_a_fact_or_note_begins_nothing(text):
    """Over its own line, or over all that follows."""
    lines = markdown.render(Report("r", ("first", text), (), (text,))).splitlines()
    shown = [lines[3], lines[5].lstrip().removeprefix("- ")]
    assert [each.replace("\\", "", 1) for each in shown] == [text.strip()] * 2
    assert all("\\" in each[:2] for each in shown) or text == "    code"
