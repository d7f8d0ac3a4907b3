"""A trace set on disk -> records. Nothing is read before it is asked for, nothing is ever written or created."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from kernelderby.catalog.definitions import load_definition
from kernelderby.catalog.model import Definition, Requires, Solution, TensorSpec, Tolerance, Workload
from kernelderby.catalog.solutions import UNIQUE, load_solutions
from kernelderby.catalog.traces import fresh_workloads, load_rows
from kernelderby.catalog.workloads import FRESH, load_workloads
from kernelderby.errors import DerbyError, LeftOut
from kernelderby.fields import suggestion
from kernelderby.files import files_under
from kernelderby.trace import Measurement

T = TypeVar("T")
__all__ = ["Catalog", "Definition", "Requires", "Solution", "TensorSpec", "Tolerance", "Workload"]


class Catalog:
    """The definitions, workloads, solutions and traces under one root.

    What is broken is left out, and `warnings` says what and why, one line each; with `strict` it is a DerbyError.
    """

    def __init__(self, root: Path, strict: bool = False) -> None:
        self.root, self.strict = root, strict
        self.warnings: list[str] = []
        self._broken_definitions: dict[str, str] = {}
        self._broken_solutions: dict[str, str] = {}
        self._workloads: dict[str, list[Workload]] = {}

    @classmethod
    def open(cls, root: Path | str, *, strict: bool = False) -> Catalog:
        """DerbyError when there is no definitions/ under root."""
        root = Path(root)
        if not (root / "definitions").is_dir():
            raise DerbyError(f"{root}: has no definitions/ folder, so it is no trace set; give one with --root")
        return cls(root, strict)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A DerbyError takes along what was left out, as its notes: it may be the reason why there is no answer."""
        try:
            yield
        except DerbyError as error:
            for warning in self.warnings:
                if warning.removesuffix("; left out") not in str(error):
                    error.add_note(warning)
            raise

    def left_out(self, problem: str) -> None:
        """Something of the set is broken and takes no part."""
        self._noted(LeftOut(f"{problem}; left out"))

    def _noted(self, problem: str) -> None:
        if self.strict:
            raise DerbyError(problem.removesuffix("; left out"))
        if problem not in self.warnings:
            self.warnings.append(problem)

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        twins: dict[str, Path] = {}
        for path in files_under(self.root / "definitions", ".json", self.left_out):
            try:
                if len(path.relative_to(self.root).parts) != 3:
                    raise DerbyError(
                        f"{path}: is not at definitions/<op_type>/<definition>.json; "
                        "move it (flashinfer-bench loads every JSON under definitions/)"
                    )
                definition = load_definition(path)
                if twin := twins.get(definition.name.casefold()):
                    raise DerbyError(f"{path}: name: {twin} has it too; {UNIQUE}")
            except DerbyError as error:
                self._broken_definitions.setdefault(path.stem, str(error))
                self.left_out(str(error))
                continue
            found[definition.name], twins[definition.name.casefold()] = definition, path
        return found

    @cached_property
    def solutions(self) -> dict[str, Solution]:
        definitions = self.definitions
        solutions, problems = load_solutions(self.root, definitions, self._left_out_solution, self._noted)
        self._broken_solutions.update(problems)
        return solutions

    def _left_out_solution(self, problem: str) -> None:
        """Nothing is said of the solutions of a definition that was left out, which is said already."""
        if not any(f"definition: {name!r} is unknown" in problem for name in self._broken_definitions):
            self.left_out(problem)

    def definition(self, name: str) -> Definition:
        return _named(self.root, "definition", name, self.definitions, self._broken_definitions)

    def solution(self, name: str) -> Solution:
        return _named(self.root, "solution", name, self.solutions, self._broken_solutions)

    def solutions_of(self, definition_name: str) -> list[Solution]:
        self.definition(definition_name)
        return [solution for solution in self.solutions.values() if solution.definition == definition_name]

    def workloads_path(self, definition_name: str) -> Path:
        definition = self.definition(definition_name)
        return self.root / "workloads" / definition.op_type / f"{definition.name}.jsonl"

    def workloads(self, definition_name: str) -> list[Workload]:
        if definition_name not in self._workloads:
            path, definition = self.workloads_path(definition_name), self.definition(definition_name)
            self._workloads[definition_name] = self._lines(
                path, lambda left_out: load_workloads(path, definition, left_out)
            )
        return self._workloads[definition_name]

    def shapes(self, definition_name: str, rows: Iterable[Measurement]) -> list[Workload]:
        """The workloads of the definition, and the fresh shapes that some of these rows were measured of."""
        definition, listed = self.definition(definition_name), self.workloads(definition_name)
        known = {workload.uuid for workload in listed}
        fresh = fresh_workloads(rows, definition, self._noted)
        return [*listed, *(workload for workload in fresh if workload.uuid not in known)]

    def check_origins(self, origins: Collection[str]) -> None:
        """DerbyError for an origin that no workload of the set has. Fresh shapes stand in rows, not in the set."""
        if not origins:
            return
        known = {each.origin for name in self.definitions for each in self.workloads(name) if each.origin} | {FRESH}
        for origin in origins:
            if origin not in known:
                raise DerbyError(f"--origin: no workload of the set has {origin!r}; {suggestion(origin, known)}")

    def traces_path(self, gpu_id: str, definition_name: str) -> Path:
        """Where our own rows go. flashinfer-bench's own files lie elsewhere under traces/ and are read as well."""
        definition = self.definition(definition_name)
        return self.root / "traces" / gpu_id / definition.op_type / f"{definition.name}.jsonl"

    def traces(self, definition_name: str | None = None) -> list[Measurement]:
        """The recorded rows of one definition or of all, file by file in the order of their paths."""
        wanted = None if definition_name is None else f"{self.definition(definition_name).name}.jsonl"
        return [row for path in self.traces_files() if wanted in (None, path.name) for row in self._rows(path)]

    def traces_files(self) -> list[Path]:
        return files_under(self.root / "traces", ".jsonl", self.left_out)

    def _rows(self, path: Path) -> list[Measurement]:
        definition = self.definitions.get(path.stem)
        known = {workload.uuid: workload for workload in self.workloads(path.stem)} if definition else {}
        folders = path.relative_to(self.root / "traces").parts[:-1]
        place = (folders[0], folders[1]) if len(folders) == 2 else None
        return self._lines(path, lambda left_out: load_rows(path, known, left_out, self._noted, place, definition))

    def _lines(self, path: Path, read: Callable[[Callable[[str], None]], list[T]]) -> list[T]:
        """What read gives of a file of many lines. What it leaves out is one warning, not one a line."""
        problems: list[str] = []

        def left_out(problem: str) -> None:
            if self.strict:
                raise DerbyError(problem)
            problems.append(problem)

        try:
            found = read(left_out)
        except DerbyError as error:
            left_out(str(error))
            found = []
        if problems:
            self.left_out(problems[0] + (f"; {len(problems) - 1} other lines of it too" if problems[1:] else ""))
        return found


def _named(root: Path, kind: str, name: str, known: Mapping[str, T], broken: Mapping[str, str]) -> T:
    if name in known:
        return known[name]
    if name in broken:
        raise DerbyError(broken[name])
    where = "" if root == Path() else f"{root}: "  # the current directory goes without saying
    raise DerbyError(f"{where}no {kind} {name!r}; {suggestion(name, known)}")
