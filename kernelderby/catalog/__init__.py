"""A trace set on disk -> records. Nothing is read before it is asked for, nothing is ever written or created."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from kernelderby.catalog.definitions import load_definition, load_workloads
from kernelderby.catalog.model import Definition, Requires, Solution, TensorSpec, Tolerance, Workload
from kernelderby.catalog.solutions import load_solutions
from kernelderby.errors import DerbyError
from kernelderby.fields import suggestion
from kernelderby.trace import Measurement

__all__ = ["Catalog", "Definition", "Requires", "Solution", "TensorSpec", "Tolerance", "Workload"]


class Catalog:
    """The definitions, workloads, solutions and traces under one root.

    warnings collects what was left out of `traces` (a last line that a killed run cut short), one line each.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []
        self._workloads: dict[str, list[Workload]] = {}

    @classmethod
    def open(cls, root: Path | str) -> Catalog:
        """DerbyError when there is no definitions/ under root."""
        root = Path(root)
        if not (root / "definitions").is_dir():
            raise DerbyError(f"{root}: has no definitions/ folder, so it is no trace set; give one with --root")
        return cls(root)

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for path in sorted((self.root / "definitions").rglob("*.json")):
            if len(path.relative_to(self.root).parts) != 3:
                raise DerbyError(f"{path}: is not at definitions/<op_type>/<definition>.json; "
                                 "move it (flashinfer-bench loads every JSON under definitions/)")
            definition = load_definition(path)
            if definition.name in found:
                raise DerbyError(f"{path}: name: {found[definition.name].path} has it too; names are unique in the set")
            found[definition.name] = definition
        return found

    @cached_property
    def solutions(self) -> dict[str, Solution]:
        return load_solutions(self.root, self.definitions)

    def definition(self, name: str) -> Definition:
        if name not in self.definitions:
            raise DerbyError(f"{self.root}: no definition {name!r}; {suggestion(name, self.definitions)}")
        return self.definitions[name]

    def solution(self, name: str) -> Solution:
        if name not in self.solutions:
            raise DerbyError(f"{self.root}: no solution {name!r}; {suggestion(name, self.solutions)}")
        return self.solutions[name]

    def solutions_of(self, definition_name: str) -> list[Solution]:
        self.definition(definition_name)
        return [solution for solution in self.solutions.values() if solution.definition == definition_name]

    def workloads_path(self, definition_name: str) -> Path:
        definition = self.definition(definition_name)
        return self.root / "workloads" / definition.op_type / f"{definition.name}.jsonl"

    def workloads(self, definition_name: str) -> list[Workload]:
        if definition_name not in self._workloads:
            self._workloads[definition_name] = load_workloads(self.workloads_path(definition_name),
                                                              self.definition(definition_name))
        return self._workloads[definition_name]

    def traces_path(self, gpu_id: str, definition_name: str) -> Path:
        """Where our own rows go. flashinfer-bench's own files lie elsewhere under traces/ and are read as well."""
        definition = self.definition(definition_name)
        return self.root / "traces" / gpu_id / definition.op_type / f"{definition.name}.jsonl"

    def traces(self, definition_name: str | None = None) -> list[Measurement]:
        """The recorded rows of one definition or of all, file by file in the order of their paths."""
        pattern = "*.jsonl" if definition_name is None else f"{self.definition(definition_name).name}.jsonl"
        return [row for path in sorted((self.root / "traces").rglob(pattern)) for row in self._read_traces(path)]

    def _read_traces(self, path: Path) -> list[Measurement]:
        lines = path.read_bytes().split(b"\n")
        cut_short = lines[-1]  # empty, unless the process was killed while it wrote
        rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = Measurement.from_trace(json.loads(line))
            except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
                if line is cut_short:
                    self.warnings.append(f"{path}:{number}: the last line was cut short; it is left out")
                    continue
                raise DerbyError(f"{path}:{number}: is no trace ({error}); mend or remove that line") from None
            except KeyError as error:
                raise DerbyError(f"{path}:{number}: {error.args[0]}: is missing; mend or remove that line") from None
            except (TypeError, AttributeError) as error:
                raise DerbyError(f"{path}:{number}: a field is odd ({error}); mend or remove that line") from None
            if row.definition != path.stem:
                raise DerbyError(f"{path}:{number}: definition: is {row.definition!r} but the path says {path.stem!r}; "
                                 "move that line")
            rows.append(row)
        return rows
