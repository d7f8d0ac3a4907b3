"""Why an output is wrong: the first elements that differ, where they lie, and how large the reference is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.correctness import (
    DEFAULT_TOLERANCE,
    Outputs,
    canonical_pair,
    differences,
    reference_outputs,
)
from kernelderby.measure.wire.replies import Wrong
from kernelderby.store.counts import counted

_FIRST = 4  # elements that are shown
_TILES = (16, 32, 64, 128, 256)
_DENSE = 0.75  # of a stretch
_LARGEST = 1 << 27  # elements; what is larger is not looked at


def look_closer(
    definition: Definition, module: ModuleType, inputs: Mapping[str, Any], outputs: Outputs, dump: Path | None = None
) -> tuple[str, ...]:
    """Lines for people, of the outputs of one call that was judged wrong. dump: a .safetensors file to write inputs,
    outputs and what was expected to."""
    expected = reference_outputs(definition, module, dict(inputs))
    if dump is not None:
        _write(dump, inputs, outputs, expected)
    try:
        outputs, expected = canonical_pair(definition, module, inputs, outputs, expected)
    except Wrong:  # the verdict says so
        return ()
    return tuple(line for name in expected for line in _of_output(definition, name, outputs[name], expected[name]))


def _of_output(definition: Definition, name: str, output: torch.Tensor, expected: torch.Tensor) -> Iterator[str]:
    if not expected.numel() or expected.numel() > _LARGEST or output.shape != expected.shape:
        return
    got, wanted, absolute, relative = differences(output, expected)
    known = definition.tolerances or (DEFAULT_TOLERANCE,)
    first = next((each for each in known if not each.outputs or name in each.outputs), None)
    within = (absolute <= first.atol) | (relative <= first.rtol) if first else absolute == 0
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
    for line in _where(places, expected.shape):
        yield f"  {line}"
    if bool((got == 0).all()):
        yield "  every element of the output is 0"
    elif scale and len(places) > 0.9 * expected.numel():  # what is near 0 is within
        ratio = (got / wanted)[wanted.abs() > 0.1 * scale]
        if ratio.numel() > 1 and float(ratio.std()) < 0.02 * abs(float(ratio.mean())):
            yield f"  every element is {float(ratio.mean()):.4g} times what is expected"


def _where(places: torch.Tensor, shape: torch.Size) -> Iterator[str]:
    """Rows, columns and tiles, where they say something."""
    for axis, size in enumerate(shape):
        if size > 1:
            what = "columns" if axis == len(shape) - 1 and axis else "rows" if axis == 0 else f"axis {axis}"
            yield f"{what}: {_along(sorted(set(places[:, axis].tolist())), size)}"


def _along(hit: Sequence[int], size: int) -> str:
    first, last = hit[0], hit[-1]
    if len(hit) == size:
        return f"all {size}"
    if len(hit) == 1:
        return f"{first} of {size} alone"
    if len(hit) == (span := last - first + 1):
        tile = next((each for each in reversed(_TILES) if first and first % each == 0 and last == size - 1), 0)
        told = f", from the tile of {tile} at {first} to the end: a tail" if tile else ""
        return f"{first} to {last} of {size}{told}"
    if len(hit) >= _DENSE * span:  # the others are right by chance
        return f"{len(hit)} of the {span} from {first} to {last} of {size}{_tiles(hit, size)}"
    steps = {later - one for one, later in pairwise(hit)}
    told = f", every {min(steps)}" if len(steps) == 1 else ""
    return f"{len(hit)} of {size} ({_few(hit)}){told}{_tiles(hit, size)}"


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")


def _tiles(hit: Sequence[int], size: int) -> str:
    """Which tiles of 64, where not all of them."""
    tiles, count = sorted({place // 64 for place in hit}), -(-size // 64)
    if size <= 128 or len(tiles) == count:
        return ""
    if len(tiles) > 1 and tiles == list(range(tiles[0], tiles[-1] + 1)):
        return f": tiles {tiles[0]} to {tiles[-1]} of {count}, each of 64"
    return f": tile{'s' if tiles[1:] else ''} {_few(tiles)} of {count}, each of 64"


def _write(path: Path, inputs: Mapping[str, Any], outputs: Outputs, expected: Outputs) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {f"input.{name}": value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    tensors |= {f"got.{name}": value for name, value in outputs.items()}
    tensors |= {f"expected.{name}": value for name, value in expected.items()}
    numbers = {f"input.{name}": str(value) for name, value in inputs.items() if not isinstance(value, torch.Tensor)}
    try:
        save_file(
            {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, path, metadata=numbers
        )
    except (OSError, SafetensorError) as error:
        raise DerbyError(f"--dump: {path}: {str(error).partition(': ')[2] or error}; give another path") from None
