"""How often an honest bfloat16 implementation fails a definition's tolerances, by chance alone.

Runs the plain-torch baseline of each definition on its small cases (SMALL_AXES and its variants, where chance is
largest) and compares it with the reference as the judge does, DRAWS times each with contents of its own. Of each draw
it keeps the share of the closest bound that was used; above 1 the draw fails. The chance of a failure is that of an
exponential tail over the largest hundredth of those shares (peaks over threshold): 20,000 draws see only one in 20,000.

    python benchmarks/tolerance_draws.py [DEFINITION ...] [--draws 20000] [--seconds 900] [--root .]

Where baseline and reference give the same bits, each output is rounded once more, at random. INPUT_DRAWS take turns
with normal numbers. Half of the draws go to all cases, the other half to the one with the largest chance of a failure.
Prints a row of docs/tolerances.md for each definition: draws, failures, the largest share, the chance of a failure in
the worst case, and that case. A definition stops after --seconds; its row says how many draws there were.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.measure.judge.cases import Case, small_cases
from kernelderby.measure.judge.correctness import DEFAULT_TOLERANCE, Outputs, compare, reference_outputs, row_and_scale
from kernelderby.measure.judge.definition import module_of
from kernelderby.measure.judge.draws import NORMAL, ODD_ROWS, Draw, bounded, told
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.rows.measurement import Status

CPU = torch.device("cpu")
CONSTANTS_EVERY = 16
WORST_EVERY = 250  # draws, then the worst case is looked for again
_OF_TAIL = 0.01
_LEAST_TAIL = 20  # shares that a tail is fitted to


def chance_of_failure(shares: Sequence[float]) -> float:
    """That a share exceeds 1, from the largest: exp(-distance / mean excess)."""
    known = sorted(shares, reverse=True)
    count = max(_LEAST_TAIL, int(_OF_TAIL * len(known)))
    if len(known) <= count:
        return sum(share > 1 for share in shares) / max(1, len(shares))
    threshold = known[count]
    excess = statistics.fmean(each - threshold for each in known[:count])
    if threshold >= 1 or excess <= 1e-12:
        return sum(share > 1 for share in shares) / len(shares)
    return count / len(shares) * math.exp((threshold - 1) / excess)


class Group:
    """One kind of inputs (normal numbers or a draw of INPUT_DRAWS) of one small case, and the shares of its draws."""

    def __init__(
        self, definition: Definition, module: ModuleType, case: Case, candidate: Candidate, draw: Draw
    ) -> None:
        self._definition, self._module, self.case, self.draw = definition, module, case, draw
        self._candidate, self._outputs = candidate, candidate.new_outputs(case, CPU)
        self._maker = InputMaker(definition, module, case, CPU, definition.path.parent, f"tolerances {told(draw)}")
        self._maker._room = 0  # nothing comes twice
        self._inputs = self._maker.make(0)
        self._stays = not any(name in definition.constants for name in draw)
        self.shares: list[float] = []
        self.failures = 0

    @property
    def chance(self) -> float:
        return chance_of_failure(self.shares)

    def look(self) -> None:
        """One draw with contents of its own; constants are new in every CONSTANTS_EVERY-th."""
        definition, inputs, number = self._definition, self._inputs, len(self.shares)
        whole = not self._stays or number % CONSTANTS_EVERY == 0
        self._maker.write(inputs, f"draw/{number}", draw=self.draw, constants=whole)
        for name, output in self._candidate.in_place.items():
            self._outputs[name].copy_(inputs[output])
        found = self._candidate.verified(self._candidate(inputs, self._outputs), self.case, CPU)
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
    """As if a value had been bfloat16 on the way; integers and eight bits as they are."""
    if not output.is_floating_point() or output.element_size() < 2:
        return output
    return (output.double() * (1 + (torch.rand(output.shape) * 2 - 1) * 2**-9)).to(output.dtype)


def used_of_bounds(definition: Definition, outputs: Outputs, references: Outputs) -> float:
    """Of the bound that is closest to failing, the share that was used."""
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


def look_at(definition: Definition, solution: Solution, draws: int, seconds: float) -> list[str]:
    """A row of the table. Half of the draws go to all cases and kinds alike, the other half to the worst of them."""
    module = module_of(definition)
    candidate = Candidate(
        load_solution(definition, solution), solution.destination_passing_style, definition, solution.in_place
    )
    cases = small_cases(definition, module.SMALL_AXES, getattr(module, "SMALL_VARIANTS", None), 1)
    cases = [case for case in cases if all(case.sizes.values())]  # an empty tensor tells nothing
    kinds = [NORMAL, ODD_ROWS, *getattr(module, "INPUT_DRAWS", ())]
    groups = [Group(definition, module, case, candidate, kind) for case in cases for kind in kinds]
    until = time.monotonic() + seconds
    for number in range(draws):
        if time.monotonic() > until:
            break
        if number < draws // 2:
            groups[number % len(groups)].look()
        else:
            if (number - draws // 2) % WORST_EVERY == 0:
                worst = max((group for group in groups if group.shares), key=lambda group: group.chance)
            worst.look()
    looked = [group for group in groups if group.shares]
    worst = max(looked, key=lambda group: group.chance)
    total, failed = sum(len(group.shares) for group in looked), sum(group.failures for group in looked)
    words = [worst.case.label.removesuffix(" seed=0"), *([told(worst.draw)] if worst.draw else [])]
    return [
        definition.name,
        f"{total}",
        f"{failed}",
        f"{max(max(group.shares) for group in looked):.3f}",
        f"{worst.chance:.0e}" if worst.chance > 1e-12 else "-",
        ", ".join(words) if worst.chance > 1e-12 else "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definitions", nargs="*")
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--root", type=Path, default=Path())
    asked = parser.parse_args()
    torch.set_num_threads(1)
    catalog = Catalog.open(asked.root)
    for name in asked.definitions or catalog.definitions:
        plain = [each for each in catalog.solutions.values() if each.definition == name and each.author == "baseline"]
        print("|".join(["", *look_at(catalog.definition(name), plain[0], asked.draws, asked.seconds), ""]), flush=True)


if __name__ == "__main__":
    main()
