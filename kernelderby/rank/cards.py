"""How much the cards in a group of rows differ. Two GPUs of one kind differ by a few per cent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from kernelderby.rows.measurement import Measurement, Status
from kernelderby.store.counts import counted


def card_of(row: Measurement) -> str | None:
    """The physical GPU, by the driver's uuid; None if the row does not name it."""
    found = row.environment.get("gpu_uuid")
    return str(found) if found else None


def spread(rows: Iterable[Measurement]) -> str | None:
    """A sentence if the rows come from several cards: by how much the slowest card is slower than the fastest, over all
    times of the same code on the same workload that at least two cards have. Otherwise None."""
    timed = [
        (card, row.latency_us, row)
        for row in rows
        if row.latency_us is not None and row.status is Status.PASSED and (card := card_of(row)) is not None
    ]
    cards = {card for card, *_ in timed}
    if len(cards) < 2:
        return None
    times: dict[tuple[str, str | None, str], dict[str, float]] = defaultdict(dict)
    for card, own_us, row in timed:
        times[row.solution, row.solution_hash, row.uuid][card] = own_us
    logs: dict[str, list[float]] = defaultdict(list)
    shared = [own for own in times.values() if len(own) > 1]
    for own in shared:
        middle = fmean(map(math.log, own.values()))
        for card, latency_us in own.items():
            logs[card].append(math.log(latency_us) - middle)
    if not shared:
        return (
            f"rows of {counted(len(cards), 'card')}, which have no time in common; times of two cards are never paired"
        )
    means = {card: fmean(values) for card, values in logs.items()}
    quickest, slowest = min(means, key=lambda card: means[card]), max(means, key=lambda card: means[card])
    apart = math.expm1(means[slowest] - means[quickest])
    return (
        f"rows of {counted(len(cards), 'card')}: {slowest:.12} is {apart:.1%} slower than {quickest:.12} (eager, "
        f"{counted(len(shared), 'time')} that cards have in common); times of two cards are never paired"
    )
