"""Rows checked many at once: accepted like row.Row accepts them, and refused with its words."""

import copy
import functools
import json
import operator
import pickle
import random

import msgspec
import pytest

from kernelderby.catalog.traces import load_rows
from kernelderby.rows import bulk as quick
from kernelderby.rows.measurement import Measurement
from kernelderby.rows.row import Row
from kernelderby.rows.samples import Samples
from kernelderby.store.fields import read_jsonl


def of_rows(path):
    """The slow way's rows of a file, and its refusals."""
    problems, rows = [], []
    for where, line in read_jsonl(path, Row, problems.append):
        rows.append(Measurement.from_row(line, where))
    return rows, problems


def of_many(path):
    problems = []
    return load_rows(path, {}, problems.append, lambda note: None), problems


def test_recorded_rows_are_the_same_either_way(checkout):
    paths = sorted((checkout / "traces").rglob("*.jsonl"))[::4]
    assert paths
    for path in paths:
        rows, problems = of_rows(path)
        assert of_many(path) == (rows, problems) and rows


def test_a_row_that_was_read_can_be_copied_kept_and_written(checkout):
    path = next((checkout / "traces/h200").rglob("rms_norm.jsonl"))
    for row, line in zip(of_many(path)[0], path.read_text().splitlines(), strict=True):
        assert json.loads(json.dumps(row.to_trace()))["measurement"].items() <= json.loads(line)["measurement"].items()
    assert pickle.loads(pickle.dumps(row)) == copy.deepcopy(row) == row
    assert msgspec.structs.asdict(row)["times"]["graph"].samples_us == row.times["graph"].samples_us


@pytest.fixture
def lines(checkout):
    path = next((checkout / "traces/h200").rglob("rms_norm.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [next(row for row in rows if row["measurement"]["protocol"].endswith(end)) for end in ("-1", "-2")]


CHANGES = {
    "another median": lambda times, own: times.update(median_us=times["median_us"] * 1.01),
    "a round without a time": lambda times, own: times["samples_us"].append([]),
    "no rounds": lambda times, own: times.update(samples_us=[]),
    "a time of zero": lambda times, own: times["samples_us"][0].__setitem__(0, 0),
    "a time below zero": lambda times, own: times["samples_us"][1].__setitem__(0, -3.5),
    "a text": lambda times, own: times["samples_us"][0].__setitem__(0, "3"),
    "true": lambda times, own: times["samples_us"][0].__setitem__(0, True),
    "null": lambda times, own: times["samples_us"][0].__setitem__(0, None),
    "a list too much": lambda times, own: times["samples_us"][0].__setitem__(0, [1.0]),
    "a list too few": lambda times, own: times.update(samples_us=[1.0]),
    "an object": lambda times, own: times.update(samples_us={}),
    "beyond measure": lambda times, own: times.update(samples_us=[[10**400]]),
    "samples beside the eager ones": lambda times, own: own.update(samples_us=[[-1.0]]),
    "another latency": lambda times, own: own.update(latency_us=own["latency_us"] * 1.1),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("protocol", [1, 2])
def test_what_row_refuses_is_refused_with_its_words(tmp_path, lines, what, protocol):
    broken = copy.deepcopy(lines[protocol - 1])
    own = broken["measurement"]
    times = own["times"]["graph"] if protocol == 2 else own
    if protocol == 1:
        times["median_us"] = times["latency_us"]
    CHANGES[what](times, own)
    if protocol == 1:
        own["latency_us"] = times.pop("median_us") if what == "another median" else own["latency_us"]
    path = tmp_path / "rms_norm.jsonl"
    path.write_text("\n".join(map(json.dumps, [lines[0], broken, lines[1]])) + "\n")
    rows, problems = of_rows(path)
    assert of_many(path) == (rows, problems)
    if (protocol, what) != (1, "no rounds"):  # flashinfer-bench records none either
        assert len(problems) == 1 and len(rows) == 2 and ":2: " in problems[0]


def test_rows_of_every_shape_side_by_side(tmp_path, lines, monkeypatch):
    """Rounds of different lengths in one batch, and batches that end anywhere."""
    monkeypatch.setattr(quick, "_AT_ONCE", 7)
    generator, written = random.Random(3), []
    for number in range(40):
        row = copy.deepcopy(lines[1])
        for times in row["measurement"]["times"].values():
            rounds = [[generator.uniform(1, 9) for _ in range(generator.randint(1, 5))] for _ in range(number % 4 + 1)]
            spans = sorted(functools.reduce(operator.iadd, rounds, []))
            middle = len(spans) // 2
            times |= {"samples_us": rounds, "median_us": (spans[middle] + spans[~middle]) / 2}
        eager = row["measurement"]["times"]["eager"]["median_us"]
        row["measurement"]["latency_us"] = eager
        row["evaluation"]["performance"] |= {"latency_ms": eager / 1e3, "speedup_factor": None}
        row["measurement"]["times"]["busy"] = row["measurement"]["times"]["eager"]
        written += [json.dumps(row), ""] if number % 9 else [json.dumps(row)[: -number - 1]]
    path = tmp_path / "rms_norm.jsonl"
    path.write_text("\n".join(written))
    rows, problems = of_rows(path)
    assert of_many(path) == (rows, problems) and len(rows) == 35 and len(problems) == 5


def test_samples_read_like_the_tuples_they_stand_for():
    rounds = ((1.5, 2.0), (3.0,))
    samples = Samples.of(rounds)
    assert samples == rounds and rounds == samples and hash(samples) == hash(rounds) and len(samples) == 2
    assert samples[1] == (3.0,) and samples[:1] == ((1.5, 2.0),) and repr(samples) == repr(rounds)
    assert samples != ((1.5, 2.0, 3.0),) and samples == Samples.of([[1.5, 2], [3]]) != Samples.of([[1.5], [2, 3]])
    for broken in ([[]], [[0.0]], [[-1.0]], [[float("nan")]], [[float("inf")]]):
        with pytest.raises(ValueError, match="empty or holds"):
            Samples.of(broken)
