"""A trace set on disk -> records. Files are read on demand. Nothing is ever written or created."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from kernelderby.catalog.columns.parts import ColumnParts, Index, Part, Stretch, are_worth_it, digest_of, key_of
from kernelderby.catalog.definitions import load_definition
from kernelderby.catalog.groups import RowGroup, groups_of, read_groups
from kernelderby.catalog.model import Definition, Requires, Solution, TensorSpec, Tolerance, Workload
from kernelderby.catalog.reference import reference_named, reference_solution
from kernelderby.catalog.solutions import UNIQUE, load_solutions
from kernelderby.catalog.traces import fresh_workloads, load_rows, note_future
from kernelderby.catalog.workloads import FRESH, load_workloads
from kernelderby.errors import DerbyError, LeftOut
from kernelderby.rows.measurement import Measurement
from kernelderby.store.bounds import bound_text, bounds, reading
from kernelderby.store.counts import counted
from kernelderby.store.fields import lines_in, suggestion
from kernelderby.store.files import files_under, opened
from kernelderby.store.names import alike

T = TypeVar("T")
_GPU, _PROTOCOL = attrgetter("gpu"), attrgetter("protocol")
__all__ = ["Catalog", "Definition", "Requires", "Solution", "TensorSpec", "Tolerance", "Workload"]


class Catalog:
    """The definitions, workloads, solutions and traces under one root.

    Broken parts are left out; `warnings` has a line with the reason for each. With `strict` a broken part is a
    DerbyError.
    """

    def __init__(self, root: Path, strict: bool = False) -> None:
        self.root, self.strict = root, strict
        self.warnings: list[str] = []
        self._broken_definitions: dict[str, str] = {}
        self._broken_solutions: dict[str, str] = {}
        self._workloads: dict[str, list[Workload]] = {}

    @classmethod
    def open(cls, root: Path | str, *, strict: bool = False) -> Catalog:
        """DerbyError if root has no definitions/."""
        root = Path(root)
        if not (root / "definitions").is_dir():
            raise DerbyError(f"{root}: has no definitions/ folder, so it is no trace set; give one with --root")
        return cls(root, strict)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Adds the warnings about left-out parts to a DerbyError as notes, because they may be its cause."""
        try:
            yield
        except DerbyError as error:
            for warning in self.warnings:
                if warning.removesuffix("; left out") not in str(error):
                    error.add_note(warning)
            raise

    def left_out(self, problem: str) -> None:
        """Records that a broken part of the set is left out."""
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
                with reading(path):
                    definition = load_definition(path)
                if twin := twins.get(alike(definition.name)):
                    raise DerbyError(f"{path}: name: {twin} has it too; {UNIQUE}")
            except DerbyError as error:
                self._broken_definitions.setdefault(path.stem, str(error))
                self.left_out(str(error))
                continue
            found[definition.name], twins[alike(definition.name)] = definition, path
        return found

    @cached_property
    def solutions(self) -> dict[str, Solution]:
        definitions = self.definitions
        solutions, problems = load_solutions(self.root, definitions, self._left_out_solution, self._noted)
        self._broken_solutions.update(problems)
        for definition in definitions.values():
            if definition.races_reference:
                reference = reference_solution(definition)
                solutions.setdefault(reference.name, reference)
        return solutions

    def _left_out_solution(self, problem: str) -> None:
        """Gives no warning for the solutions of a left-out definition, because that definition has a warning
        already."""
        if not any(f"definition: {name!r} is unknown" in problem for name in self._broken_definitions):
            self.left_out(problem)

    def definition(self, name: str) -> Definition:
        if name not in self.definitions and (other := self.solutions.get(name)):
            raise DerbyError(f"{name} is a solution of {other.definition}; name the operator")
        return _named(self.root, "operator", name, self.definitions, self._broken_definitions)

    def solution(self, name: str) -> Solution:
        """The solution of a name or an alias. NAME_reference is the reference of the definition NAME."""
        if name not in self.solutions and name not in self._broken_solutions:
            other = self.aliases.get(name) or reference_named(name, self.definitions)
            if other is not None:
                return other
            if name in self.definitions:
                own = " or ".join([each.name for each in self.solutions_of(name)[:3]] or [f"{name}_reference"])
                raise DerbyError(f"{name} is an operator; name a solution of it, such as {own}")
            if name.partition("::")[0].endswith(".py"):
                raise DerbyError(f"{name}: check and bench alone take a file; `derby new solution` adds one to the set")
        return _named(self.root, "solution", name, {**self.aliases, **self.solutions}, self._broken_solutions)

    def solutions_named(self, names: Iterable[str]) -> list[Solution]:
        """The solutions of these names, each once, even if several names mean it."""
        return [*{each.name: each for each in map(self.solution, names)}.values()]

    @cached_property
    def aliases(self) -> dict[str, Solution]:
        return {alias: solution for solution in self.solutions.values() for alias in solution.aliases}

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
        """The workloads of the definition, and the fresh shapes in these rows."""
        definition, listed = self.definition(definition_name), self.workloads(definition_name)
        known = {workload.uuid for workload in listed}
        fresh = fresh_workloads(rows, definition, self._noted)
        return [*listed, *(workload for workload in fresh if workload.uuid not in known)]

    def check_origins(self, origins: Collection[str]) -> None:
        """DerbyError for an origin that no workload of the set has. Fresh shapes are in rows, not in workloads
        files."""
        if not origins:
            return
        known = {each.origin for name in self.definitions for each in self.workloads(name) if each.origin} | {FRESH}
        for origin in origins:
            if origin not in known:
                raise DerbyError(f"--origin: no workload of the set has {origin!r}; {suggestion(origin, known)}")

    def traces_path(self, gpu_id: str, definition_name: str) -> Path:
        """The file of our own rows. flashinfer-bench's files lie elsewhere under traces/ and are read too."""
        definition = self.definition(definition_name)
        return self.root / "traces" / gpu_id / definition.op_type / f"{definition.name}.jsonl"

    def traces(
        self, definition_name: str | None = None, *, clocks: bool = True, replaced: bool = True
    ) -> list[Measurement]:
        """The recorded rows of one definition or of all, file by file in the order of their paths. clocks: False if the
        caller does not need correctness, setup and clocks, which may then be missing. replaced: False if the caller
        does not need rows that a later row of the same key replaces; a large set then leaves them out."""
        wanted = None if definition_name is None else self.definition(definition_name).name
        return self.rows_of_files(wanted, clocks=clocks, replaced=replaced)

    def row_groups(self) -> list[RowGroup]:
        """Sums over all rows of the set's definitions, including replaced rows."""
        paths = [path for path in self._named_so(None) if path.stem in self.definitions]
        columns = self._columns_of(paths) if self.is_large else {}
        if self._parts is not None and len(columns) == len(paths):
            with suppress(OSError, ValueError):
                found = [read_groups(self._parts.paths(path, columns[path]), path.stem) for path in paths]
                return [group for of_file in found for group in of_file]
        return groups_of(row for row in self.traces(clocks=False) if row.definition in self.definitions)

    def rows_of_files(self, name: str | None, *, clocks: bool = False, replaced: bool = True) -> list[Measurement]:
        """traces() for the files of one name, which need not be a definition's, or for all files."""
        paths = self._named_so(name)
        columns = self._columns_of(paths)
        rows = [row for path in paths for row in self._rows(path, columns.get(path), clocks, replaced)]
        return self._of_few(self._of_few(rows, "evaluation.environment.hardware", _GPU), "protocol", _PROTOCOL)

    def _of_few(self, rows: list[Measurement], field: str, name_of: Callable[[Measurement], str]) -> list[Measurement]:
        """The rows without the rarest names, if there are more names than any honest set has."""
        counts, most = Counter(map(name_of, rows)), int(bounds().names)
        if len(counts) <= most:
            return rows
        kept = {name for name, _ in counts.most_common(most)}
        left = [row for row in rows if name_of(row) not in kept]
        place = left[0].place.path if left[0].place else self.root / "traces"
        self.left_out(
            f"{place}: {field}: with {name_of(left[0])!r:.40} there are {len(counts):,} different ones, and "
            f"{bound_text('names', most)}; {counted(len(left), 'row')}"
        )
        return [row for row in rows if name_of(row) in kept]

    def traces_files(self, ending: str = ".jsonl") -> list[Path]:
        return files_under(self.root / "traces", ending, self.left_out)

    def _named_so(self, name: str | None) -> list[Path]:
        return [path for path in self.traces_files(f"{name or ''}.jsonl") if name in (None, path.stem)]

    @cached_property
    def _parts(self) -> ColumnParts | None:
        """Columns of the rows, if they are worth it. A full check reads the lines instead."""
        return None if self.strict or not are_worth_it(self.traces_files()) else ColumnParts(self.root, self.part_of)

    @property
    def is_large(self) -> bool:
        return self._parts is not None

    def _columns_of(self, paths: list[Path]) -> dict[Path, Index]:
        """The columns of the files whose rows agree. The other files must be read line by line."""
        if self._parts is None:
            return {}
        try:
            found = self._parts.of(paths, {path: self._key(path) for path in paths})
        except (OSError, DerbyError):
            return {}  # reading the lines gives the error
        for columns in found.values():
            left_out = [(part.problem, part.left_out) for part in columns.parts if part.left_out]
            if left_out:
                self._tell(left_out[0][0], sum(count for _, count in left_out))
        return {path: columns for path, columns in found.items() if columns.agrees}

    def remembered(self, question: Sequence[str], name: str, kind: type[T], work_out: Callable[[], T]) -> T:
        """A result computed from the rows of one name. For a set of many rows it is computed once and kept. question:
        everything else that the result depends on, except the definition and its solutions."""
        key = self._remembered_as(question, name)
        return work_out() if key is None or self._parts is None else self._parts.remembered(key, kind, work_out)

    def is_remembered(self, question: Sequence[str], name: str) -> bool:
        key = self._remembered_as(question, name)
        return key is not None and self._parts is not None and self._parts.result_path(key).is_file()

    def _remembered_as(self, question: Sequence[str], name: str) -> tuple[str, ...] | None:
        paths = self._named_so(name) if self.is_large else []
        columns = self._columns_of(paths)
        if not paths or len(columns) < len(paths):
            return None
        if any(part.newest > time.time() for each in columns.values() for part in each.parts):
            return None  # the warning must come again, so the result is not kept
        names = [f"{path.relative_to(self.root)} {part.name}" for path in paths for part in columns[path].parts]
        return *question, name, *names, self._held_against(name), *self._solution_keys.get(name, ())

    @cached_property
    def _solution_keys(self) -> dict[str, list[str]]:
        """Definition -> a key for each of its solutions. It hashes their texts, which is quick."""
        found: dict[str, list[str]] = {}
        for each in self.solutions.values():
            same = [sorted(group) for group in each.same_code]
            kernels = [(one, two, sorted(on) if on else on) for one, two, on in each.same_kernels]
            found.setdefault(each.definition, []).append(
                repr((each.name, each.author, each.text_hash, each.in_place, same, kernels))
            )
        return found

    def _key(self, path: Path) -> str:
        """A key of everything else that the reading of a file depends on."""
        return key_of(str(path.relative_to(self.root)), self._held_against(path.stem))

    def _held_against(self, definition_name: str) -> str:
        """A key of the data with which a definition's rows must agree."""
        if definition_name not in self.definitions:
            return ""
        workloads = self.workloads_path(definition_name)
        return key_of(
            self.definition(definition_name).path.read_bytes(), workloads.read_bytes() if workloads.is_file() else b""
        )

    def part_of(self, stretch: Stretch) -> Part:
        """Makes columns from some lines of a file."""
        from kernelderby.catalog.columns.batches import columns_of
        from kernelderby.catalog.columns.write import write_columns

        path = Path(stretch.path)
        with opened(path) as file:
            text = os.pread(file.fileno(), stretch.end - stretch.start, stretch.start)
        problems: list[str] = []
        with reading(path):
            columns = self._reading(path, columns_of)(left_out=problems.append, lines=lines_in(text, stretch.first))
        digest = digest_of(text)
        name = key_of(stretch.key, digest, str(stretch.first))
        parts = self._parts or ColumnParts(self.root, self.part_of)
        write_columns(parts.place(path, name), columns)
        return Part(
            *(stretch.start, stretch.end, digest, name, stretch.first, text.count(b"\n"), len(problems)),
            "".join(problems[:1]),
            columns.newest(),
            not text.endswith(b"\n"),
        )

    def _reading(self, path: Path, read: Callable[..., T]) -> Callable[..., T]:
        """Prepares load_rows() or quick.columns_of() for a file; only left_out and noted are missing."""
        definition = self.definitions.get(path.stem)
        known = {workload.uuid: workload for workload in self.workloads(path.stem)} if definition else {}
        folders = path.relative_to(self.root / "traces").parts[:-1]
        place = (folders[0], folders[1]) if len(folders) == 2 else None
        return partial(read, path, known, place=place, definition=definition)

    def _rows(self, path: Path, columns: Index | None, clocks: bool, replaced: bool) -> list[Measurement]:
        if columns is not None and self._parts is not None:
            with suppress(OSError, ValueError):  # pyarrow's errors are of these; the lines are whole
                return self._from_columns(path, columns, self._parts, clocks, replaced)
        return self._lines(path, lambda left_out: self._reading(path, load_rows)(left_out, self._noted))

    def _from_columns(
        self, path: Path, columns: Index, parts: ColumnParts, clocks: bool, replaced: bool
    ) -> list[Measurement]:
        from kernelderby.catalog.columns.read import read_columns

        rows = [*read_columns(parts.paths(path, columns), path.stem, str(path), clocks=clocks, replaced=replaced)]
        if any(part.newest > time.time() for part in columns.parts):
            note_future(rows, self._noted)
        return rows

    def _lines(self, path: Path, read: Callable[[Callable[[str], None]], list[T]]) -> list[T]:
        """The result of `read` for a file of many lines. All left-out lines share one warning."""
        problems: list[str] = []

        def left_out(problem: str) -> None:
            if self.strict:
                raise DerbyError(problem)
            problems.append(problem)

        try:
            with reading(path):
                found = read(left_out)
        except DerbyError as error:
            left_out(str(error))
            found = []
        if problems:
            self._tell(problems[0], len(problems))
        return found

    def _tell(self, first: str, count: int) -> None:
        """One warning for several lines of one file."""
        self.left_out(first + (f"; {counted(count - 1, 'other line')} of it too" if count > 1 else ""))


def _named(root: Path, kind: str, name: str, known: Mapping[str, T], broken: Mapping[str, str]) -> T:
    if name in known:
        return known[name]
    if name in broken:
        raise DerbyError(broken[name])
    where = "" if root == Path() else f"{root}: "  # the current directory needs no name
    raise DerbyError(f"{where}no {kind} {name!r:.80}; {suggestion(name, known)}")
