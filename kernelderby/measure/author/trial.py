"""Tries a reference at small sizes: its outputs, their sizes, and the sizes at which it runs."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from kernelderby.authoring.formulas import Formula, NoSize, all_sizes, fitted
from kernelderby.authoring.words import Part, Tensor, axis_names, axis_of, base_axes, formulas_of
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.inputs import torch_dtype
from kernelderby.measure.wire.sources import import_file

# For the axes in order, all different: an odd number of rows, even sizes for the others.
_SMALL = (5, 96, 7, 13, 11, 17, 19, 23, 29, 31, 37, 41)
_EVEN = (8, 96, 16, 32, 64, 24, 40, 48, 56, 72, 80, 88)


@dataclass(frozen=True, slots=True)
class GivenOutput:
    """name: the key in a dict or the field of a named tuple. shape: names of axes, and sizes. magnitude: the root mean
    square of its values."""

    name: str
    dtype: str
    shape: tuple[Part, ...]
    magnitude: float


@dataclass(frozen=True, slots=True)
class Tried:
    """small: sizes at which it runs. variants: changes to them with which it runs too."""

    outputs: tuple[GivenOutput, ...]
    small: dict[str, int]
    variants: tuple[dict[str, int], ...]


def tried(source: str, inputs: Sequence[Tensor], large: Mapping[str, int]) -> Tried:
    """source: the module with run(). large: a size of each variable axis, in case the small sizes fail. DerbyError if
    run() fails, or returns something that cannot be an output."""
    run = _loaded(source)
    axes, formulas, varying = axis_names(inputs), formulas_of(inputs), base_axes(inputs)
    const = {name: size for name, size in axes.items() if size is not None}

    def sizes(chosen: Mapping[str, int]) -> dict[str, int]:
        return all_sizes({**const, **chosen}, formulas)

    found: dict[str, torch.Tensor] | None = None
    small, failed = dict[str, int](), ""
    tries = [fitted(dict(zip(varying, each, strict=False)), formulas.values()) for each in (_SMALL, _EVEN)]
    for chosen in (*tries, dict(large)):
        try:
            small = sizes(chosen)
            found = _run(run, inputs, small)
            break
        except NoSize as error:
            failed = f"{', '.join(f'{name}={size}' for name, size in chosen.items())}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            failed = f"{', '.join(f'{name}={size}' for name, size in small.items())}: {_told(error)}"
    if found is None:
        raise DerbyError(f"the reference fails at {failed}; mend it")
    doubled = {name: 2 * small[name] for name in varying}
    other = sizes(doubled)
    again = _run(run, inputs, other)
    parts: dict[str, Part] = {**{name: name for name in varying}, **formulas}
    outputs = tuple(
        GivenOutput(
            name if name.isidentifier() else "",
            str(one.dtype).removeprefix("torch."),
            _shape(one, two, small, other, parts),
            _magnitude(one),
        )
        for (name, one), two in zip(found.items(), again.values(), strict=True)
    )
    variants: list[dict[str, int]] = [{}]
    for name, size in [(each, size) for each in varying for size in (0, 1, doubled[each])]:
        try:
            changed = sizes({**{each: small[each] for each in varying}, name: size})
            given = [tuple(each.shape) for each in _run(run, inputs, changed).values()]
        except Exception:  # noqa: BLE001 - it need not run there
            continue
        wanted = [tuple(p if isinstance(p, int) else changed[axis_of(p)] for p in each.shape) for each in outputs]
        if given == wanted and size <= 1:
            variants.append({each: size for each, size in changed.items() if size != small[each]})
        elif given != wanted and size > 1:
            told = ", ".join(f"{each}={size}" for each, size in changed.items())
            raise DerbyError(f"the reference gives {given} at {told}, which no input has; return sizes of inputs alone")
    variants.append({name: other[name] for name in parts})
    return Tried(outputs, {name: small[name] for name in axes}, tuple(variants))


def _loaded(source: str) -> Callable[..., Any]:
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
    return cast("Callable[..., Any]", run)


def _run(run: Any, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """The outputs by the names that it gives; without names by "", "1", ..."""
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
    shape = [part if isinstance(part, int) else sizes[axis_of(part)] for part in given.shape]
    dtype = torch_dtype(given.dtype)
    if given.low is not None:
        high = float(sizes[given.high] if isinstance(given.high, str) else given.high or 1)
        if given.offsets:
            rising = torch.randint(0, int(high) + 1, shape, generator=generator).sort().values.to(dtype)
            rising[-1:] = int(high)
            rising[:1] = 0
            return rising
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=generator) * (high - given.low) + given.low).to(dtype)
        return torch.randint(int(given.low), max(int(given.low) + 1, int(high)), shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).clamp_(-4, 4).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def _shape(
    one: torch.Tensor, two: torch.Tensor, small: Mapping[str, int], other: Mapping[str, int], parts: Mapping[str, Part]
) -> tuple[Part, ...]:
    found: list[Part] = []
    for size, then in zip(one.shape, two.shape, strict=True):
        same = [part for name, part in parts.items() if (small[name], other[name]) == (size, then)]
        if not same and size != then:
            guess = guessed(size, then, small, other)
            sizes = ", ".join(f"{name}={value}" for name, value in small.items())
            raise DerbyError(
                f"the reference gives a size of {f'{guess} ({size})' if guess else size} at {sizes}, which no input "
                f"has; add an input of that size, such as slots:i8[{guess or 'W'}], or write an input of 2*D columns "
                "as [T,2,D]"
            )
        found.append(same[0] if same else size)
    return tuple(found)


def guessed(size: int, then: int, small: Mapping[str, int], other: Mapping[str, int]) -> Formula | None:
    """A formula of one or two axes that gives both sizes."""
    names = [*small]
    texts = [f"{name}{size - small[name]:+d}" for name in names]
    texts += [f"{name}*{size // small[name]}" for name in names if small[name] and size % small[name] == 0]
    texts += [f"{one}{sign}{two}" for one, two in itertools.combinations(names, 2) for sign in "+*"]
    texts += [f"{name}/{small[name] // size}" for name in names if size and small[name] % size == 0]
    for text in texts:
        try:
            each = Formula(text)
            if (each.size(small), each.size(other)) == (size, then):
                return each
        except NoSize:
            continue
    return None


def _magnitude(tensor: torch.Tensor) -> float:
    wide = tensor.double() if tensor.numel() and tensor.dtype is not torch.bool else torch.zeros(1)
    return float(wide.nan_to_num(0, 0, 0).square().mean().sqrt())


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
