"""Two cards of one kind: their spread is said, and they never pair."""

import json

import pytest
from rank_rows import ranked, row

from kernelderby.api.trace_set import open_set
from kernelderby.rank.gpu_spread import spread


def on(card, solution, uuid, latency_us, **other):
    return row(solution, uuid, latency_us, environment={"gpu_uuid": card}, **other)


def test_the_spread_is_the_geomean_of_what_both_measured():
    rows = [on("GPU-a", "one", "w1", 10.0), on("GPU-b", "one", "w1", 11.0), on("GPU-a", "two", "w1", 5.0)]
    assert spread(rows) == (2, "GPU-a", "GPU-b", pytest.approx(0.1), 1)
    assert spread(rows[:1]) is None and spread([rows[1], rows[2]]).apart is None
    assert (
        "rows of 2 cards: GPU-b is 10.0% slower than GPU-a (eager, 1 time that cards have in common); "
        "times of two cards are never paired"
    ) in ranked(rows, 1).notes
    assert any("no time in common" in note for note in ranked(rows[1:], 1).notes)


def test_times_of_two_cards_do_not_pair_even_in_one_session():
    same = [on("GPU-a", "one", "w1", 10.0), on("GPU-a", "two", "w1", 20.0)]
    apart = [on("GPU-a", "one", "w1", 10.0), on("GPU-b", "two", "w1", 20.0)]
    assert ranked(same, 1).pairs[0].geomean.interval == "paired"
    assert ranked(apart, 1).pairs[0].geomean.interval == "unpaired"
    assert any("2 cards" in note for note in ranked(apart, 1).notes)


def test_constructed_rows_of_two_cards_in_a_set(small_set):
    """The toy's rows once more as of a second card, 10 % slower, in the same session: no real cards. The baseline is
    measured on the first one alone, so that the newest rows of the two solutions are of two cards."""
    path = small_set / "traces/h200/toy/scale_rows_h4.jsonl"
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    recorded = [one for one in recorded if one["measurement"]["status"] == "passed"]

    def ranking(*cards):
        lines = []
        for card, factor, names in cards:
            for one in json.loads(json.dumps(recorded)):
                if one["solution"] in names:
                    one["measurement"]["environment"]["gpu_uuid"] = card
                    one["measurement"]["session"] = "one"
                    slow(one, factor)
                    lines.append(json.dumps(one) + "\n")
        path.write_text("".join(lines))
        (found,) = open_set(small_set).rank("scale_rows_h4").value
        return found

    both = {"toy_baseline", "toy_fast"}
    alone = ranking(("GPU-first", 1.0, both))
    assert alone.pairs[0].geomean.interval == "paired" and not any("cards" in note for note in alone.notes)
    apart = ranking(("GPU-first", 1.0, both), ("GPU-second", 1.1, {"toy_fast"}))
    assert apart.pairs[0].geomean.interval == "unpaired"
    assert any("2 cards: GPU-second is 10.0% slower than GPU-first" in note for note in apart.notes), apart.notes


def slow(row, factor):
    own, performance = row["measurement"], row["evaluation"]["performance"]
    performance["latency_ms"] *= factor
    performance.pop("speedup_factor", None)
    for name in ("latency_us", "host_us", "wall_us"):
        if own.get(name) is not None:
            own[name] *= factor
    for times in [own, *own.get("times", {}).values()]:
        if "median_us" in times:
            times["median_us"] *= factor
        if "samples_us" in times:
            times["samples_us"] = [[span * factor for span in spans] for spans in 5 * times["samples_us"]]
