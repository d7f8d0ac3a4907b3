"""Every form of the dense bf16 GEMM on a GPU against cuBLAS, and the constants of its cost model fitted to the times.

    python benchmarks/dense_gemm.py measure TIMES.jsonl --seconds 75   # random layers, each by the forms with a chance
    python benchmarks/dense_gemm.py fit TIMES.jsonl                    # constants, and the model's regret

measure: L2 flushed, CUDA graphs by CUPTI, torch and those forms in turn in random order, medians; a line a shape is
appended as it is measured. fit: on every other shape; regret (the choice's time over the best form's) is of the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.worker.build import load_solution

ROOT = Path(__file__).resolve().parent.parent
CATALOG = Catalog.open(ROOT)
OURS = sys.modules[load_solution(CATALOG.definition("gemm_bf16"), CATALOG.solution("derby_gemm_bf16_sm90")).__module__]
dense_choice = OURS.dense_choice  # the model that the solution uses
WIDTHS = [1024, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 5376, 6144, 7168, 8192, 12288, 14336, 16384]
OUTPUTS = [*WIDTHS, 64, 128, 192, 256, 384, 512, 768, 1280, 2304, 4608, 10240, 18432, 28672, 57344]
MOST_FLOPS = 1.2e12
ROUNDS = 5
TRIALS = 4000


def layers(count: int, seed: int) -> list[tuple[int, int, int]]:
    """(m, n, k) of random layers, m even in its logarithm."""
    draw = random.Random(seed)
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        m, n, k = int(math.exp(draw.uniform(0, math.log(16384)))), draw.choice(OUTPUTS), draw.choice(WIDTHS)
        if 2.0 * m * n * k <= MOST_FLOPS:
            found.append((m, n, k))
    return found


def measure(path: Path, seconds: float, seed: int) -> None:
    import torch

    from kernelderby.measure.clock.timing import CuptiTimer

    begun, device = time.monotonic(), torch.device("cuda", 0)
    count, timer, draw = dense_choice.multiprocessors(device), CuptiTimer(device), random.Random(seed)
    with path.open("a") as lines:
        for m, n, k in layers(1000, seed):
            if time.monotonic() - begun > seconds:
                return
            problem = dense_choice.Problem(m, n, k)
            x, weight = (torch.randn(rows, k, dtype=torch.bfloat16, device=device) for rows in (m, n))
            bias, output = x.new_empty(0, n), x.new_empty(m, n)
            calls: dict[Any, Any] = {"torch": timer.capture(lambda: torch.mm(x, weight.t(), out=output))}  # noqa: B023
            expected = output.float()
            for form, splits, group in dense_choice.ranked(problem, count):
                config = {"form": form, "splits": splits, "group": group}
                output.fill_(float("nan"))
                calls[form, splits] = timer.capture(lambda: OURS.run_with(config, x, weight, bias, output))  # noqa: B023
                worst = (output.float() - expected).abs().max() / expected.abs().max()
                if not worst < 0.02:
                    raise SystemExit(f"{m} x {n} x {k}: form {form}, {splits} splits: wrong ({float(worst)})")
            order = [name for _ in range(ROUNDS) for name in draw.sample(list(calls), len(calls))]
            spans = timer.spans(lambda i: calls[order[i]](), len(order)).spans_us  # noqa: B023
            times = {
                name: statistics.median(s for o, s in zip(order, spans, strict=True) if o == name) for name in calls
            }
            row = {"m": m, "n": n, "k": k, "multiprocessors": count, "torch": times.pop("torch")}
            lines.write(json.dumps({**row, "forms": [[*name, us] for name, us in times.items()]}) + "\n")
            lines.flush()


def modelled(one: tuple[int, int], problem: Any, count: int, rates: Any = None) -> float:
    spread = dense_choice.Spread.of(dense_choice.FORMS[one[0]], one[1], problem, count)
    return float(dense_choice.cycles(spread, problem, spread.ordered()[1], rates or dense_choice.Rates()))


def regrets(rows: list[dict[str, Any]], rates: Any) -> list[float]:
    """For each shape: the time of the form that the model chooses over that of the best form, minus 1."""
    found = []
    for row in rows:
        problem = dense_choice.Problem(row["m"], row["n"], row["k"])
        times = {(form, splits): us for form, splits, us in row["forms"]}
        taken = min(times, key=lambda one: modelled(one, problem, row["multiprocessors"], rates))
        found.append(times[taken] / min(times.values()) - 1)
    return found


def fit(path: Path, seed: int) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    known, fresh = rows[::2], rows[1::2]
    draw, best = random.Random(seed), dense_choice.Rates()

    def loss(rates: Any) -> float:
        each = regrets(known, rates)
        return statistics.fmean(each) + 0.1 * max(each)

    least = loss(best)
    for _ in range(TRIALS):
        name = draw.choice(list(asdict(best)))
        tried = replace(best, **{name: getattr(best, name) * math.exp(draw.gauss(0, 0.15))})
        if (found := loss(tried)) < least:
            best, least = tried, found
    for name, value in asdict(best).items():
        print(f"{name} = {value:.4g}")
    for label, part in (("fitted", known), ("other", fresh)):
        for rates, of in ((dense_choice.Rates(), "as they are"), (best, "fitted")):
            each = regrets(part, rates)
            print(f"{label} shapes, constants {of}: regret {statistics.fmean(each):.1%}, at worst {max(each):.1%}")
    ratios = [row["torch"] / min(us for *_, us in row["forms"]) for row in rows]
    print(f"torch over the best form: geomean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("times", type=Path)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.what == "measure":
        measure(given.times, given.seconds, given.seed)
    else:
        fit(given.times, given.seed)


if __name__ == "__main__":
    main()
