"""How often `derby gate` is wrong on a simulated machine: python benchmarks/gate_error_rates.py --runs 10000

The machine, per start: each process has an offset of its own (0.1, 0.2 or 0.3 %, as memory lies). Per turn: a drift
that wanders (AR(1), 0.1 % a step) and one that is linear over a block (0.2 %), noise of 0.3 %, and in 2 of 100 turns an
outlier that takes 10 % longer on average. No GPU is needed; the figures of a real one come from A/A runs on it.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from kernelderby.statistics.gate import BLOCKS, ORDER, Gated, gated, is_decided

KERNEL_US = 50.0


def simulated(random: np.random.Generator, change: float, least: float = 0.01) -> Gated:
    """One run of the gate on a candidate that takes `change` longer (0.02 of 2 %)."""
    spread, drift, starts = random.choice([0.001, 0.002, 0.003]), 0.0, []
    while not starts or len(starts) < 2 or not is_decided(gated(starts, least)):
        offsets = {name: random.normal(0, spread) for name in ("base", "again", "candidate")}
        offsets["candidate"] += np.log1p(change)
        blocks = []
        for _ in range(BLOCKS):
            slope, turns = random.normal(0, 0.002), []
            for place, name in enumerate(ORDER):
                drift = 0.95 * drift + random.normal(0, 0.001)
                us = KERNEL_US * np.exp(offsets[name] + drift + slope * place / 5 + random.normal(0, 0.003))
                turns.append(float(us * (1 + random.exponential(0.1)) if random.random() < 0.02 else us))
            blocks.append(turns)
        starts.append(blocks)
    return gated(starts, least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    for change in (0.0, -0.02, 0.005, 0.01, 0.02, 0.05):
        found = [simulated(random, change) for _ in range(arguments.runs)]
        shares = ", ".join(
            f"{verdict} {100 * count / arguments.runs:.2f}%"
            for verdict, count in sorted(Counter(each.verdict for each in found).items())
        )
        starts = sum(each.starts for each in found) / arguments.runs
        print(f"{100 * change:+5.1f}%: {shares}; {starts:.1f} starts", flush=True)


if __name__ == "__main__":
    main()
