"""A reference tried at small sizes: what it gives, how large it is, at which sizes it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelderby.authoring.words import Tensor
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.inputs import torch_dtype
from kernelderby.measure.wire.sources import import_file

# Of the axes in their order, all different: rows of an odd number, else even ones.
_SMALL = (5, 96, 7, 13, 11, 17, 19, 23, 29, 31, 37, 41)
_EVEN = (8, 96, 16, 32, 64, 24, 40, 48, 56, 72, 80, 88)


@dataclass(frozen=True, slots=True)
class GivenOutput:
    """name: of a dict's or a named tuple's entry. shape: of axes' names and sizes. magnitude: the root mean square of
    its values."""

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    magnitude: float


@dataclass(frozen=True, slots=True)
class Tried:
    """small: sizes at which it runs. variants: what differs from them, where it runs too."""

    outputs: tuple[GivenOutput, ...]
    small: dict[str, int]
    variants: tuple[dict[str, int], ...]


def tried(source: str, inputs: Sequence[Tensor], axes: Mapping[str, int | None], large: Mapping[str, int]) -> Tried:
    """source: the module with run(). axes: name -> size, None of one that varies. large: a size of each of those where
    the small ones may not do. DerbyError where run() does not run, or gives what is no output."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reference.py"
        file.write_text(source, encoding="utf-8")
        try:
            module = import_file(file, "kernelderby_reference_tried")
        except Exception as error:  # the user's code
            raise DerbyError(f"the reference does not load: {_told(error)}; mend it") from error
    run = getattr(module, "run", None)
    if not callable(run):
        raise DerbyError("the reference has no run(); name its function run")
    varying = [name for name, size in axes.items() if size is None]
    const = {name: size for name, size in axes.items() if size is not None}
    found: dict[str, torch.Tensor] | None = None
    small, failed, tries = dict[str, int](), "", [dict(zip(varying, each, strict=False)) for each in (_SMALL, _EVEN)]
    for chosen in (*tries, dict(large)):
        small = const | chosen
        try:
            found = _run(run, inputs, small)
            break
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            failed = f"{', '.join(f'{name}={size}' for name, size in small.items())}: {_told(error)}"
    if found is None:
        raise DerbyError(f"the reference fails at {failed}; mend it")
    other = const | {name: 2 * size for name, size in small.items() if name in varying}
    again = _run(run, inputs, other)
    outputs = tuple(
        GivenOutput(
            name if name.isidentifier() else "",
            str(one.dtype).removeprefix("torch."),
            _shape(one, two, small, other, varying),
            _magnitude(one),
        )
        for (name, one), two in zip(found.items(), again.values(), strict=True)
    )
    variants: list[dict[str, int]] = [{}]
    for change in ({name: size} for name in varying for size in (0, 1)):
        sizes = small | change
        try:
            given = [tuple(each.shape) for each in _run(run, inputs, sizes).values()]
        except Exception:  # noqa: BLE001 - it need not run there
            continue
        if given == [tuple(sizes[p] if isinstance(p, str) else p for p in each.shape) for each in outputs]:
            variants.append(change)
    variants.append({name: other[name] for name in varying})
    return Tried(outputs, {name: small[name] for name in axes}, tuple(variants))


def _run(run: Any, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """By the names that it gives; "", "1", ... without any."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        returned = run(*(_value(each, sizes, generator) for each in inputs))
    several = returned if isinstance(returned, (dict, list, tuple)) else [returned]
    names = [*several] if isinstance(several, dict) else getattr(several, "_fields", None)
    values = [*several.values()] if isinstance(several, dict) else [*several]
    found = dict(zip(names or [str(place or "") for place in range(len(values))], values, strict=True))
    for each in found.values():
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"run() gives a {type(each).__name__}, no tensor")
    return found


def _value(given: Tensor, sizes: Mapping[str, int], generator: torch.Generator) -> Any:
    if given.shape is None:
        return given.value
    shape = [part if isinstance(part, int) else sizes[part] for part in given.shape]
    dtype = torch_dtype(given.dtype)
    if given.low is not None:
        high = float(sizes[given.high] if isinstance(given.high, str) else given.high or 1)
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=generator) * (high - given.low) + given.low).to(dtype)
        return torch.randint(int(given.low), max(int(given.low) + 1, int(high)), shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).clamp_(-4, 4).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def _shape(
    one: torch.Tensor, two: torch.Tensor, small: Mapping[str, int], other: Mapping[str, int], varying: Sequence[str]
) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    for size, then in zip(one.shape, two.shape, strict=True):
        named = [name for name in varying if (small[name], other[name]) == (size, then)]
        if not named and size != then:
            sizes = ", ".join(f"{name}={value}" for name, value in small.items())
            raise DerbyError(
                f"the reference gives a size of {size} at {sizes}, which is no axis; write an input as [T,2,D] instead "
                "of [T,W], or return the parts apart"
            )
        parts.append(named[0] if named else size)
    return tuple(parts)


def _magnitude(tensor: torch.Tensor) -> float:
    wide = tensor.double() if tensor.numel() and tensor.dtype is not torch.bool else torch.zeros(1)
    return float(wide.nan_to_num(0, 0, 0).square().mean().sqrt())


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
