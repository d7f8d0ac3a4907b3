"""A case: one set of sizes, scalars and seed on which a solution runs. Plain data, so that it travels as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from kernelderby.catalog import Definition, Workload, constraints
from kernelderby.catalog.selection import workload_label
from kernelderby.errors import DerbyError
from kernelderby.store.fields import Size, convert


@dataclass(frozen=True, slots=True)
class Case:
    """sizes: every axis, const and var alike. scalars: the inputs that are plain numbers. files: input name ->
    {path, tensor_key} of the tensors that the workload keeps in a safetensors file; they are read only where the
    definition cannot generate them (a foreign dataset). generator: further values for generate_inputs."""

    label: str
    sizes: dict[str, int]
    scalars: dict[str, int | float | bool]
    seed: int
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    generator: dict[str, str | int | float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def case_of_workload(definition: Definition, workload: Workload, seed_offset: int = 0) -> Case:
    """The case that a workload describes; seed_offset > 0 gives other contents of the same sizes."""
    files = {
        name: {"path": spec["path"], "tensor_key": spec["tensor_key"]}
        for name, spec in workload.inputs.items()
        if spec["type"] == "safetensors"
    }
    return Case(
        workload_label(workload) + (f" seed+{seed_offset}" if seed_offset else ""),
        definition.sizes(workload.axes),
        dict(workload.scalars),
        workload.seed + seed_offset,
        files,
        workload.generator,
    )


def small_cases(
    definition: Definition, small_axes: dict[str, Any], variants: Iterable[dict[str, Any]] | None, seeds: int
) -> list[Case]:
    """The cases of `derby check` without a GPU: SMALL_AXES, and variants of it, each with several seeds.

    variants: the definition's SMALL_VARIANTS, each a dict of what differs from SMALL_AXES. A definition without them
    gets the ones that suit any operator: each var axis at 0 and at 1, each integer scalar at 0, where its constraints
    allow that. DerbyError where sizes that it gives itself violate them.
    """
    convert(f"{definition.source_path}: SMALL_AXES", small_axes, dict[str, Any])
    if variants is not None:
        convert(f"{definition.source_path}: SMALL_VARIANTS", variants, list[dict[str, Any]])
    else:
        variants = [
            {},
            *(each for each in _usual_variants(definition) if _violated(definition, {**small_axes, **each}) is None),
        ]
    cases = []
    for variant, seed in product(variants, range(seeds)):
        values = {**small_axes, **variant}
        missing = [axis for axis in definition.axes if axis not in values]
        if missing:
            raise DerbyError(f"{definition.source_path}: SMALL_AXES: lacks {', '.join(missing)}; add a size for each")
        if violated := _violated(definition, values):
            raise DerbyError(
                f"{definition.source_path}: SMALL_AXES with {variant or 'nothing else'}: {violated!r:.80} "
                "does not hold; mend the sizes"
            )
        scalars = {
            name: values[name] for name, spec in definition.inputs.items() if spec.shape is None and name in values
        }
        label = " ".join(f"{name}={value}" for name, value in variant.items()) or "small"
        places = {*definition.axes, *definition.inputs}
        generator = {name: value for name, value in values.items() if name not in places}
        sizes = convert(
            f"{definition.source_path}: SMALL_AXES", {axis: values[axis] for axis in definition.axes}, dict[str, Size]
        )
        cases.append(Case(f"{label} seed={seed}", sizes, scalars, seed, generator=generator))
    return cases


def _violated(definition: Definition, values: Mapping[str, Any]) -> str | None:
    """The first of the definition's constraints that these sizes break."""
    sizes = {axis: values[axis] for axis in definition.axes if isinstance(values.get(axis), int)}
    return next((text for text in definition.constraints if constraints.relation_holds(text, sizes) is False), None)


def _usual_variants(definition: Definition) -> Iterator[dict[str, Any]]:
    for axis, size in definition.axes.items():
        if size is None:
            yield {axis: 0}
            yield {axis: 1}
    for name, spec in definition.inputs.items():
        if spec.shape is None and spec.dtype.startswith("int"):
            yield {name: 0}
