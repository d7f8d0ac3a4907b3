"""Why an output is wrong: the first elements that differ, where they lie, and how large the reference is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition, Tolerance
from kernelderby.measure.judge.correctness import DEFAULT_TOLERANCE, Outputs, reference_outputs
from kernelderby.store.counts import counted

_FIRST = 4  # elements that are shown
_TILES = (16, 32, 64, 128, 256)
_LARGEST = 1 << 27  # elements; what is larger is not looked at


def look_closer(
    definition: Definition, module: ModuleType, inputs: Mapping[str, Any], outputs: Outputs, dump: Path | None = None
) -> tuple[str, ...]:
    """Lines for people, of the outputs of one call that was judged wrong. dump: a .safetensors file to write inputs,
    outputs and what was expected to."""
    expected = reference_outputs(definition, module, dict(inputs))
    if dump is not None:
        _write(dump, inputs, outputs, expected)
    canonical = getattr(module, "canonical_outputs", None)
    if canonical is not None:
        expected, outputs = canonical(expected, inputs), canonical(outputs, inputs)
    return tuple(line for name in expected for line in _of_output(definition, name, outputs[name], expected[name]))


def _of_output(definition: Definition, name: str, output: torch.Tensor, expected: torch.Tensor) -> Iterator[str]:
    if not expected.numel() or expected.numel() > _LARGEST or output.shape != expected.shape:
        return
    wide = torch.float32 if expected.is_floating_point() else torch.float64
    got, wanted = output.to(wide), expected.to(wide)
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    error = torch.where(same, 0, (got - wanted).abs())
    within = same.clone()
    for each in _tolerances(definition, name)[:1]:
        within |= (error <= each.atol) | (error <= each.rtol * (wanted.abs() + 1e-8))
    places = (~within).nonzero()
    if not len(places):
        return
    finite = wanted[wanted.isfinite()]
    scale = float(finite.double().square().mean().sqrt()) if finite.numel() else 0.0
    many = f"{len(places)} of {counted(expected.numel(), 'element differs', 'elements differ')}"
    yield f"{name}: {many}; the reference's root mean square is {scale:.4g}"
    for place in places[:_FIRST].tolist():
        at = tuple(place)
        yield f"  {name}[{', '.join(map(str, at))}]: got {float(got[at]):.6g}, expected {float(wanted[at]):.6g}"
    for line in _where(name, places, expected.shape):
        yield f"  {line}"
    if bool((got == 0).all()):
        yield "  every element of the output is 0"
    elif scale and len(places) > 0.9 * expected.numel():  # what is near 0 is within
        ratio = (got / wanted)[wanted.abs() > 0.1 * scale]
        if ratio.numel() > 1 and float(ratio.std()) < 0.02 * abs(float(ratio.mean())):
            yield f"  every element is {float(ratio.mean()):.4g} times what is expected"


def _where(name: str, places: torch.Tensor, shape: torch.Size) -> Iterator[str]:
    """Rows, columns and tiles, where they say something."""
    for axis, size in enumerate(shape):
        hit = sorted(set(places[:, axis].tolist()))
        if size == 1:
            continue
        what = "columns" if axis == len(shape) - 1 and axis else "rows" if axis == 0 else f"axis {axis}"
        if len(hit) == size:
            yield f"{what}: all {size}"
        elif hit == list(range(hit[0], hit[-1] + 1)):
            tile = next((each for each in reversed(_TILES) if hit[0] and hit[0] % each == 0 and hit[-1] == size - 1), 0)
            told = f", from the tile of {tile} at {hit[0]} to the end: a tail" if tile else ""
            yield (
                f"{what}: {hit[0]} to {hit[-1]} of {size}{told}"
                if len(hit) > 1
                else f"{what}: {hit[0]} of {size} alone"
            )
        else:
            steps = {later - one for one, later in pairwise(hit)}
            told = f", every {min(steps)}" if len(steps) == 1 else ""
            few = ", ".join(map(str, hit[:6])) + (", ..." if len(hit) > 6 else "")
            tiles = {place // 64 for place in hit}
            told += (
                f", in {len(tiles)} of {-(-size // 64)} tiles of 64"
                if size > 128 and len(tiles) < -(-size // 64)
                else ""
            )
            yield f"{what}: {len(hit)} of {size} ({few}){told}"


def _tolerances(definition: Definition, name: str) -> list[Tolerance]:
    known = definition.tolerances or (DEFAULT_TOLERANCE,)
    return [each for each in known if not each.outputs or name in each.outputs]


def _write(path: Path, inputs: Mapping[str, Any], outputs: Outputs, expected: Outputs) -> None:
    from safetensors.torch import save_file

    tensors = {f"input.{name}": value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    tensors |= {f"got.{name}": value for name, value in outputs.items()}
    tensors |= {f"expected.{name}": value for name, value in expected.items()}
    numbers = {f"input.{name}": str(value) for name, value in inputs.items() if not isinstance(value, torch.Tensor)}
    save_file(
        {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, path, metadata=numbers
    )
