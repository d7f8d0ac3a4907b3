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

    constant: True if the input stays the same from call to call in practice (weights); "step" if all layers of a
    model's step share it (lengths, tables of blocks). A solution's setup may prepare such inputs once."""

    shape: tuple[str, ...] | None
    dtype: str
    constant: bool | Literal["step"] = False


class Tolerance(Struct, frozen=True):
    """How far an output may be off. An element fails if its absolute error exceeds atol AND its relative error exceeds
    rtol. The share of elements that do not fail must reach required_matched_ratio. outputs: the names of the outputs to
    which the tolerance applies; empty means all.

    If that share may be below 1, two further bounds separate noise from errors. row_error: bound of the norm of the
    error over the norm of the reference, for every row (along the last axis; narrow rows together, see row_and_scale).
    scale_error: bound of the distance from 1 of the factor that fits the whole output best to the reference."""

    name: Name
    atol: NotNegative
    rtol: RelativeError
    required_matched_ratio: Most
    reason: str
    outputs: tuple[str, ...] = ()
    row_error: NotNegative | None = None
    scale_error: NotNegative | None = None

    def least_ratio(self, elements: int) -> float:
        """The minimum share of this many elements that must not fail.

        Which elements fail is chance. So more elements may fail than the ratio says, by a number of standard deviations
        that no honest solution reaches, but never more than half. For many elements this allowance is negligible."""
        ratio = self.required_matched_ratio
        if not elements:
            return ratio
        elements = min(elements, 1 << 62)  # a product of hostile sizes fits into no float
        allowed = elements * (1 - ratio)
        chance = _DEVIATIONS * math.sqrt(allowed * ratio)
        return 1 - max(allowed, min(allowed + chance, elements / 2)) / elements


@dataclass(frozen=True, slots=True)
class Definition:
    """The contract of one operator. axes: name -> size, None if the workload gives the size."""

    name: str
    op_type: str
    axes: dict[str, int | None]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    tolerances: tuple[Tolerance, ...]
    description: str
    path: Path  # the JSON
    source_path: Path | None  # the .py beside it; None in a dataset with JSON only
    reference: str  # the reference's code: from the .py, or from the JSON without a .py
    custom_inputs_entrypoint: str | None
    races_reference: bool = False  # the reference races as a solution, like a baseline
    constraints: tuple[str, ...] = ()  # relations between axes, see constraints.py
    descriptions: dict[str, dict[str, str]] = field(default_factory=dict)  # axes | inputs | outputs -> name -> text

    def __repr__(self) -> str:
        return f"Definition({self.name!r}, {', '.join(self.inputs)} -> {', '.join(self.outputs)})"

    @property
    def place(self) -> Path:
        """The file that holds its code."""
        return self.source_path or self.path

    @property
    def constants(self) -> tuple[str, ...]:
        """The inputs that stay the same from call to call, in the definition's order."""
        return tuple(name for name, spec in self.inputs.items() if spec.constant is True)

    @property
    def of_setup(self) -> tuple[str, ...]:
        """The inputs that setup gets, in the definition's order: the constants, and the inputs that a step's layers
        share."""
        return tuple(name for name, spec in self.inputs.items() if spec.constant)

    def with_setup(self) -> Definition:
        """The definition as a solution with a setup sees it: the inputs that a step's layers share are constant too."""
        inputs = {name: replace(spec, constant=bool(spec.constant)) for name, spec in self.inputs.items()}
        return replace(self, inputs=inputs)

    def sizes(self, workload_axes: Mapping[str, int]) -> dict[str, int]:
        """Every axis -> size, constant and variable together. DerbyError if a workload's axes do not fit."""
        variable = {name for name, size in self.axes.items() if size is None}
        if variable != set(workload_axes):
            wanted, found = ", ".join(sorted(variable)), ", ".join(sorted(workload_axes)) or "none"
            raise DerbyError(f"{self.path}: axes: the workload must give {wanted}, not {found}; mend it")
        return {name: workload_axes[name] if size is None else size for name, size in self.axes.items()}


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of a definition. inputs: name -> {type: random | scalar | safetensors, ...} as in the file.

    raw is the whole line of the workloads file; raw["workload"] (uuid, axes, inputs) is what a trace repeats.
    cost is None until `derby pack` has counted it. shape_id, framework, call_count: number of a published shape, where
    it was seen, and how often. importance: weight among the definition's workloads; None means 1. origin: "survey" for
    the published shapes, another word for a set of our own. generator: further values for the definition's
    generate_inputs, such as the skew of a routing. source: where a model's shape comes from, such as model,
    tensor_parallel and layer.
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
        """The seed of the generated inputs: 48 bits of the uuid's SHA-256, so it depends on nothing else."""
        return int.from_bytes(hashlib.sha256(self.uuid.encode()).digest()[:6], "big")

    def __repr__(self) -> str:
        return f"Workload({self.uuid[:8]}, {', '.join(f'{name}={size}' for name, size in self.axes.items())})"

    @property
    def scalars(self) -> dict[str, int | float | bool]:
        """Name -> value, for the inputs that are plain numbers."""
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
    its entries as keyword arguments. in_place: output -> the input in the same memory. aliases: other names for it.
    same_code: groups of hashes of equal code. same_kernels: pairs of hashes with equal kernels and different host code,
    and the workloads (None: all) on which both launch the same."""

    name: str
    definition: str
    author: str
    op_type: str
    language: str
    entry_point: str  # file::function
    destination_passing_style: bool
    description: str
    folder: Path | None  # None if only the packed JSON exists
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
        """16 hex digits of everything that can change what runs. Comments, layout, names and prose do not count.
        Recorded rows carry this hash; has_code() tells whether a row was measured with this code."""
        if not self._hashes:
            self._hashes["code"] = self.digest_of(running_parts(self.sources))
        return self._hashes["code"]

    @property
    def text_hash(self) -> str:
        """The same hash of the sources word for word. Rows carried it until 23 November 2026."""
        return self.digest_of(sorted(self.sources.items()))

    @property
    def has_cuda(self) -> bool:
        """Whether its main.py compiles CUDA with nvcc."""
        return any(path.endswith(".cu") for path in self.sources)

    def has_code(self, recorded: str) -> bool:
        """Whether a row with this hash was measured with the solution's present code. Every comparison of hashes goes
        through this method."""
        return self.code_of(recorded) == self.code_of(self.hash)

    def has_kernels(self, recorded: str, uuid: str | None = None) -> bool:
        """Whether a row with this hash was measured at least with the present kernels, launched in the same way on that
        workload (None: on any workload). Then its graph times count."""
        reached = {self.code_of(recorded)}
        edges = [
            {self.code_of(before), self.code_of(after)}
            for before, after, on in self.same_kernels
            if on is None or uuid is None or uuid in on
        ]
        while more := [edge for edge in edges if edge & reached and not edge <= reached]:
            reached.update(*more)
        return self.code_of(self.hash) in reached

    def code_of(self, recorded: str) -> str:
        """One hash for all hashes of the same code (same_code.py)."""
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
        if self.setup or self.in_place:  # only if set: recorded rows have the hashes of all others
            running += [self.setup, sorted(self.in_place.items())]
        return hashlib.sha256(json.dumps(running).encode()).hexdigest()[:16]
