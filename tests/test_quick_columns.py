"""Columns taken from lines at once are those of the rows of load_rows(); refusals have the same words."""

import copy
import json

import pytest

pytest.importorskip("pyarrow")

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns import batches
from kernelderby.catalog.columns.write import Columns
from kernelderby.catalog.traces import load_rows
from kernelderby.errors import DerbyError
from kernelderby.store.fields import EXPLAINED, lines_in

INSTEAD = (None, "other", " ", "", -1, 0, 1e300, 2**70, True, [], [[]], {}, {"other": None}, "\u0001", "NaN", "2026")


@pytest.fixture(scope="module")
def around(checkout):
    """The path and the surroundings that its rows are compared with; a row that passed and one that failed."""
    path = checkout / "traces/h200/norm/rms_norm.jsonl"
    catalog = Catalog.open(checkout)
    definition = catalog.definition("rms_norm")
    known = {each.uuid: each for each in catalog.workloads("rms_norm")}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    passed = next(row for row in reversed(rows) if len(row["measurement"].get("times", {})) == 3)
    for time in passed["measurement"]["times"].values():
        time["samples_us"] = [[time["median_us"]] * 2] * 2
    failed = copy.deepcopy(passed)
    failed["evaluation"] |= {"status": "RUNTIME_ERROR", "performance": None, "log": "it\nbroke"}
    failed["measurement"] |= {"status": "raised", "latency_us": None, "samples_us": [], "setup": {"seconds": 1.5}}
    for name in ("times", "host_us", "wall_us"):
        failed["measurement"].pop(name, None)
    return (path, known, ("h200", "norm"), definition), passed, failed


def read(around, text, by_line):
    """The columns, and what was left out."""
    (path, known, place, definition), problems = around, []
    lines = lines_in(text.encode() if isinstance(text, str) else text)
    try:
        if not by_line:
            columns = batches.columns_of(path, known, problems.append, lines, place, definition)
        else:
            columns = Columns()
            columns.add_rows(load_rows(path, known, problems.append, lambda _: None, place, definition, lines))
    except DerbyError as error:  # then no columns are kept
        return str(error), problems, ()
    parts = columns.medians, columns.of_medians, columns.samples, columns.of_samples, columns.newest()
    return columns.cells, parts, (len(problems), problems[:EXPLAINED])  # later ones are told briefly, or not


def expect_the_same(around, text):
    quickly = read(around, text, by_line=False)
    assert quickly == read(around, text, by_line=True), text
    return bool(quickly[2] and quickly[2][0])


def changed(row):
    """The row with each of its fields gone, doubled, or something else."""

    def nodes(value, *path):
        yield from [path] if path else []
        items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
        for key, each in items:
            yield from nodes(each, *path, key)

    for path in nodes(row):
        holder = row
        for key in path[:-1]:
            holder = holder[key]
        was = holder[path[-1]]
        more = (was * 1.02, was / 30, was * 30) if isinstance(was, float) else ()
        for value in (*(INSTEAD if path[-2:-1] != ("libs",) else INSTEAD[:6]), *more):
            holder[path[-1]] = value
            yield json.dumps(row)
        holder[path[-1]] = was
        if isinstance(holder, dict):
            kept = list(holder.items())
            del holder[path[-1]]
            yield json.dumps(row)
            holder.clear()
            holder.update(kept)


def test_rows_that_are_fine_are_not_judged_one_by_one(around, monkeypatch):
    held, passed, failed = around
    fine = "\n".join(map(json.dumps, (passed, failed, passed))) + "\n"
    assert not expect_the_same(held, fine)
    monkeypatch.setattr(batches, "load_rows", None)
    assert len(read(held, fine, by_line=False)[0]["line"]) == 3


def test_what_load_rows_refuses_is_refused_in_the_same_words(around):
    held, *rows = around
    refused = [expect_the_same(held, text) for row in rows for text in changed(copy.deepcopy(row))]
    assert 0.3 < sum(refused) / len(refused) < 0.9


@pytest.mark.parametrize("fewest", (1, 40))
def test_a_broken_line_among_fine_ones(around, fewest):
    held, passed, failed = around
    fine, broken = json.dumps(passed), json.dumps(failed | {"solution": " blank"})
    twice = fine.replace('"environment": {', '"environment": {"hardware": ""}, "environment": {', 1)
    bad_text = fine.encode().replace(b'"secret": "', b'"secret": "\xff')
    for odd in (broken, "{cut", "", " ", twice):
        text = "\n".join([fine] * 300 + [odd] * fewest + [fine] * 3)
        assert expect_the_same(held, text) == bool(odd.strip())
    expect_the_same(held, bad_text)


@pytest.mark.parametrize("kinds", (("eager", "graph", "busy"), ("graph",), ("busy",), ()))
def test_times_that_are_too_short_for_the_hardware(around, kinds):
    held, row, _ = around
    row = copy.deepcopy(row)
    own, performance = row["measurement"], row["evaluation"]["performance"]
    own["times"] = {kind: {"median_us": 0.01, "samples_us": [[0.01]]} for kind in kinds}
    own |= {"latency_us": 0.01, "reference_latency_us": 0.01}
    performance |= {"latency_ms": 1e-5, "reference_latency_ms": 1e-5, "speedup_factor": 1.0}
    assert expect_the_same(held, json.dumps(row))
