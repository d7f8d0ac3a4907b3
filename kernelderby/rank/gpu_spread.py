"""How much the cards in a group of rows differ. Two GPUs of one kind differ by a few per cent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from kernelderby.rows.measurement import Measurement, Status


def card_of(row: Measurement) -> str | None:
    """The physical GPU, by the driver's uuid; None if the row does not name it."""
    found = row.environment.get("gpu_uuid")
    return str(found) if found else None


class CardSpread(NamedTuple):
    """apart: by how much the slowest card is slower than the fastest, over all times of the same code on the same
    workload that at least two cards have (`shared` of them). Without such times apart is None."""

    cards: int
    fastest: str = ""
    slowest: str = ""
    apart: float | None = None
    shared: int = 0


def spread(rows: Iterable[Measurement]) -> CardSpread | None:
    """None if the rows come from one card."""
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
        return CardSpread(len(cards))
    means = {card: fmean(values) for card, values in logs.items()}
    fastest, slowest = min(means, key=lambda card: means[card]), max(means, key=lambda card: means[card])
    return CardSpread(len(cards), fastest, slowest, math.expm1(means[slowest] - means[fastest]), len(shared))
