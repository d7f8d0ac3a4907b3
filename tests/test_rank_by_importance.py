"""derby rank --importance: authors over all operators, by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from rank_rows import row, workload

from kernelderby.errors import DerbyError
from kernelderby.rank.by_importance import BEST, rank_by_importance
from kernelderby.report import text
from kernelderby.report.importance import importance_report
from kernelderby.roofline.recorded import recorded

AUTHORS = {"a1": "ann", "a2": "ann", "b1": "ann", "a3": "bob", "b2": "bob", "d1": "bob"}
IMPORTANCE = {"alpha": 30.0, "beta": 10.0, "gamma": 60.0}  # gamma has no definition in the set
WORKLOADS = {name: [workload(f"w{index}") for index in (1, 2, 3)] for name in ("alpha", "beta")}  # floors: 10 us
MEASURED = {
    "alpha": {"a1": [20.0, 40.0, 50.0], "a2": [100.0, 100.0, 100.0], "a3": [12.5, None, None]},
    "beta": {"b1": [100.0, 100.0, 100.0], "b2": [50.0, 50.0, None]},
    "delta": {"d1": [1.0]},  # has no importance
}


def rows(**changes):
    return [
        row(solution, f"w{index}", latency, definition=definition, **changes)
        for definition, solutions in MEASURED.items()
        for solution, latencies in solutions.items()
        for index, latency in enumerate(latencies, start=1)
    ]


def ranked(measurements, importance=IMPORTANCE, **options):
    solutions = {
        name: SimpleNamespace(
            name=name,
            author=author,
            has_code=f"hash of {name}".__eq__,
            has_kernels=lambda recorded, uuid, own=f"hash of {name}": recorded == own,
            in_place={},
        )
        for name, author in AUTHORS.items()
    }
    return rank_by_importance(recorded(measurements, solutions, **options), WORKLOADS, solutions, importance)


def test_numbers_worked_out_by_hand():
    """ann: alpha 0.5, 0.25, 0.2 with a1, so 0.25; beta 0.1. bob: alpha 0.8 and two failures: 0.8 where measured, 0 with
    them; beta 0.2 twice and a failure: 0.2 either way. Weights 0.3, 0.1 and 0.6 for gamma, which nobody has."""
    result = ranked(rows())
    best, ann, bob = result.contenders
    assert [each.name for each in result.contenders] == [BEST, "ann", "bob"]
    assert (ann.entries["alpha"].solution, bob.entries["alpha"].solution) == ("a1", "a3")
    assert (ann.share.everywhere, ann.share.measured) == pytest.approx((0.085, (30 * 0.25 + 10 * 0.1) / 40))
    assert (bob.share.everywhere, bob.share.measured) == pytest.approx((0.02, (30 * 0.8 + 10 * 0.2) / 40))
    assert (ann.shapes, bob.shapes, bob.of_shapes) == (6, 3, 6)
    assert (bob.share.operators, bob.share.of_operators, bob.share.weight) == (2, 3, pytest.approx(0.4))
    # Per shape the fastest of all: alpha 0.8, 0.25, 0.2; beta 0.2, 0.2, 0.1.
    assert (best.share.everywhere, best.share.measured) == pytest.approx((0.095, (30 * 0.25 + 10 * 0.2) / 40))
    assert best.entries["alpha"].solution is None
    assert result.left_out == ("delta",) and result.operators == ("alpha", "beta")


def test_the_author_s_solution_is_the_first_of_the_operator_s_order():
    """One that passed everything comes before a faster one that did not."""
    fast_but_broken = [
        row("a2", f"w{index}", latency, definition="alpha", timestamp="2026-11-21T00:00:00Z")
        for index, latency in enumerate((11.0, 11.0, None), start=1)
    ]
    assert ranked(rows() + fast_but_broken).contenders[1].entries["alpha"].solution == "a1"
    fast = [row("a2", f"w{index}", 11.0, definition="alpha", timestamp="2026-11-22T00:00:00Z") for index in (1, 2, 3)]
    assert ranked(rows() + fast_but_broken + fast).contenders[1].entries["alpha"].solution == "a2"


def test_an_author_whose_rows_all_failed_counts_as_zero():
    failed = [row("a3", f"w{index}", None, definition="alpha") for index in (1, 2, 3)]
    bob = next(each for each in ranked(failed).contenders if each.name == "bob")
    assert (bob.share.everywhere, bob.share.measured, bob.share.operators) == (0, None, 0)


def test_one_group_is_ranked_and_the_others_are_named():
    result = ranked([*rows(), row("a1", "w1", 1.0, definition="alpha", protocol="cuda-events")])
    assert (result.group.protocol, [each.protocol for each in result.other_groups]) == ("cupti", ["cuda-events"])
    assert ranked(rows()).contenders == result.contenders
    assert ranked(rows() + rows(protocol="other"), protocol="other").group.protocol == "other"


@pytest.mark.parametrize(
    ("measurements", "words"),
    [
        ([], "no recorded rows; measure with `derby bench`"),
        (rows(gpu="Imaginary 9000"), "the peaks of Imaginary 9000 are unknown"),
        ([row("d1", "w1", 1.0, definition="delta")], "no operator that has one was measured on NVIDIA H200"),
    ],
)
def test_rows_that_cannot_be_ranked_are_an_error(measurements, words):
    with pytest.raises(DerbyError, match=words):
        ranked(measurements)


TEXT = """\
2 operators, weighted by importance
NVIDIA H200 · protocol cupti

Over all operators
                S, missing   S where             importance  shapes
#  author             as 0  measured  operators    measured  passed
───────────────────────────────────────────────────────────────────
-  best of all        9.5%     23.8%        2/3       40.0%     6/6
1  *ann               8.5%     21.2%        2/3       40.0%     6/6
2  bob                2.0%     65.0%        2/3       40.0%     3/6
S: floor over time, the median over an operator's shapes, weighted by importance over operators. best of all: on every
shape the fastest solution of any author.

Each operator: S, and the shapes passed where some were not
                        best
operator  importance  of all     ann           bob
──────────────────────────────────────────────────
alpha          30.0%   25.0%  *25.0%  80.0% of 1/3
beta           10.0%   20.0%   10.0%  20.0% of 2/3
Of each author the solution that stands first in `derby rank --definition OPERATOR`.

- importance as printed adds up to 100.0 %; as a weight each is divided by that sum
- no definition in the set, counted as missing: gamma
- without an importance, left out: delta
"""


def test_the_report_as_text():
    assert text.render(importance_report(ranked(rows()))) == TEXT


@pytest.fixture
def weighted_set(small_set):
    (small_set / "profiles").mkdir()
    (small_set / "profiles/published_importance.csv").write_text("operator,importance_percent\nscale_rows_h4,5\n")
    return small_set


def test_the_command_ranks_authors(derby, weighted_set):
    """toy_fast takes 4 us on both workloads, 36,000 bytes at 4.8 TB/s at least 0.0075 us."""
    code, output, _ = derby("rank", "--importance", "--root", weighted_set, "--json")
    found = json.loads(output)["importance"]
    assert code == 0 and [each["name"] for each in found["contenders"]] == [BEST, "alice", "baseline"]
    assert found["contenders"][1]["share"]["everywhere"] == pytest.approx(0.0075 / 4)
    output = derby("rank", "--importance", "--root", weighted_set)[1]
    assert "1  *alice" in output and "2 rows are of sources that the solution has no more" in output
    only = ("--solutions", "toy_baseline", "--format", "markdown")
    output = derby("rank", "--importance", *only, "--root", weighted_set)[1]
    assert "**baseline**" in output and "alice" not in output


def test_best_of_all_is_what_derby_roofline_says_of_our_traces(derby, weighted_set):
    best = json.loads(derby("rank", "--importance", "--root", weighted_set, "--json")[1])["importance"]["contenders"][0]
    roofline = json.loads(derby("roofline", "--traces", "--root", weighted_set, "--json")[1])
    assert roofline["weighted"]["traces"] == best["share"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--definition", "scale_rows_h4"], 2, "leave out --definition"),
        (["--baseline", "toy_fast"], 2, "leave out"),
        (["--gpu", "h20"], 1, "no row was measured on 'h20'"),
    ],
)
def test_the_command_refuses_wrong_words(derby, weighted_set, arguments, code, words):
    found, output, error = derby("rank", "--importance", *arguments, "--root", weighted_set)
    assert found == code and output == "" and words in error


def test_command_without_importance_in_the_set(derby, small_set):
    code, _, error = derby("rank", "--importance", "--root", small_set)
    assert code == 1 and "has no published_importance.csv" in error and error.count("\n") == 1
