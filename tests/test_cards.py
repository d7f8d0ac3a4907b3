"""Two cards of one kind: their spread is said, and they never pair."""

from rank_rows import ranked, row

from kernelderby.rank.cards import spread


def on(card, solution, uuid, latency_us, **other):
    return row(solution, uuid, latency_us, environment={"gpu_uuid": card}, **other)


def test_the_spread_is_the_geomean_of_what_both_measured():
    rows = [on("GPU-a", "one", "w1", 10.0), on("GPU-b", "one", "w1", 11.0), on("GPU-a", "two", "w1", 5.0)]
    assert spread(rows) == (
        "rows of 2 cards: GPU-b is 10.0% slower than GPU-a (eager, 1 times that cards have in common); "
        "times of two cards are never paired"
    )
    assert spread(rows[:1]) is None and "no time in common" in spread([rows[1], rows[2]])


def test_times_of_two_cards_do_not_pair_even_in_one_session():
    same = [on("GPU-a", "one", "w1", 10.0), on("GPU-a", "two", "w1", 20.0)]
    apart = [on("GPU-a", "one", "w1", 10.0), on("GPU-b", "two", "w1", 20.0)]
    assert ranked(same, 1).pairs[0].geomean.interval == "paired"
    assert ranked(apart, 1).pairs[0].geomean.interval == "unpaired"
    assert any("2 cards" in note for note in ranked(apart, 1).notes)
