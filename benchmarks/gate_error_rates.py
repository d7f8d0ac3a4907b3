"""How often `derby gate` is wrong on a simulated machine, or on one resampled from recorded rows:

    python benchmarks/gate_error_rates.py --runs 3000
    python benchmarks/gate_error_rates.py --runs 1000 --rows .

Assumed, per start: each process has an offset of its own (0.1, 0.2 or 0.3 %, as memory lies). Per turn: a drift that
wanders (AR(1), 0.1 % a step) and one that is linear over a block (0.2 %), noise of 0.3 %, and in 2 of 100 turns an
outlier that takes 10 % longer on average.

From rows: a run takes one recorded kernel. Its turns are the rounds of that row in CUDA graphs (medians over their
median, in their order, back and forth from a random place). No solution was measured twice on one card, so the offset
of a process comes from solutions measured on two cards: the ratio of both times, over the median ratio of everything
that the same two sessions measured, over the square root of 2. It includes differences between the cards, so it is an
upper bound. The assumed offsets are shown beside it. No GPU is needed; A/A runs on one would be better.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from kernelderby.catalog import Catalog
from kernelderby.statistics.gate import BLOCKS, ORDER, ROLES, Gated, gated, is_decided, side_of

KERNEL_US = 50.0
CLASSES_US = (0.0, 5.0, 20.0, 100.0, math.inf)
_LEAST_COMMON = 4  # of two sessions, to know how far their cards differ
_LEAST_ROUNDS = 4  # of a row
Offset, Block = Callable[[], float], Callable[[], list[float]]
Machine = Callable[[np.random.Generator], tuple[Offset, Block]]


def assumed(random: np.random.Generator) -> tuple[Offset, Block]:
    """For one run: the logarithms of a process' offset and of the turns of a block."""
    spread, drift = random.choice([0.001, 0.002, 0.003]), 0.0

    def block() -> list[float]:
        nonlocal drift
        slope, turns = random.normal(0, 0.002), []
        for place in range(len(ORDER)):
            drift = 0.95 * drift + random.normal(0, 0.001)
            outlier = np.log1p(random.exponential(0.1)) if random.random() < 0.02 else 0.0
            turns.append(drift + slope * place / (len(ORDER) - 1) + random.normal(0, 0.003) + outlier)
        return turns

    return lambda: random.normal(0, spread), block


@dataclass(frozen=True, slots=True)
class Recorded:
    """Kernels of one class of times. rounds: for each row a list of the logarithms of each round's median over their
    median. offsets: of processes; without them the assumed ones are used."""

    rounds: list[list[float]]
    offsets: list[float]

    def __call__(self, random: np.random.Generator) -> tuple[Offset, Block]:
        row = self.rounds[random.integers(len(self.rounds))]
        turns = row + row[-2:0:-1]  # and back

        def block() -> list[float]:
            start = int(random.integers(len(turns)))
            return [turns[(start + place) % len(turns)] for place in range(len(ORDER))]

        if not self.offsets:
            return assumed(random)[0], block
        return lambda: self.offsets[random.integers(len(self.offsets))], block


def simulated(random: np.random.Generator, change: float, least: float = 0.01, machine: Machine = assumed) -> Gated:
    """One run of the gate on a candidate that takes `change` longer (0.02 of 2 %)."""
    offset, block = machine(random)
    starts: list[list[list[float]]] = []
    while not starts or not is_decided(gated(starts, least)):
        offsets = {role: offset() + (np.log1p(change) if side_of(role) == "candidate" else 0.0) for role in ROLES}
        starts.append(
            [
                [float(KERNEL_US * np.exp(offsets[role] + turn)) for role, turn in zip(ORDER, block(), strict=True)]
                for _ in range(BLOCKS)
            ]
        )
    return gated(starts, least)


def recorded(root: Path, gpu: str) -> Iterator[tuple[str, Recorded]]:
    """By classes of times."""
    graphs = [(row, time) for row in Catalog.open(root).traces() if row.gpu == gpu and (time := row.time("graph"))]
    by_code = defaultdict(list)
    for row, time in graphs:
        by_code[row.solution, row.solution_hash, row.uuid].append((row.session or "", time.median_us))
    pairs = defaultdict(list)
    for same in by_code.values():
        for (session, us), (later, other_us) in itertools.pairwise(sorted(same)):
            pairs[session, later].append((us, math.log(other_us / us)))
    offsets = [
        (us, (ratio - median(each for _, each in found)) / math.sqrt(2))
        for found in pairs.values()
        if len(found) >= _LEAST_COMMON
        for us, ratio in found
    ]
    for low, high in itertools.pairwise(CLASSES_US):
        found = [_rounds(time.samples_us) for _, time in graphs if low <= time.median_us < high]
        told = f"below {high:g} us" if not low else f"{low:g} to {high:g} us" if high < math.inf else f"from {low:g} us"
        chosen = [each for each in found if each], [each for us, each in offsets if low <= us < high]
        yield f"{told}, {len(chosen[0])} rows, offsets as assumed", Recorded(chosen[0], [])
        yield f"{told}, {len(chosen[0])} rows, {len(chosen[1])} offsets of two cards", Recorded(*chosen)


def _rounds(samples: Sequence[Sequence[float]]) -> list[float]:
    """The spread of n rounds about their own median is too small by the factor sqrt(1 - 1 / n)."""
    if len(samples) < _LEAST_ROUNDS:
        return []
    medians = [median(each) for each in samples]
    wider = 1 / math.sqrt(1 - 1 / len(medians))
    return [wider * math.log(each / median(medians)) for each in medians]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rows", type=Path, metavar="ROOT", help="a set: its recorded rows instead of the assumed spreads"
    )
    parser.add_argument("--gpu", default="NVIDIA H200")
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    machines: list[tuple[str, Machine]] = [("", assumed)]
    changes = (0.0, -0.02, 0.005, 0.01, 0.02, 0.05)
    if arguments.rows:
        machines, changes = [*recorded(arguments.rows, arguments.gpu)], (0.0, 0.02, 0.03, 0.05, 0.1)
    for told, machine in machines:
        if told:
            print(told, flush=True)
        for change in changes:
            found = [simulated(random, change, machine=machine) for _ in range(arguments.runs)]
            shares = ", ".join(
                f"{verdict} {100 * count / arguments.runs:.2f}%"
                for verdict, count in sorted(Counter(each.verdict for each in found).items())
            )
            starts = sum(each.starts for each in found) / arguments.runs
            print(f"{100 * change:+5.1f}%: {shares}; {starts:.1f} starts", flush=True)


if __name__ == "__main__":
    main()
