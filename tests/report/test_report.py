"""Renderers on small models, to the letter."""

from __future__ import annotations

import json
import time
from pathlib import Path

from msgspec.structs import replace
from rank_rows import ranked, row, rows, workload

from kernelderby.report import markdown, text
from kernelderby.report.model import Column, Report, Table, TableCell
from kernelderby.report.numbers import factor, microseconds
from kernelderby.report.ranking.races import rankings_answer
from kernelderby.report.ranking.tables import ranking_report
from kernelderby.rows.measurement import Status

TABLE = Table(
    "Times",
    (Column("name", "left"), Column("median us"), Column("share_of_all")),
    (
        (TableCell("a|b"), TableCell("1.5", "best"), TableCell("10%")),
        (TableCell("c"), TableCell("timed out", "bad"), TableCell("-", "muted")),
    ),
    caption="Lower is better.",
)
REPORT = Report("title", ("GPU · protocol",), (TABLE,), ("a note with `code`",))

TEXT = """\
title
GPU · protocol

Times
                 share_
name  median us  of_all
───────────────────────
a|b        *1.5     10%
c     timed out       -
Lower is better.

- a note with `code`
"""
MARKDOWN = """\
**title**

GPU · protocol

Times

| name | median us | share_of_all |
| :-- | --: | --: |
| a\\|b | **1.5** | 10% |
| c | *timed out* | - |

<sub>Lower is better.</sub>

- a note with `code`
"""


def test_a_report_as_text():
    assert text.render(REPORT) == TEXT


def test_a_report_as_markdown():
    assert markdown.render(REPORT) == MARKDOWN


def test_color_is_only_for_terminals():
    assert "\x1b[" in text.render(REPORT, color=True) and "\x1b[" not in text.render(REPORT)


def test_narrow_text_splits_the_columns_and_repeats_the_key():
    narrow = text.render(REPORT, width=18)
    assert [line for line in narrow.splitlines() if line.startswith("a|b")] == ["a|b        *1.5", "a|b      10%"]


def small_ranking():
    """Two complete solutions, one that times out on seq_len=2 and is outdated on seq_len=1, one never measured."""
    measured = rows(fast=[20.0, 40.0, 400.0], steady_but_slow=[40.0, 80.0, 300.0])
    measured.append(row("broken", "w1", 9000.0, solution_hash="gone"))
    measured.append(row("broken", "w2", None))
    measured.append(row("broken", "w3", None, status=Status.WRONG_VALUES))
    environment = {"driver": "580.1", "commit": "0123456"}
    names = ["fast", "steady_but_slow", "broken", "never"]
    return ranked([replace(each, environment=environment) for each in measured], names=names)


RANKING_TEXT = """\
operator
NVIDIA H200 · protocol cupti · measured 2026-11-20 · driver 580.1 · commit 0123456

Over all workloads (baseline fast; all workloads alike)
                                time vs baseline  total  total vs  win tie loss   win  fastest
#  solution         passed        geomean [95 %]     ms  baseline   vs baseline  rate       on     S  S total
─────────────────────────────────────────────────────────────────────────────────────────────────────────────
1  *fast               3/3          1 (baseline)  0.460         1             -     -        2   25%     6.5%
2  steady_but_slow     3/3  1.442 [1.442, 1.442]  0.420      0.91         1 0 2   33%        1   12%     7.1%
3  broken              1/3        450 [450, 450]  9.000       450         0 0 1    0%        0  0.1%     0.1%
-  never               0/3          not measured      -         -             -     -        -     -        -
Ratios: below 1 is faster, over the workloads that both passed; total: of those passed. S: floor over time, the median.

Each workload: median us, and time over that of fast
          floor             steady_                         second over
seq_len      us   fast     but_slow        broken          first [95 %]
───────────────────────────────────────────────────────────────────────
      1  10.0 M  *20.0    40.0 2.00     9000† 450  2.000 [2.000, 2.000]
      2  10.0 M  *40.0    80.0 2.00     timed out  2.000 [2.000, 2.000]
      3  10.0 M  400.0  *300.0 0.75  wrong values  1.333 [1.333, 1.333]
M floor set by memory; = tie (the interval holds 1); † outdated sources

- baseline: fast, the first in the order (--baseline names another)
- † outdated: measured with sources that the solution has no more, no row of the present ones: broken (1); run `derby
  bench`
- fast is first by geomean, steady_but_slow by total time (0.913 of fast's)
- broken passed 1 of 3 workloads: 1 timed out, 1 wrong values
- not measured on NVIDIA H200: never
"""


def test_ranking_as_text():
    assert text.render(ranking_report(small_ranking())) == RANKING_TEXT


def test_six_solutions_fit_a_pipe():
    latencies = {f"solution_number_{index}": [14107.3 * index, 100.0 * index] for index in range(1, 7)}
    result = ranked(rows(**latencies), [workload("w1"), workload("w2")])
    lines = text.render(ranking_report(result)).splitlines()
    assert max(map(len, lines)) <= 120
    assert sum(line.lstrip().startswith(("seq_len", "#")) for line in lines) == 2  # no table is split


def test_numbers_keep_four_digits_or_fewer():
    assert [factor(each) for each in (0.5, 1.314, 12.34, 190.2)] == ["0.50", "1.31", "12.3", "190"]
    assert [microseconds(each) for each in (2.294, 50.04, 14107.3)] == ["2.29", "50.0", "14107"]


def test_json_takes_what_records_hold():
    import numpy as np

    from kernelderby.report.answer import to_json

    data = {
        "a": np.float64(1.5),
        "b": [np.int64(2), float("nan"), -float("inf")],
        "c": "†\U0001f600",
        "d": Path("x"),
        3: (),
    }
    text = to_json(data)
    assert text.isascii()
    assert json.loads(text) == {"a": 1.5, "b": [2, None, None], "c": "†\U0001f600", "d": "x", "3": []}
    assert json.loads(to_json({"half a pair": "\udc80", "b": float("nan")})) == {"half a pair": "\udc80", "b": None}


def test_tables_of_thousands_of_solutions_take_no_longer_a_solution():
    """Four times as many would take sixteen times as long if each looked at all others."""

    def seconds(solutions):
        answer = rankings_answer([ranked([row(f"s{i:04}", "w1", 10.0 + i % 7) for i in range(solutions)], 1)])
        begin = time.process_time()
        assert answer.to_text(80).count("\n") > solutions
        return time.process_time() - begin

    seconds(50)
    assert min(seconds(4000) for _ in range(3)) < 9 * max(0.02, *(seconds(1000) for _ in range(3)))
