"""Where a library may be faster: solutions of one operator in one process, in turn, on fresh shapes.

    python benchmarks/quick_race.py unified_attention --solutions derby_unified_attention_sm90,vllm_unified_attention
    python benchmarks/quick_race.py rms_norm --fresh 40 --secret mine --workloads 0221c93b --out times.jsonl

Draws shapes as `derby bench --fresh` does, captures each call as a CUDA graph, and times the graphs by CUPTI with a
cold L2, in random order. Prints the shapes on which the first solution is slower than the best of the others, the
slowest first. It trusts the solutions: an output is only compared with the first one's, and nothing is recorded. What
it finds is worth a `derby bench`. Compiling may take most of the time: race few libraries that compile for each shape.
Without a GPU: small shapes by the wall clock, to see that the solutions run.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernelderby.catalog import Catalog, Definition  # noqa: E402
from kernelderby.measure.clock.timing import Timer, find_protocol, make_timer  # noqa: E402
from kernelderby.measure.judge.cases import Case, case_of_workload  # noqa: E402
from kernelderby.measure.judge.correctness import make_ready  # noqa: E402
from kernelderby.measure.judge.definition import module_of  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker  # noqa: E402
from kernelderby.measure.run.fresh import fresh_shapes  # noqa: E402
from kernelderby.measure.worker.build import load_setup, load_solution  # noqa: E402
from kernelderby.measure.worker.candidate import Candidate  # noqa: E402

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
FAR = 0.05  # a relative error that no rounding explains
LOSS = 0.97


def loaded(catalog: Catalog, definition: Definition, names: list[str]) -> dict[str, Candidate]:
    found = {}
    for name in names:
        solution = catalog.solution(name)
        try:
            function, setup = load_solution(definition, solution), load_setup(solution)
        except Exception as error:  # noqa: BLE001  # a library that is missing
            print(f"{name}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
            continue
        how = solution.destination_passing_style, definition, solution.in_place, setup
        found[name] = Candidate(function, *how)
    return found


def cases(catalog: Catalog, definition: Definition, fresh: int, secret: str, workloads: list[str]) -> list[Case]:
    named = [each for each in catalog.workloads(definition.name) if each.uuid[:8] in workloads]
    drawn = fresh_shapes(catalog, definition, module_of(definition), secret, fresh, DEVICE.type) if fresh else ()
    return [*(case_of_workload(definition, each) for each in named), *(shape.case() for shape in drawn)]


def values_of(returned: Any) -> torch.Tensor:
    """The first output's, as far as they are compared."""
    first = next(iter(returned.values())) if isinstance(returned, dict) else returned
    first = first[0] if isinstance(first, (tuple, list)) else first
    return torch.nan_to_num(first.float().flatten()[: 1 << 22].clone())


def raced(
    definition: Definition, case: Case, racing: dict[str, Candidate], timer: Timer, rounds: int
) -> dict[str, Any]:
    """us: median of each graph. odd: who raised, or whose output differs from the first one's."""
    maker = InputMaker(definition, module_of(definition), case, DEVICE, ROOT, "quick race")
    maker.places()
    inputs, replays, odd = maker.make(), dict[str, Any](), dict[str, str]()
    first: torch.Tensor | None = None
    for name, candidate in racing.items():
        try:
            outputs, given = candidate.new_outputs(maker), dict(inputs)
            make_ready(given, outputs, candidate.in_place, 0)
            prepared, _ = candidate.set_up(given, DEVICE)
            values = values_of(candidate(given, outputs, prepared))
            first = values if first is None else first
            error = float((values - first).norm() / first.norm().clamp(min=1e-9))
            if error > FAR:
                odd[name] = f"differs by {error:.2f}"
            call = partial(candidate, given, outputs, prepared)
            replays[name] = timer.capture(call) if DEVICE.type == "cuda" else call
        except Exception as error:  # noqa: BLE001
            odd[name] = f"{type(error).__name__}: {str(error)[:100]}"
    order = [name for _ in range(rounds) for name in random.sample(list(replays), len(replays))]
    spans = timer.spans(lambda i: replays[order[i]](), len(order)).spans_us if order else []
    us = {name: statistics.median(s for o, s in zip(order, spans, strict=True) if o == name) for name in replays}
    return {"definition": definition.name, "shape": case.label, "us": us, "odd": odd}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definition")
    parser.add_argument("--solutions", help="the first one against the others; default: all, ours first")
    parser.add_argument("--fresh", type=int, default=20)
    parser.add_argument("--secret", default="quick")
    parser.add_argument("--workloads", default="", help="first eight digits of uuids, in addition")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, help="a line of JSON for each shape is appended")
    given = parser.parse_args()
    catalog = Catalog.open(ROOT)
    definition = catalog.definition(given.definition)
    every = [each.name for each in catalog.solutions.values() if each.definition == definition.name]
    every.sort(key=lambda name: not name.startswith("derby_"))
    racing = loaded(catalog, definition, given.solutions.split(",") if given.solutions else every)
    timer, begun, rows = make_timer(find_protocol(DEVICE)[0], DEVICE), time.monotonic(), list[dict[str, Any]]()
    for case in cases(catalog, definition, given.fresh, given.secret, given.workloads.split(",")):
        if time.monotonic() - begun > given.seconds:
            break
        rows.append(raced(definition, case, racing, timer, given.rounds))
        if given.out:
            with given.out.open("a") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
        gc.collect()
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    ours = next(iter(racing))
    ratios = []
    for row in rows:
        others = [us for name, us in row["us"].items() if name != ours]
        if others and ours in row["us"]:
            ratios.append((min(others) / row["us"][ours], row))
    ratios.sort(key=lambda each: each[0])
    for ratio, row in ratios:
        if ratio < LOSS:
            print(f"{ratio:.2f}  {' '.join(f'{name} {us:.1f}' for name, us in row['us'].items())}  {row['shape']}")
    for row in rows:
        for name, why in row["odd"].items():
            print(f"{name}: {why}  {row['shape']}")
    if ratios:
        geomean = statistics.geometric_mean(ratio for ratio, _ in ratios)
        print(
            f"{definition.name}: {ours}, best of the others over it on {len(ratios)} shapes: geomean {geomean:.2f}, "
            f"least {ratios[0][0]:.2f}, below {LOSS} on {sum(ratio < LOSS for ratio, _ in ratios)}"
        )


if __name__ == "__main__":
    main()
