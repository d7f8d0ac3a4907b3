"""Questions about this machine: which solutions it can run, and whether they are correct. Imports measure only when
called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelderby.api.arguments import typed
from kernelderby.catalog import Catalog, Solution
from kernelderby.errors import DerbyError
from kernelderby.report.answer import Answer
from kernelderby.report.checks import PASSED, checks_answer
from kernelderby.report.machine import machine_answer
from kernelderby.rows.checked import CheckResult
from kernelderby.store.locate import find_set

CHECK_SECONDS = 600.0  # for each case of a solution


@typed
def doctor(root: Path | str | None = None) -> Answer[dict[str, Any]]:
    """Which solutions of a set (default: the set here) this machine can run, and why it cannot run the others."""
    from kernelderby.measure.machine.doctor import examine

    return machine_answer(examine(Path(find_set() if root is None else root)))


def gpu_here(root: Path) -> tuple[str, str]:
    """The name of the GPU on which a run would measure, or the reason why there is none."""
    from kernelderby.measure.machine.probe import find_machine

    machine = find_machine(root, "cuda")
    return (machine.name, "") if machine.gpu else ("", machine.gpu_missing)


@dataclass(frozen=True, slots=True)
class Check:
    """A planned check. steps: the number of cases over all solutions. asked: command words that repeat the check."""

    catalog: Catalog
    machine: Any
    plan: Any
    secret: str
    timeout: float
    fresh: int
    asked: str = ""
    sanitizer: Path | None = None

    @property
    def steps(self) -> int:
        steps: int = self.plan.steps
        return steps

    def run(
        self, told: Callable[[Any], None] = lambda _: None, details: bool | None = None, dump: Path | None = None
    ) -> Answer[Sequence[CheckResult]]:
        """told: called with each result as soon as it is known. dump: a .safetensors file for the tensors of the first
        failing case. details: show a table of cases for each operator instead of one line. By default it does so for up
        to three operators."""
        from kernelderby.measure.run.checks import run_checks

        plan = self.plan
        results: list[Any] = [*run_checks(self.catalog, self.machine, plan, self.timeout, told, self.secret, dump=dump)]
        if self.sanitizer:
            from kernelderby.measure.record.sanitize import chosen_cases, sanitized

            failed = {(each.solution, each.case) for each in results if each.status != PASSED}
            pairs = chosen_cases(plan.jobs, failed)
            results += sanitized(self.sanitizer, self.catalog.root, pairs, self.machine.device, self.timeout, told)
        return checks_answer(
            self.machine.name, results, plan.skipped, plan.broken, self.secret, self.fresh, details, self.asked
        )

    def has_passed(self, answer: Answer[Sequence[CheckResult]], named: Sequence[str] = ()) -> bool:
        """False if a case failed, a solution in `named` was skipped, a definition's code failed, or nothing was
        checked."""
        was_skipped = any(name in self.plan.skipped for name in named)
        failed = any(result.status != PASSED for result in answer.value)
        return bool(answer.value) and not (was_skipped or failed or self.plan.broken)


def check(
    catalog: Catalog,
    solutions: Sequence[str] = (),
    definitions: Sequence[str] = (),
    workloads: Sequence[str] = (),
    origins: Sequence[str] = (),
    *,
    seeds: int = 1,
    device: str | None = None,
    timeout: float = CHECK_SECONDS,
    fresh: int = 0,
    secret: str = "",
    quick: bool = False,
    sanitize: bool = False,
) -> Check:
    """Plans a check of solutions: on a GPU at full shapes, on a CPU at small shapes. device: "cuda", "cpu", or None for
    the GPU if there is one. secret: draws the inputs; a failing check prints it. quick: on a CPU check only the first
    case of each definition. sanitize: on a GPU also run compute-sanitizer on each solution's first failing case, or on
    its smallest case. DerbyError if the machine lacks the device."""
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.run.checks import plan_checks

    machine = _machine(catalog.root, device)
    sanitizer = _sanitizer(machine) if sanitize else None
    secret = secret or drawn()
    chosen = tuple(solutions), tuple(definitions), tuple(workloads)
    plan = plan_checks(catalog, machine, *chosen, seeds, tuple(origins), fresh, secret)
    if quick and machine.device == "cpu":
        plan = replace(plan, jobs=tuple((each, own, cases[:1]) for each, own, cases in plan.jobs))
    return Check(catalog, machine, plan, secret, timeout, fresh, sanitizer=sanitizer)


def plain_solutions(catalog: Catalog, definitions: Sequence[str] = ()) -> list[str]:
    """The solutions that a CPU can time: plain Python only. The time of an interpreted kernel says nothing about the
    kernel."""
    found = [
        each.name
        for each in catalog.solutions.values()
        if is_plain(each) and (not definitions or each.definition in definitions)
    ]
    if not found:
        raise DerbyError("--device cpu: times only plain Python solutions for a CPU, and none is chosen")
    return found


def is_plain(solution: Solution) -> bool:
    return solution.language == "python" and solution.requires.cpu


def _sanitizer(machine: Any) -> Path:
    from kernelderby.measure.record.sanitize import find_sanitizer

    if machine.device != "cuda":
        why = machine.gpu_missing or "this check is on the CPU"
        raise DerbyError(f"--sanitize: {why}; compute-sanitizer looks at kernels on a GPU, leave it out")
    return find_sanitizer()


def _machine(root: Path, device: str | None) -> Any:
    from kernelderby.measure.machine.probe import find_machine

    if device != "cpu":
        machine = find_machine(root, "cuda")
        if machine.gpu:
            return machine
        if device == "cuda":
            raise DerbyError(f"--device cuda: {machine.gpu_missing}; leave it out to check on the CPU")
        if machine.gpu_fails:  # a check on the CPU must not be mistaken for one on the GPU
            raise DerbyError(f"{machine.gpu_missing}; mend that, or ask for a check on the CPU with --device cpu")
        return replace(find_machine(root, "cpu"), gpu_missing=machine.gpu_missing)
    return find_machine(root, "cpu")
