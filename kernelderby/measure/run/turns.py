"""The order of turns, the end of the rounds, and disturbed turns."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any, TypeVar

from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.statistics import student
from kernelderby.store.counts import counted

NARROW = 0.01  # width below which the paired interval of the first two's ratio is settled
REPEATS = 3  # of a disturbed turn, then it counts with a note
# Reasons why a GPU runs slower than its kind does. A power cap is no such reason: large GEMMs reach it on every H200.
DISTURBING = ("hardware slowdown", "software thermal", "hardware thermal", "power brake")

_FEWEST_ROUNDS = 3

Racer = TypeVar("Racer")


def shuffled(racers: Sequence[Racer], session: str, uuid: str, number: int) -> list[Racer]:
    """The order of one round, so that no solution always follows the same one. The session's name determines it."""
    order = list(racers)
    random.Random(f"{session}/{uuid}/{number}").shuffle(order)
    return order


def interval_width(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Of the 95 % interval of the ratio of two solutions' times, from the medians of the rounds that they took in
    turn: 0.01 is one percent from its low end to its high end. Infinite with fewer than three rounds."""
    logs = [math.log(statistics.median(a) / statistics.median(b)) for a, b in zip(first, second, strict=False)]
    if len(logs) < _FEWEST_ROUNDS:
        return math.inf
    quantile = student.quantile(len(logs) - 1)
    return math.expm1(2 * quantile * statistics.stdev(logs) / math.sqrt(len(logs)))


def disturbance(sensors: GpuSensors | None, reading: dict[str, Any], own_processes: int) -> str:
    """Why a turn that ended with this reading may be too slow; empty if there is no reason."""
    if sensors is None:
        return ""
    reasons = [reason for reason in reading.get("throttled_by", ()) if reason in DISTURBING]
    if reasons:
        return f"the GPU was slowed down: {', '.join(reasons)}"
    processes = sensors.processes()
    if processes is not None and len(processes) > own_processes:
        return f"{counted(len(processes) - own_processes, 'other process', 'other processes')} used the GPU"
    return ""
