"""Tries a reference at small sizes: its outputs, their sizes, and the sizes at which it runs."""

from __future__ import annotations

import ast
import itertools
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

import torch

from kernelderby.authoring.formulas import Formula, NoSize, all_sizes, fitted
from kernelderby.authoring.words import Part, Tensor, axis_names, axis_of, base_axes, formulas_of, untold
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.inputs import INTEGER_RANGE, torch_dtype
from kernelderby.measure.wire.sources import import_file
from kernelderby.store.counts import counted

# For the axes in order, all different: an odd number of rows, even sizes for the others.
_SMALL = (5, 96, 7, 13, 11, 17, 19, 23, 29, 31, 37, 41)
_ONE_FILE = "a reference is one file: move into it what it imports from others of yours"
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
class TrialResult:
    """small: sizes at which it runs. variants: changes to them with which it runs too. notes: one line each."""

    outputs: tuple[GivenOutput, ...]
    small: dict[str, int]
    variants: tuple[dict[str, int], ...]
    notes: tuple[str, ...] = ()


def run_trial(source: str, inputs: Sequence[Tensor], large: Mapping[str, int]) -> TrialResult:
    """source: the module with run(). large: a size of each variable axis, in case the small sizes fail. DerbyError if
    run() fails, returns something that cannot be an output, or returns other values for the same inputs."""
    run = _loaded(source)
    _expect_alone(source)
    axes, formulas, varying = axis_names(inputs), formulas_of(inputs), base_axes(inputs)
    const = {name: size for name, size in axes.items() if size is not None}

    def sizes(chosen: Mapping[str, int]) -> dict[str, int]:
        return all_sizes({**const, **chosen}, formulas)

    found: dict[str, torch.Tensor] | None = None
    small, failed = dict[str, int](), ""
    tries = [fitted(dict(zip(varying, each, strict=False)), formulas.values()) for each in (_SMALL, _EVEN)]
    for chosen in (*tries, dict(large)):
        try:
            small = sizes(_roomy(chosen, sizes(chosen), inputs))
            found = _run(run, inputs, small)
            break
        except NoSize as error:
            failed = f"{_said(chosen)}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            failed = f"{_said(small)}: {_told(error)}{_range_of(error, inputs)}"
    if found is None:
        raise DerbyError(f"the reference fails at {failed}; mend it")
    if not _is_sure(run, inputs, small, found):
        raise DerbyError(
            "the reference gives other values for the same inputs; take out what it draws at random or never writes"
        )
    base = {name: small[name] for name in varying}
    doubled = {name: 2 * size for name, size in base.items()}
    other = sizes(doubled)
    runs = [(small, found), (other, _run(run, inputs, other))]
    runs += _runs(run, inputs, sizes, [base | {name: 2 * size} for name, size in base.items()])
    parts: dict[str, Part] = {**{name: name for name in varying}, **formulas}

    def more(place: int) -> list[_Shaped]:
        several = [base | {name: 3 * size} for name, size in base.items()]
        return [(each, _at(place, results)) for each, results in _runs(run, inputs, sizes, several)]

    outputs = tuple(
        GivenOutput(
            name if name.isidentifier() else "",
            str(one.dtype).removeprefix("torch."),
            _shape([(each, _at(place, results)) for each, results in runs], parts, inputs, partial(more, place)),
            _magnitude(one),
        )
        for place, (name, one) in enumerate(found.items())
    )
    runs += _runs(run, inputs, sizes, [base | {name: size} for name in varying for size in (0, 1)])
    variants: list[dict[str, int]] = [{}]
    for changed, results in runs[2:]:
        given = [tuple(each.shape) for each in results.values()]
        wanted = [tuple(p if isinstance(p, int) else changed[axis_of(p)] for p in each.shape) for each in outputs]
        if given == wanted and any(changed[name] <= 1 for name in varying):
            variants.append({each: size for each, size in changed.items() if size != small[each]})
    variants.append({name: other[name] for name in parts})
    return TrialResult(outputs, {name: small[name] for name in axes}, tuple(variants), _unequal(runs))


def _roomy(chosen: Mapping[str, int], sizes: Mapping[str, int], inputs: Sequence[Tensor]) -> dict[str, int]:
    """With twice as many values as there are distinct ones."""
    found = dict(chosen)
    for each in inputs:
        count = math.prod(part if isinstance(part, int) else sizes[axis_of(part)] for part in each.shape or ())
        if each.rule == "distinct" and isinstance(each.high, str) and each.high in found:
            found[each.high] = max(found[each.high], 2 * count)
    return found


_Run = tuple[dict[str, int], dict[str, torch.Tensor]]  # sizes, and the outputs there
_Shaped = tuple[Mapping[str, int], Sequence[int]]


def _runs(run: Any, inputs: Sequence[Tensor], sizes: Any, several: Sequence[Mapping[str, int]]) -> list[_Run]:
    """The runs that succeed, and whose outputs are sure. The reference need not run at every size."""
    found = list[_Run]()
    for each in several:
        with suppress(Exception):
            outputs = _run(run, inputs, sizes(each))
            if _is_sure(run, inputs, sizes(each), outputs):
                found.append((sizes(each), outputs))
    return found


def _is_sure(run: Any, inputs: Sequence[Tensor], sizes: Mapping[str, int], found: Mapping[str, torch.Tensor]) -> bool:
    """Whether a second run returns the same, with other contents in memory that it allocates and does not write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty gives NaN then
        try:
            again = _run(run, inputs, sizes)
        finally:
            torch.use_deterministic_algorithms(False)
    return all(_is_same(one, two) for one, two in zip(found.values(), again.values(), strict=True))


def _at(place: int, outputs: Mapping[str, torch.Tensor]) -> Sequence[int]:
    return [*outputs.values()][place].shape


def _unequal(runs: Sequence[_Run]) -> tuple[str, ...]:
    """A note if outputs are NaN or infinite, because a check then finds few errors."""
    for sizes, results in runs:
        for name, each in results.items():
            if each.is_floating_point() and not each.float().isfinite().all():
                told = f"{name or 'the output'} is NaN or infinite at {_said(sizes)}; only the same is right in a check"
                return (f"{told}. Mend the reference, or give an input a range, such as x:f32[T]=0.5..1",)
    return ()


def _range_of(error: Exception, inputs: Sequence[Tensor]) -> str:
    """What to change if an index is out of range."""
    loose = [each for each in inputs if each.shape and each.dtype.startswith("int") and each.low is None]
    into = next((part for each in inputs if each not in loose for part in each.shape or ()), "V")
    return f"; if {loose[0].name} are indices, write {loose[0]}=0..{into}" if loose and "index" in str(error) else ""


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Apart from another order of summation."""
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    wide = torch.complex128 if one.is_complex() else torch.float64
    return torch.allclose(one.to(wide), other.to(wide), rtol=1e-2, atol=1e-2 * _magnitude(one), equal_nan=True)


def _loaded(source: str) -> Callable[..., Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reference.py"
        file.write_text(source, encoding="utf-8")
        try:
            module = import_file(file, "kernelderby_reference_tried")
        except Exception as error:  # the user's code
            mend = _ONE_FILE if isinstance(error, ImportError) else "mend it"
            raise DerbyError(f"the reference does not load: {_told(error)}; {mend}") from error
    run = getattr(module, "run", None)
    if not callable(run):
        raise DerbyError("the reference has no run(); name its function run")
    return cast("Callable[..., Any]", run)


def _expect_alone(source: str) -> None:
    """DerbyError if it imports a module of the current directory, which a check does not have on its path."""
    nodes = [*ast.walk(ast.parse(source))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    here = [str(Path.cwd())]
    others = [each for each in sys.path if each not in ("", *here)]
    for name in dict.fromkeys(each.partition(".")[0] for each in names):
        if PathFinder.find_spec(name, here) and not PathFinder.find_spec(name, others):
            raise DerbyError(f"the reference imports {name} of this folder; {_ONE_FILE}")


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
        if given.rule == "distinct":
            return torch.randperm(int(high), generator=generator)[: math.prod(shape)].reshape(shape).to(dtype)
        if given.rule:
            return _by_rule(given.rule, shape[0], int(high), generator).to(dtype)
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=generator) * (high - given.low) + given.low).to(dtype)
        return torch.randint(int(given.low), max(int(given.low) + 1, int(high)), shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).clamp_(-4, 4).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(*INTEGER_RANGE[dtype], shape, generator=generator).to(dtype)


def _by_rule(rule: str, length: int, end: int, generator: torch.Generator) -> torch.Tensor:
    if rule == "parts":
        edges = _by_rule("offsets", length + 1, end, generator)
        return edges.diff()
    rising = torch.randint(0, end + 1, (length,), generator=generator).sort().values
    rising[-1:] = end
    rising[:1] = 0
    return rising


def _shape(
    runs: Sequence[_Shaped], parts: Mapping[str, Part], inputs: Sequence[Tensor], more: Callable[[], Sequence[_Shaped]]
) -> tuple[Part, ...]:
    """runs: sizes of axes, and the shape that the reference returns there. more: further ones, to guess a formula."""
    small, first = runs[0]
    for sizes, shape in runs:
        if len(shape) != len(first):
            told = counted(len(shape), "dimension")
            raise DerbyError(f"the reference gives {told} at {_said(sizes)}, else {len(first)}; mend it")
    found: list[Part] = []
    for place, size in enumerate(first):
        seen = [(sizes, shape[place]) for sizes, shape in runs]
        same = [part for name, part in parts.items() if all(sizes[name] == given for sizes, given in seen)]
        if not same and any(given != size for _, given in seen):
            guess = guessed_formula([*seen, *((sizes, shape[place]) for sizes, shape in more())])
            told = f"{guess} ({size})" if guess else f"{size}"
            raise DerbyError(
                f"the reference gives a size of {told} at {_said(small)}, which no input has; {untold(guess, inputs)}"
            )
        found.append(same[0] if same else size)
    return tuple(found)


def guessed_formula(seen: Sequence[tuple[Mapping[str, int], int]]) -> Formula | None:
    """A formula of one or two axes that fits every size in `seen`."""
    sizes, size = seen[0]
    names = [*sizes]
    texts = [f"{name}{size - sizes[name]:+d}" for name in names]
    texts += [f"{name}*{size // sizes[name]}" for name in names if sizes[name] and size % sizes[name] == 0]
    texts += [f"{name}/{sizes[name] // size}" for name in names if size and sizes[name] % size == 0]
    texts += [f"{one}{sign}{two}" for one, two in itertools.combinations(names, 2) for sign in "+*"]
    # A window that moves several places at a time.
    steps = [(name, by, size * by - sizes[name] + more) for name in names for by in range(2, 9) for more in range(by)]
    texts += [f"({name}{more:+d})//{by}" if more else f"{name}//{by}" for name, by, more in steps]
    windows = itertools.permutations(names, 2)
    texts += [f"({one}-{two})//{by}+1" if by > 1 else f"{one}-{two}+1" for one, two in windows for by in range(1, 9)]
    for text in texts:
        try:
            each = Formula(text)
            if all(each.size(chosen) == given for chosen, given in seen):
                return each
        except NoSize:
            continue
    return None


def _magnitude(tensor: torch.Tensor) -> float:
    told = tensor.numel() and tensor.dtype is not torch.bool and not tensor.is_complex()
    wide = tensor.double() if told else torch.zeros(1)
    return float(wide.nan_to_num(0, 0, 0).square().mean().sqrt())


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
