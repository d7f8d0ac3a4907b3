"""How often an honest bfloat16 implementation fails a definition's tolerances, by chance alone.

Runs the plain-torch baseline of each definition on its small cases (SMALL_AXES and its variants, where chance is
largest) and compares it with the reference as the judge does, DRAWS times each with contents of its own. For each draw
it keeps how much of the closest bound was used, as a share; above 1 the draw fails. The chance of a failure is that of
an exponential tail fitted to the largest hundredth of those shares (peaks over threshold), since counting failures in
20,000 draws shows no chance below one in 20,000.

    python benchmarks/tolerance_draws.py [DEFINITION ...] [--draws 20000] [--seconds 900] [--shapes 40]

If baseline and reference give the same bits, each output is rounded once more, at random. INPUT_DRAWS take turns with
normal numbers. Half of the draws go to all cases, the other half to the one with the largest chance of a failure.
--shapes N draws N shapes of AXES_SPACE instead, mostly from its corners (a range's ends: many rows of few columns, one
row, one column, a long k), as large as a CPU does in a second; and beside the baseline a second implementation of the
products, which splits k (or the experts of a token) and keeps the parts in bfloat16. Prints a row of docs/tolerances.md
for each definition: draws, failures, the largest share, the chance of a failure in the worst case, and that case. A
definition stops after --seconds; its row says how many draws there were.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.catalog.spaces import UnfitDraw, draw
from kernelderby.measure.judge.cases import Case, small_cases
from kernelderby.measure.judge.correctness import DEFAULT_TOLERANCE, Outputs, compare, reference_outputs, row_and_scale
from kernelderby.measure.judge.definition import module_of
from kernelderby.measure.judge.draws import NORMAL, ODD_ROWS, Draw, bounded, told
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.run.fresh import Limits, fresh_shape
from kernelderby.measure.worker.build import load_solution
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.rows.measurement import Status

CPU = torch.device("cpu")
CONSTANTS_EVERY = 16
WORST_EVERY = 250  # draws, then the worst case is looked for again
PARTS = 4  # of k, where products are split
LARGE = Limits(24 << 20, 1e9)  # of a shape that is drawn: below a second on one core
CORNERS = 0.6  # of the draws from a range or list: one of its ends
_OF_TAIL = 0.01
_LEAST_TAIL = 20  # shares that a tail is fitted to


def chance_of_failure(shares: Sequence[float]) -> float:
    """The chance that a share exceeds 1, from the largest shares: exp(-distance / mean excess)."""
    known = sorted(shares, reverse=True)
    count = max(_LEAST_TAIL, int(_OF_TAIL * len(known)))
    if len(known) <= count:
        return sum(share > 1 for share in shares) / max(1, len(shares))
    threshold = known[count]
    excess = statistics.fmean(each - threshold for each in known[:count])
    if threshold >= 1 or excess <= 1e-12:
        return sum(share > 1 for share in shares) / len(shares)
    return count / len(shares) * math.exp((threshold - 1) / excess)


class SplitProducts(TorchFunctionMode):
    """Within it, products of bfloat16 matrices are those of four parts of k, and attention that of four parts of the
    keys: each part rounded to bfloat16, their sum in float32, as libraries do where a product has few tiles."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, given: Any = (), named: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            first = given[0] if given else None
            if not isinstance(first, torch.Tensor) or first.dtype is not torch.bfloat16:
                return function(*given, **(named or {}))
            if function is functional.linear:
                return split_product(first, given[1].t(), given[2] if len(given) > 2 else None)
            if function in (torch.mm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
                found = split_product(first, given[1])
                return named["out"].copy_(found) if named and "out" in named else found
            if function is functional.scaled_dot_product_attention:
                return split_attention(*given, **named)
            return function(*given, **(named or {}))


def split_product(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    step = max(1, -(-x.shape[-1] // PARTS))
    pairs = zip(x.split(step, -1), y.split(step, -2), strict=True)
    total = sum((one @ two).float() for one, two in pairs)
    return (total if bias is None else total + bias.float()).to(x.dtype)


def split_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // key.shape[-3], -3) for each in (key, value))
    scores = query.float() @ key.float().transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    highest = scores.amax(-1, keepdim=True)
    step = max(1, -(-key.shape[-2] // PARTS))
    total, weights = 0.0, 0.0
    for part, values in zip(scores.split(step, -1), value.split(step, -2), strict=True):
        weight = torch.exp(part - highest)
        sums = weight.sum(-1, keepdim=True)
        mean = (weight.bfloat16() @ values).float() / sums.clamp_min(1e-30)
        total, weights = total + mean.bfloat16().float() * sums, weights + sums
    return (total / weights).to(query.dtype)


class Group:
    """One kind of inputs (normal numbers or a draw of INPUT_DRAWS) of one case, and the shares of its draws. splits:
    the baseline's products are those of parts."""

    def __init__(
        self,
        definition: Definition,
        module: ModuleType,
        case: Case,
        candidate: Candidate,
        draw: Draw,
        splits: bool = False,
    ) -> None:
        self._definition, self._module, self.case, self.draw = definition, module, case, draw
        self.splits = splits
        self._maker = InputMaker(definition, module, case, CPU, definition.path.parent, f"tolerances {told(draw)}")
        self._candidate, self._outputs = candidate, candidate.new_outputs(self._maker)
        self._maker._room = 0  # nothing comes twice
        self._stays = not any(name in definition.constants for name in draw)
        self._inputs: dict[str, Any] | None = None
        self.shares: list[float] = []
        self.failures = 0

    @property
    def chance(self) -> float:
        return chance_of_failure(self.shares)

    def risk(self) -> tuple[float, float]:
        """With few draws the largest share says more than a tail."""
        return (self.chance, max(self.shares)) if len(self.shares) > 2 * _LEAST_TAIL else (0.0, max(self.shares))

    def look(self) -> None:
        """One draw with contents of its own; constants are new in every CONSTANTS_EVERY-th."""
        definition, number = self._definition, len(self.shares)
        inputs = self._inputs = self._inputs or self._maker.make(0)
        whole = not self._stays or number % CONSTANTS_EVERY == 0
        self._maker.write(inputs, f"draw/{number}", draw=self.draw, constants=whole)
        for name, output in self._candidate.in_place.items():
            self._outputs[name].copy_(inputs[output])
        with SplitProducts() if self.splits else contextlib.nullcontext():
            returned = self._candidate(inputs, self._outputs)
        found = self._candidate.fitting(returned, self._maker.output_places(), CPU)
        references = reference_outputs(definition, self._module, inputs)
        if all(torch.equal(found[name], references[name]) for name in references):
            exact = {name for each in definition.tolerances if each.rtol < 2**-8 for name in each.outputs or found}
            found = {name: output if name in exact else rounded_once_more(output) for name, output in found.items()}
        if canonical := getattr(self._module, "canonical_outputs", None):
            references, found = canonical(references, inputs), canonical(found, inputs)
        definition = bounded(definition, self.draw)
        share = used_of_bounds(definition, found, references)
        # Below that compare() says the same, in twice the time.
        if not share < 0.9:
            self.failures += compare(definition, found, references).status is not Status.PASSED
        self.shares.append(share)


def rounded_once_more(output: torch.Tensor) -> torch.Tensor:
    """Values as if they had been bfloat16 on the way; integers and eight-bit values stay as they are."""
    if not output.is_floating_point() or output.element_size() < 2:
        return output
    return (output.double() * (1 + (torch.rand(output.shape) * 2 - 1) * 2**-9)).to(output.dtype)


def used_of_bounds(definition: Definition, outputs: Outputs, references: Outputs) -> float:
    """How much was used of the bound that is closest to failing, as a share."""
    shares = [0.0]
    for tolerance in definition.tolerances or (DEFAULT_TOLERANCE,):
        for name in tolerance.outputs or references:
            x, y = outputs[name].double(), references[name].double()
            off, width = torch.where(x == y, 0, (x - y).abs()), y.abs() + 1e-8
            least = tolerance.least_ratio(x.numel())
            if least < 1:
                failing = int(((off > tolerance.atol) & (off / width > tolerance.rtol)).sum())
                shares.append(failing / (x.numel() * (1 - least)))
            else:
                shares.append(
                    float(torch.minimum(off / (tolerance.atol + 1e-30), off / width / (tolerance.rtol + 1e-30)).max())
                )
            if tolerance.row_error is not None or tolerance.scale_error is not None:
                row, factor = row_and_scale(outputs[name], references[name])
                shares.append(row / (tolerance.row_error or float("inf")))
                shares.append(abs(factor - 1) / (tolerance.scale_error or float("inf")))
    return max(shares)


def ends(rule: Any) -> Any:
    """Of a list: its smallest and its largest number, and its ranges and formulas."""
    if not isinstance(rule, list):
        return rule
    numbers = [each for each in rule if isinstance(each, (int, float))]
    others = [ends(each) for each in rule if not isinstance(each, (int, float))]
    return [*sorted({min(numbers), max(numbers)}), *others] if numbers else others


def drawn_cases(definition: Definition, module: ModuleType, count: int) -> list[Case]:
    """Of AXES_SPACE, mostly from its corners; of SMALL_SPACE where no other shape is small enough."""
    uniform = random.Random(definition.name)

    def corner() -> float:
        return uniform.random() if uniform.random() > CORNERS else uniform.choice([0.0, 1 - 1e-9])

    whole = {name: ends(rule) for name, rule in module.AXES_SPACE.items()}
    small = {**module.AXES_SPACE, **getattr(module, "SMALL_SPACE", {})}
    found: dict[str, Case] = {}
    for number in range(400 * count):
        space, const = (whole, None) if number < 360 * count else (small, module.SMALL_AXES)
        with contextlib.suppress(UnfitDraw):
            shape = fresh_shape(definition, module, draw(definition, space, corner, const), LARGE)
            found.setdefault(shape.workload.uuid, shape.case())
        if len(found) == count:
            break
    return list(found.values())


def look_at(definition: Definition, solution: Solution, draws: int, seconds: float, shapes: int = 0) -> list[str]:
    """A row of the table. Half of the draws go to all cases and kinds alike, the other half to the worst one."""
    module = module_of(definition)
    candidate = Candidate(
        load_solution(definition, solution), solution.destination_passing_style, definition, solution.in_place
    )
    if shapes:
        cases = drawn_cases(definition, module, shapes)
    else:
        cases = small_cases(definition, module.SMALL_AXES, getattr(module, "SMALL_VARIANTS", None), 1)
    cases = [case for case in cases if all(case.sizes.values())]  # an empty tensor tells nothing
    kinds = [NORMAL, ODD_ROWS, *getattr(module, "INPUT_DRAWS", ())]
    splits = (False, True) if shapes and definition.op_type in ("gemm", "moe", "attention") else (False,)
    groups = [
        Group(definition, module, case, candidate, kind, split) for case in cases for kind in kinds for split in splits
    ]
    begun = time.monotonic()
    for number in range(draws):
        taken = time.monotonic() - begun
        if taken > seconds:
            break
        if number < draws // 2 and taken < seconds / 2:
            group, since = groups[number % len(groups)], number + 1
            try:
                group.look()
            except RuntimeError as error:  # a cache that the baseline copies for each sequence
                if "allocate memory" not in str(error):
                    raise
                groups.remove(group)
        else:
            if (number - since) % (WORST_EVERY if not shapes else 5) == 0:
                worst = max((group for group in groups if group.shares), key=Group.risk)
            worst.look()
    looked = [group for group in groups if group.shares]
    worst = max(looked, key=Group.risk)
    total, failed = sum(len(group.shares) for group in looked), sum(group.failures for group in looked)
    words = [
        worst.case.label.partition(" seed=")[0].partition(" fresh ")[0],
        *([told(worst.draw)] if worst.draw else []),
    ]
    words += ["split"] if worst.splits else []
    tells = worst.chance > 1e-12 or shapes
    return [
        definition.name,
        f"{total}",
        f"{failed}",
        f"{max(max(group.shares) for group in looked):.3f}",
        f"{worst.chance:.0e}" if worst.chance > 1e-12 else "-",
        ", ".join(words) if tells else "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definitions", nargs="*")
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--shapes", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path())
    asked = parser.parse_args()
    torch.set_num_threads(1)
    catalog = Catalog.open(asked.root)
    for name in asked.definitions or catalog.definitions:
        plain = [each for each in catalog.solutions.values() if each.definition == name and each.author == "baseline"]
        print(
            "|".join(["", *look_at(catalog.definition(name), plain[0], asked.draws, asked.seconds, asked.shapes), ""]),
            flush=True,
        )


if __name__ == "__main__":
    main()
