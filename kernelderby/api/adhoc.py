"""A file and shapes that are not in the set: checked, measured and ranked beside the set's solutions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.api.machine import Check, is_plain
from kernelderby.authoring.scratch import is_file, scratch_set, shape_lines, solution_of_file, write_packed
from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.run.neighbours import Neighbours
from kernelderby.store.appended import append_line
from kernelderby.store.fields import Name, lines_of, read_toml


@dataclass(frozen=True, slots=True)
class AdHoc:
    """catalog: a scratch set with the file's solution and the shapes. home: the set from which the scratch set was
    made. solution: the file's solution, None without a file. lines: the workload lines of the shapes, with counted
    costs; empty if the listed shapes are used."""

    catalog: Catalog
    home: Catalog
    definition: Definition
    solution: Solution | None
    lines: tuple[dict[str, Any], ...]
    rivals: tuple[Solution, ...] = ()
    asked: str = ""  # words that repeat it

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the solutions to check: the file's solution, otherwise the set's."""
        return (self.solution.name,) if self.solution else tuple(each.name for each in self.rivals)

    def at_shapes(self, check: Check) -> Check:
        """The check at the given shapes, on a CPU too."""
        from kernelderby.measure.judge.cases import case_of_workload

        check = replace(check, asked=self.asked)
        if not self.lines:
            return check
        cases = tuple(case_of_workload(self.definition, each) for each in self.catalog.workloads(self.definition.name))
        jobs = tuple((definition, own, cases) for definition, own, _ in check.plan.jobs)
        return replace(check, plan=replace(check.plan, jobs=jobs))

    def keep_rows(self, record: bool) -> list[Path]:
        """Appends the rows of the run to reports/bench/. With `record` it adds everything to the set: the shapes to its
        workloads, the file as a packed solution, the rows to its traces."""
        if not record:
            return self._append_rows(self.home.root / "reports" / "bench")
        with Neighbours(self.home.root):  # a run of the set would move rows of nobody aside
            written = []
            known = {each.uuid for each in self.home.workloads(self.definition.name)}
            new = [json.dumps(line) for line in self.lines if line["workload"]["uuid"] not in known]
            for line in new:
                append_line(self.home.workloads_path(self.definition.name), line)
            if self.solution is not None:
                written.append(write_packed(self.home.root, self.solution))
            return [*written, *self._append_rows(self.home.root)]

    def _append_rows(self, root: Path) -> list[Path]:
        written = []
        for path in self.catalog.traces_files():
            place = root / path.relative_to(self.catalog.root)
            for row in lines_of(path):  # they end with "\n" alone: a text in a row may hold other ends of lines
                append_line(place, bytes(row.text).decode())
            written.append(place)
        return written


class _About(Struct):
    """Of the solution.toml beside a file."""

    definition: Name | None = None


def operator_of(catalog: Catalog, name: str, operator: str | None = None) -> str:
    """The given operator. Without one: `name` if it is an operator, otherwise the operator of the solution `name`, or
    of the solution.toml beside the file."""
    if operator is not None:
        return operator
    if not is_file(name):
        return name if name in catalog.definitions else catalog.solution(name).definition
    about = Path(name.partition("::")[0]).parent / "solution.toml"
    if about.is_file() and (written := read_toml(about, _About).definition) is not None:
        try:
            return catalog.definition(written).name
        except DerbyError as problem:
            raise DerbyError(f"{about}: definition: {problem}") from None
    raise DerbyError(f"{name}: which operator does it compute? add --for OPERATOR; `derby list` names them")


def expect_adhoc(root: Path, name: str, operator: str | None, shapes: Sequence[str], device: str = "") -> None:
    """DerbyError for impossible words, before anything slow runs. name: FILE.py, a solution, an operator or None.
    device: the device on which a file is timed."""
    catalog = Catalog.open(root)
    definition = catalog.definition(operator_of(catalog, name, operator))
    shape_lines(catalog, definition, shapes)
    if is_file(name):
        expect_timed(solution_of_file(catalog, name, definition), device)


def expect_timed(solution: Solution | None, device: str | None) -> None:
    """DerbyError if a CPU is to time a file that is not plain Python."""
    if solution is not None and device == "cpu" and not is_plain(solution):
        kind = "CUDA" if solution.language == "python" else solution.language.capitalize()
        raise DerbyError(
            f"--device cpu: times plain Python alone, and {solution.name} is {kind}; `derby check` needs no GPU"
        )


@contextmanager
def adhoc_set(
    catalog: Catalog, operator: str, file: str = "", shapes: Sequence[str] = (), rivals: Sequence[Solution] = ()
) -> Iterator[AdHoc]:
    """rivals: the solutions of the set that race too."""
    definition = catalog.definition(operator)
    solution = solution_of_file(catalog, file, definition) if file else None
    lines = shape_lines(catalog, definition, shapes)
    with tempfile.TemporaryDirectory(prefix="kernelderby-") as folder:
        if lines:
            _count(catalog, definition, lines)
        taken = [*rivals, solution] if solution else [*rivals]
        scratch = scratch_set(catalog, Path(folder), definition, taken, lines)
        named = [file, "--for", operator] if file else [rivals[0].name if len(rivals) == 1 else operator]
        asked = " ".join([*named, *(f"--shape {shape}" for shape in shapes)])
        yield AdHoc(scratch, catalog, scratch.definition(operator), solution, tuple(lines), tuple(rivals), asked)


@contextmanager
def adhoc_of(
    catalog: Catalog,
    solutions: Sequence[str],
    definitions: Sequence[str],
    operator: str | None,
    shapes: Sequence[str],
    with_rivals: bool = False,
) -> Iterator[AdHoc | None]:
    """The scratch set for a FILE.py among the solutions, or for given shapes; None without either. with_rivals: the
    set's solutions race beside the file."""
    files = [name for name in solutions if is_file(name)]
    if not files and not shapes:
        if operator is not None:
            raise DerbyError("operator= goes with a FILE.py or shapes; name it in definitions=")
        yield None
        return
    named = catalog.solutions_named(name for name in solutions if name not in files)
    of = {each.definition for each in named} | {*definitions}
    if len(files) > 1 or len(of | {operator} - {None}) > 1:
        raise DerbyError("a FILE.py and shapes need one operator; give one of each")
    if not files and not (of or operator):
        raise DerbyError("shapes: of which operator? give operator=")
    name = operator or next(iter(of), None) or operator_of(catalog, files[0])
    rivals = named or (catalog.solutions_of(name) if with_rivals or not files else [])
    with adhoc_set(catalog, name, files[0] if files else "", shapes, rivals) as adhoc:
        yield adhoc


def _count(catalog: Catalog, definition: Definition, lines: Sequence[dict[str, Any]]) -> None:
    """Adds the costs that the definition's code can count. That code runs behind the fences."""
    from kernelderby.catalog.workloads import workload_of
    from kernelderby.measure.judge.fenced import FencedDefinitions

    with FencedDefinitions(catalog) as fenced:
        for line in lines:
            workload_of("--shape", line, definition)
            if (cost := fenced.cost(definition, line)) is not None:
                line["cost"] = cost
