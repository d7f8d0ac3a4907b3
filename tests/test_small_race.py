"""benchmarks/small_race.py: aims and leads by hand, the tables of docs/lab/memory_bound.md."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

import kernelderby
from kernelderby.errors import DerbyError
from kernelderby.rank.model import Cell, WorkloadRow
from kernelderby.rows.measurement import Cost

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def race(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("small_race")
    monkeypatch.setattr(module, "ceilings", lambda: (4.0e6, {"graph": 1.0, "eager": 2.0}))  # bytes per us
    return module


def row(**cells):
    return WorkloadRow("u", "num_tokens=1", {"num_tokens": 1}, 1.0, 1.0, "memory", cells)


def workload(bytes_in_place=None):
    return SimpleNamespace(cost=Cost({}, 6_000_000, 2_000_000, bytes_in_place=bytes_in_place))


def test_aims_by_hand(race):
    assert race.aims(False, 40_000_000, {}) == pytest.approx({"graph": 12.8, "eager": 13.8})
    assert race.aims(True, 40_000_000, {"graph": 30.0, "eager": 9.0}) == {"graph": 15.0, "eager": 7.0}
    assert race.aims(True, 40_000_000, {}) == {"graph": 6.0, "eager": 7.0}


def test_the_best_rival_and_what_has_to_move(race):
    mine = Cell("passed", 3.0, 4.0, outdated=True)
    cells = {"mine": mine, "a": Cell("passed", 6.0, 3.0), "b": Cell("passed", 4.5, 5.0), "c": Cell("raised", 0.1, 0.1)}
    shape = race.shape_of(row(**cells), workload(4_000_000), "mine", {"a", "b", "c"}, False, False)
    assert (shape.rival, shape.best, shape.bytes_needed) == ("b", {"graph": 4.5, "eager": 3.0}, 8_000_000)
    assert shape.lead() == 1.5 and shape.lead("eager") == 0.75 and shape.outdated
    assert not shape.above() and not shape.above("eager")  # 1 + 1.08 * 2 + 1 = 4.16, and 5.16
    assert (
        race.shape_of(row(**cells), workload(4_000_000), "mine", {"a", "b", "c"}, True, False).bytes_needed == 4_000_000
    )
    slow = race.shape_of(row(mine=Cell("passed", 4.2, 5.1)), workload(), "mine", {"a", "b", "c"}, False, False)
    assert slow.above() and not slow.above("eager") and slow.lead() is None and slow.rival == ""


def test_plain_torch_is_a_rival_where_no_library_was_timed_anywhere(race):
    timed, failed = Cell("passed", 2.0, 2.0), Cell("raised")
    authors = {"mine": "kernelderby", "a": "vllm", "b": "fla", "torch": "baseline"}
    rows = [row(mine=timed, a=failed, torch=timed), row(mine=timed, a=timed, b=failed, torch=timed)]
    assert race.rivals_of(rows, authors) == {"a"}
    assert race.rivals_of(rows[:1], authors) == {"a", "b", "torch"}


def test_every_miss_is_told(race):
    shapes = [
        race.shape_of(
            row(mine=Cell("passed", 5.0, 5.0), a=Cell("passed", 4.5, 8.0)),
            workload(),
            "mine",
            {"a", "b", "c"},
            False,
            False,
        ),
        race.shape_of(row(a=Cell("passed", 4.5, 5.0)), workload(), "mine", {"a", "b", "c"}, False, False),
    ]
    lines = race.missed("op", shapes)
    assert lines == [
        "op: graph: 0.900 over the best rival, aim 1.1",
        "op num_tokens=1: graph 5.00 us, aim 4.16",
        "op num_tokens=1: graph 0.900 over a, aim 0.97",
        "op num_tokens=1: not measured",
    ]
    text = race.page_text({"op": shapes})
    assert "| op | 1 of 2 | 0.90 (0.90) | 1.60 (1.60) | 1.50 | 1 | 1 | 8 | 1.60 |" in text
    assert "graph: 0.90 over 1 operator with a rival, worst shape 0.90." in text
    assert "| num_tokens=1 | 8 | 3.00 | 4.16 | 5.00 (5.00) | 4.50 (8.00) a | **0.90** | 2.00 ! |" in text
    assert "| num_tokens=1 | 8 | 3.00 | 4.16 | - | 4.50 (5.00) a | - | - |" in text


def test_a_page_without_its_markers(race):
    assert race.replaced(f"a\n{race.OPENING}\nold\n{race.CLOSING}\nb\n", "new") == (
        f"a\n{race.OPENING}\nnew\n{race.CLOSING}\nb\n"
    )
    with pytest.raises(DerbyError, match="has no lines"):
        race.replaced(f"a\n{race.OPENING}\nb\n", "new")


def test_the_page_shows_the_traces(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    race = importlib.import_module("small_race")
    trace_set = kernelderby.open(ROOT)
    found = {operator: race.shapes_of(trace_set, operator) for operator in (*race.ONE_PASS, *race.SELECTING)}
    assert len(found) == 19 and all(found.values())
    page = race.PAGE.read_text(encoding="utf-8")
    assert race.replaced(page, race.page_text(found)) == page, "stale: python benchmarks/small_race.py --write"
