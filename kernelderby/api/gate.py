"""Is a candidate slower than a base? Measures both here and now. Imports measure only when called."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog, Workload
from kernelderby.catalog.selection import by_origin, select_workloads
from kernelderby.errors import DerbyError
from kernelderby.report.answer import Answer
from kernelderby.report.gate import gate_answer
from kernelderby.store.counts import counted

SHAPES = 6  # of an operator, where nobody names any
_NEEDED = "import msgspec, numpy, torch"  # by a worker


def gate(
    catalog: Catalog,
    base: str,
    candidate: str,
    workloads: Sequence[str] = (),
    *,
    base_python: str | None = None,
    candidate_python: str | None = None,
    device: str | None = None,
    observer: Any = None,
    **settings: Any,
) -> Answer[Sequence[Any]]:
    """base, candidate: NAME, or NAME@REVISION of the set's repository. *_python: the interpreter of an environment with
    other libraries. settings: of measure.run.gate.GateSettings. observer: a measure.run.gate.GateObserver. device:
    cuda, or cpu to try it out."""
    from kernelderby.measure.machine.probe import find_machine
    from kernelderby.measure.machine.requirements import why_not
    from kernelderby.measure.run.gate import Gate, GateSettings, Side, spread_workloads

    with ExitStack() as stack:
        sides = []
        for role, spec, python in (("base", base, base_python), ("candidate", candidate, candidate_python)):
            where, solution = _found(stack, catalog, spec)
            if python is not None:
                _check_python(role, python)
            sides.append(Side(spec + (f" in {python}" if python else ""), where, solution, python))
        one, other = sides
        if one.solution.definition != other.solution.definition:
            raise DerbyError(
                f"{base} is of {one.solution.definition}, {candidate} of {other.solution.definition}; "
                "give two solutions of one operator"
            )
        machine = find_machine(catalog.root, device or "cuda")
        if device != "cpu" and machine.gpu is None:
            raise DerbyError(f"{machine.gpu_missing}, so nothing can be gated; --device cpu tries the command out")
        for side in sides:
            if side.python is None and (reason := why_not(side.solution, machine)):
                raise DerbyError(f"{side.name}: cannot run here: {reason}")
        definition = catalog.definition(other.solution.definition)
        chosen, notes = _workloads(catalog, definition.name, workloads, spread_workloads)
        found = Gate(definition, one, other, machine, GateSettings(**settings), observer).run(chosen)
        least = settings.get("least", GateSettings().least)
        return gate_answer((one.name, other.name), machine.name or "a CPU", least, found, notes)


def _found(stack: ExitStack, catalog: Catalog, spec: str) -> tuple[Path, Any]:
    """The set that contains the version, and the solution in it."""
    name, _, revision = spec.partition("@")
    if not revision:
        return catalog.root, catalog.solution(name)
    from kernelderby.measure.machine.commit import at_revision, revision_of

    try:
        commit = revision_of(catalog.root, revision)
    except DerbyError as error:
        raise DerbyError(f"{spec}: {error}") from None
    former = stack.enter_context(at_revision(catalog.root, commit))
    return former.root, former.solution(name)


def _check_python(role: str, python: str) -> None:
    try:
        done = subprocess.run([python, "-P", "-c", _NEEDED], capture_output=True, text=True, cwd="/")
    except OSError as error:
        raise DerbyError(f"--{role}-python: {python}: {error.strerror}; give the path of an interpreter") from None
    if done.returncode:
        line = (done.stderr.strip().splitlines() or ["failed"])[-1]
        raise DerbyError(f"--{role}-python: {python}: {line}; pip install 'kernelderby[measure]' there")


def _workloads(
    catalog: Catalog, definition: str, words: Sequence[str], spread: Callable[[Sequence[Workload], int], list[Workload]]
) -> tuple[list[Workload], list[str]]:
    known = catalog.workloads(definition)
    if words:
        return select_workloads(known, words), []
    scored, *_ = by_origin(known)
    chosen = spread(scored, SHAPES)
    if not chosen:
        raise DerbyError(f"{definition}: has no workloads; add one to workloads/")
    more = f"{len(chosen)} of {counted(len(known), 'shape')}, from the least work to the most; --workloads takes others"
    return chosen, [more] if len(chosen) < len(known) else []
