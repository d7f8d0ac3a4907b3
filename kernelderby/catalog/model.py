"""The contents of a trace set as frozen data: definitions, workloads, solutions. Rows are
rows.measurement.Measurement."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from kernelderby.catalog.code import running_parts
from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Cost, Stage
from kernelderby.store.fields import Capability, ModuleName, Most, Name, NotNegative, ProgramName, RelativeError

_DEVIATIONS = 4.5  # of Tolerance.least_ratio


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: the axes of its shape (None for a scalar) and flashinfer-bench's name of its dtype.

    constant: the input stays the same from call to call where the operator is used (weights), or "step", for all layers
    of a model's step (lengths, tables of blocks), so that a solution's setup may work on it once."""

    shape: tuple[str, ...] | None
    dtype: str
    constant: bool | Literal["step"] = False


class Tolerance(Struct, frozen=True):
    """How far an output may be off. An element fails when its absolute error exceeds atol AND its relative error
    exceeds rtol; the share of elements that do not fail must reach required_matched_ratio. outputs: the names of the
    outputs that it is for, all of them when empty.

    Where that share may be below 1, two bounds beside it tell noise from what is wrong. row_error: of every row (along
    the last axis; narrow ones together, see row_and_scale), the norm of the error over the norm of the reference.
    scale_error: of the whole output, how far the factor that fits it best to the reference is from 1."""

    name: Name
    atol: NotNegative
    rtol: RelativeError
    required_matched_ratio: Most
    reason: str
    outputs: tuple[str, ...] = ()
    row_error: NotNegative | None = None
    scale_error: NotNegative | None = None

    def least_ratio(self, elements: int) -> float:
        """The share of this many elements that must not fail.

        Which elements fail is chance: more may than the ratio says, by as many standard deviations of that chance as no
        honest solution meets, but never more than half. Of many elements that is next to nothing."""
        ratio = self.required_matched_ratio
        if not elements:
            return ratio
        allowed = elements * (1 - ratio)
        chance = _DEVIATIONS * math.sqrt(allowed * ratio)
        return 1 - max(allowed, min(allowed + chance, elements / 2)) / elements


@dataclass(frozen=True, slots=True)
class Definition:
    """The contract of one operator. axes: name -> size, None where the workload gives it."""

    name: str
    op_type: str
    axes: dict[str, int | None]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    tolerances: tuple[Tolerance, ...]
    description: str
    path: Path  # the JSON
    source_path: Path | None  # the .py beside it; None in a dataset that has JSON only
    reference: str  # the reference's code: the .py's text, the JSON's where there is no .py
    custom_inputs_entrypoint: str | None
    races_reference: bool = False  # the reference is a solution, as a baseline would be
    constraints: tuple[str, ...] = ()  # relations between axes, see constraints.py
    descriptions: dict[str, dict[str, str]] = field(default_factory=dict)  # axes | inputs | outputs -> name -> text

    def __repr__(self) -> str:
        return f"Definition({self.name!r}, {', '.join(self.inputs)} -> {', '.join(self.outputs)})"

    @property
    def place(self) -> Path:
        """Where its code stands."""
        return self.source_path or self.path

    @property
    def constants(self) -> tuple[str, ...]:
        """The inputs that stay the same from call to call, in the definition's order."""
        return tuple(name for name, spec in self.inputs.items() if spec.constant is True)

    @property
    def of_setup(self) -> tuple[str, ...]:
        """The inputs that setup gets, in the definition's order: the constants, and what a step's layers share."""
        return tuple(name for name, spec in self.inputs.items() if spec.constant)

    def with_setup(self) -> Definition:
        """As a solution with a setup sees it: what a step's layers share is constant, too."""
        inputs = {name: replace(spec, constant=bool(spec.constant)) for name, spec in self.inputs.items()}
        return replace(self, inputs=inputs)

    def sizes(self, workload_axes: Mapping[str, int]) -> dict[str, int]:
        """Every axis -> size, constant and variable together. DerbyError when a workload's axes do not fit."""
        variable = {name for name, size in self.axes.items() if size is None}
        if variable != set(workload_axes):
            wanted, found = ", ".join(sorted(variable)), ", ".join(sorted(workload_axes)) or "none"
            raise DerbyError(f"{self.path}: axes: the workload must give {wanted}, not {found}; mend it")
        return {name: workload_axes[name] if size is None else size for name, size in self.axes.items()}


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of a definition. inputs: name -> {type: random | scalar | safetensors, ...} as in the file.

    raw is the whole line of the workloads file; raw["workload"] (uuid, axes, inputs) is what a trace repeats.
    cost is None until `derby pack` has counted it. shape_id, framework, call_count: of a published shape, where it was
    seen. importance: weight among the definition's workloads, 1 where None. origin: "survey" for the published shapes,
    another word for a set of our own. generator: further values for the definition's generate_inputs, such as how
    skewed a routing is. source: of a model's shape, such as model, tensor_parallel and layer.
    """

    definition: str
    uuid: str
    axes: dict[str, int]
    inputs: dict[str, dict[str, Any]]
    cost: Cost | None
    raw: dict[str, Any]
    shape_id: int | None = None
    importance: float | None = None
    framework: str | None = None
    call_count: int | None = None
    origin: str | None = None
    generator: dict[str, str | int | float] = field(default_factory=dict)
    source: dict[str, str | int] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Of the generated inputs: 48 bits of the uuid's SHA-256, so that it depends on nothing else."""
        return int.from_bytes(hashlib.sha256(self.uuid.encode()).digest()[:6], "big")

    def __repr__(self) -> str:
        return f"Workload({self.uuid[:8]}, {', '.join(f'{name}={size}' for name, size in self.axes.items())})"

    @property
    def scalars(self) -> dict[str, int | float | bool]:
        """Name -> value of the inputs that are plain numbers."""
        return {name: spec["value"] for name, spec in self.inputs.items() if spec["type"] == "scalar"}


class Requires(Struct, frozen=True):
    """What a solution needs of a machine. Compute capabilities are inclusive, such as "9.0"; executables: on the PATH
    or in the CUDA toolkit's bin; cpu: runs without a GPU (a Triton solution in Triton's interpreter)."""

    modules: tuple[ModuleName, ...] = ()
    executables: tuple[ProgramName, ...] = ()
    minimum_compute_capability: Capability | None = None
    maximum_compute_capability: Capability | None = None
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class Solution:
    """One implementation of a definition. sources: path inside the solution -> text, sorted by path; those named in
    `common` stand in solutions/<author>/common/ (a solution.toml names them, or a CUDA source includes them).

    setup: file::function that gets the definition's constant inputs by name, once, and returns a dict; the calls get
    its entries as keyword arguments. in_place: output -> the input that lies in the same memory. aliases: other names
    that find it. same_code: groups of hashes that mean the same code of it; same_kernels: pairs of other host code
    around the same kernels, and the workloads (None: all) on which they are launched alike."""

    name: str
    definition: str
    author: str
    op_type: str
    language: str
    entry_point: str  # file::function
    destination_passing_style: bool
    description: str
    folder: Path | None  # None where only the packed JSON exists
    json_path: Path
    sources: dict[str, str]
    requires: Requires
    stages: tuple[Stage, ...]
    target_hardware: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    binding: str | None = None
    common: tuple[str, ...] = ()
    setup: str | None = None
    in_place: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    same_code: tuple[frozenset[str], ...] = ()
    same_kernels: tuple[tuple[str, str, frozenset[str] | None], ...] = ()
    _hashes: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"Solution({self.name!r} by {self.author} for {self.definition})"

    @property
    def hash(self) -> str:
        """16 hex digits of everything that can change what runs: comments, layout, names and prose are not in it.
        Recorded rows carry it; has_code() tells whether they are of this code."""
        if not self._hashes:
            self._hashes["code"] = self.digest_of(running_parts(self.sources))
        return self._hashes["code"]

    @property
    def text_hash(self) -> str:
        """The same of the sources word for word. Rows carried it until 23 November 2026."""
        return self.digest_of(sorted(self.sources.items()))

    def has_code(self, recorded: str) -> bool:
        """Whether a row with this hash was measured with the code that the solution has now. Everyone who compares
        hashes asks this."""
        return self.code_of(recorded) == self.code_of(self.hash)

    def has_kernels(self, recorded: str, uuid: str | None = None) -> bool:
        """Whether a row with this hash was measured at least with the present kernels, launched alike on that workload
        (without one: on any): its graph times count."""
        reached, edges = (
            {self.code_of(recorded)},
            [
                {self.code_of(before), self.code_of(after)}
                for before, after, on in self.same_kernels
                if on is None or uuid is None or uuid in on
            ],
        )
        while more := [edge for edge in edges if edge & reached and not edge <= reached]:
            reached.update(*more)
        return self.code_of(self.hash) in reached

    def code_of(self, recorded: str) -> str:
        """One hash for all that mean the same code (same_code.py)."""
        return next((min(group) for group in self.same_code if recorded in group), recorded)

    def digest_of(self, parts: list[tuple[str, str]]) -> str:
        running = [
            self.language,
            self.entry_point,
            self.binding,
            sorted(self.dependencies),
            self.destination_passing_style,
            parts,
        ]
        if self.setup or self.in_place:  # left out of the others, whose hashes stand in recorded rows
            running += [self.setup, sorted(self.in_place.items())]
        return hashlib.sha256(json.dumps(running).encode()).hexdigest()[:16]
