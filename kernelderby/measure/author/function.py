"""Turns a user's function into the source of a reference, and an example of its arguments into inputs and axes."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelderby.authoring.formulas import Formula
from kernelderby.errors import DerbyError
from kernelderby.measure.author.relations import related
from kernelderby.measure.wire.sources import import_file

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101)
_FEW = 4  # a size up to this may be a number of parts (query, key, value): it varies only if it may be 1


@dataclass(frozen=True, slots=True)
class Argument:
    """dims: number of the axis of each size; None for a plain number. low, high: range of an integer tensor's values.
    into: the axis into which the values are indices, or of whose size they are offsets or parts (rule)."""

    name: str
    dtype: str
    dims: tuple[int, ...] | None
    value: Any = None
    low: int | None = None
    high: int | None = None
    into: int | None = None
    rule: str = ""


@dataclass(frozen=True, slots=True)
class ExampleAxes:
    """sizes: size of each axis in the example. varies: axes that may have other sizes. follows: axes whose size follows
    from others, by formulas over axis0, axis1, ..."""

    arguments: tuple[Argument, ...]
    sizes: tuple[int, ...]
    varies: tuple[bool, ...]
    follows: Mapping[int, Formula]


def resolved(place: str, option: str) -> tuple[ModuleType, Any]:
    """The module and the object that module:name or file.py:name means. DerbyError in one line."""
    where, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier():
        raise DerbyError(f"{option}: {place!r:.80} is not MODULE:NAME or FILE.py:NAME; mend it")
    try:
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise DerbyError(f"{option}: {where}: does not exist; name a file")
            module = import_file(Path(where).resolve(), f"kernelderby_from_{Path(where).stem}")
        else:
            if str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(where)
    except DerbyError:
        raise
    except Exception as error:  # the user's own code
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        beside = isinstance(error, ImportError) and Path(where).with_name(f"{error.name}.py").is_file()
        mend = "a reference is one file: move into it what it imports from others of yours" if beside else "mend it"
        raise DerbyError(f"{option}: {where} does not load: {told}; {mend}") from error
    if not hasattr(module, name):
        raise DerbyError(f"{option}: {where} has no {name!r}; name what is in it")
    return module, getattr(module, name)


@dataclass(frozen=True, slots=True)
class Call:
    """How run() calls the function. inputs: arguments that are inputs. fixed: arguments that are not, such as None and
    strings. named: arguments given by keyword. changed: inputs into which it writes. only_changes: it returns
    nothing."""

    inputs: tuple[str, ...]
    fixed: dict[str, Any] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    only_changes: bool = False

    def body(self, name: str) -> str:
        """The body of run(), which leaves its inputs unchanged."""
        words = [f"{each}={each}" if each in self.named else each for each in self.inputs]
        call = f"{name}({', '.join([*words, *(f'{key}={value!r}' for key, value in self.fixed.items())])})"
        copies = "".join(f"    {each} = {each}.clone()\n" for each in self.changed)
        if self.only_changes:
            return f"{copies}    {call}\n    return {', '.join(self.changed)}\n"
        return f"{copies}    return {call}\n"


def call_of(function: Callable[..., Any], given: Mapping[str, Any]) -> Call:
    """The call for the arguments of an example. Tries the function with them."""
    fixed = {name: value for name, value in given.items() if value is None or isinstance(value, str)}
    parameters = [*inspect.signature(function).parameters.values()]
    first = next((place for place, each in enumerate(parameters) if each.name in fixed), len(parameters))
    named = tuple(
        each.name
        for place, each in enumerate(parameters)
        if each.name not in fixed and (place > first or each.kind is each.KEYWORD_ONLY)
    )
    before = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    after = {name: value.clone() for name, value in before.items()}
    values = {**given, **after}
    try:
        with torch.no_grad():
            returned = function(
                *(values[each] for each in given if each not in (*named, *fixed)),
                **{each: values[each] for each in (*named, *fixed) if each in given},
            )
    except Exception as error:  # the user's own code
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DerbyError(f"--example: {function.__name__}() fails with it: {told}; mend it") from error
    changed = tuple(name for name, value in before.items() if not _is_same(value, after[name]))
    inputs = tuple(name for name in given if name not in fixed)
    return Call(
        inputs, fixed, tuple(each for each in named if each in given), changed, bool(changed) and returned is None
    )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit by bit: NaN is NaN."""
    return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))


def reference_source(module: ModuleType, function: Callable[..., Any], call: Call) -> str:
    """A module with run(): the function's own file with run() at its end, or an import of an installed package."""
    name = getattr(function, "__name__", "")
    file = getattr(module, "__file__", None)
    signature = ", ".join(call.inputs)
    if file is None or _is_installed(Path(file)):
        head = f'"""{module.__name__}.{name}."""\n\nimport torch\nfrom {module.__name__} import {name} as reference\n'
        return f"{head}\n\n@torch.no_grad()\ndef run({signature}):\n{call.body('reference')}"
    text = Path(file).read_text(encoding="utf-8").rstrip("\n") + "\n"
    if name == "run" and not (call.fixed or call.named or call.changed):
        return text
    if hasattr(module, "run"):
        raise DerbyError(f"--from: {file} has a run() beside {name}(); rename it, or name run")
    imported = "" if hasattr(module, "torch") else "import torch\n\n"
    return f"{text}\n\n{imported}@torch.no_grad()\ndef run({signature}):\n{call.body(name)}"


def _is_installed(file: Path) -> bool:
    folders = {sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")}
    return any(file.resolve().is_relative_to(folder) for folder in folders if folder)


def arguments_of(function: Callable[..., Any], example: Any) -> dict[str, Any]:
    """name -> value in one example, which is a function that gives it, a dict, or a list in the order of the
    parameters."""
    if not hasattr(function, "__name__") or inspect.isclass(function):
        kind = "class" if inspect.isclass(function) else type(function).__name__
        raise DerbyError(
            f"--from: names a {kind}, no plain function; write one that takes weights and settings as arguments, and "
            "name it"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise DerbyError(
            f"--from: {function.__name__}() tells no parameters; write a function of Python around it"
        ) from None
    try:
        given = example() if callable(example) else example
        if isinstance(given, Mapping):
            return dict(signature.bind(**given).arguments)
        return dict(signature.bind(*(given if isinstance(given, (list, tuple)) else [given])).arguments)
    except (TypeError, ValueError) as error:
        told = " ".join(str(error).split())[:200]
        raise DerbyError(f"--example: does not give the arguments of {function.__name__}(): {told}; mend it") from error


def axes_of(function: Callable[..., Any], given: Mapping[str, Any], writes: bool = False) -> ExampleAxes:
    """Equal sizes are one axis, unless the function accepts different ones. A size at which the function accepts one
    number only is fixed. Calls the function itself, at small sizes. writes: whether it changes an input."""
    sizes: list[int] = []
    arguments = []
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            dims = tuple(range(len(sizes), len(sizes) + value.dim()))
            sizes += value.shape
            whole = not value.dtype.is_floating_point and value.dtype is not torch.bool and value.numel() > 0
            low, high = (min(0, int(value.min())), int(value.max()) + 1) if whole else (None, None)
            dtype = str(value.dtype).removeprefix("torch.")
            arguments.append(Argument(name, dtype, dims, low=low, high=high))
        elif isinstance(value, (bool, int, float)):
            dtype = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
            arguments.append(Argument(name, dtype, None, value))
        else:
            raise DerbyError(
                f"--example: {name} is a {type(value).__name__}; write a function around it that takes tensors, "
                "numbers, strings and None alone"
            )
    arguments = [_ruled(each, given[each.name], sizes, function, given) for each in arguments]
    trial = _Trial(function, arguments, [*sizes], [*sizes])
    group = trial.grouped()
    order = list(dict.fromkeys(group))
    place = {old: new for new, old in enumerate(order)}
    varies = {place[each]: trial.varies(group, each) for each in order}
    tied = [axis for axis, free in varies.items() if not free]
    free, follows = related(
        tied,
        {place[each]: trial.sizes[each] for each in order},
        lambda changed: trial._runs(group, trial._of(group) | {order[axis]: size for axis, size in changed.items()}),
    )
    for number, each in enumerate(arguments):
        if each.dims is not None:
            reached = group[each.into] if each.into is not None else None
            if reached is None:
                reached = next((axis for axis in order if trial.reaches(group, each, axis)), None)
            # Several writes into one place have no order on a GPU.
            is_once = writes and reached is not None and len(given[each.name].unique()) == given[each.name].numel() > 1
            arguments[number] = replace(
                each,
                dims=tuple(place[group[d]] for d in each.dims),
                into=None if reached is None else place[reached],
                rule=each.rule or ("distinct" if is_once else ""),
            )
    return ExampleAxes(
        tuple(arguments),
        tuple(sizes[each] for each in order),
        tuple(free_alone or axis in free for axis, free_alone in varies.items()),
        follows,
    )


def _ruled(
    argument: Argument, value: Any, sizes: list[int], function: Callable[..., Any], given: Mapping[str, Any]
) -> Argument:
    """Whether the values are offsets, which rise from 0 to the size of another axis, or parts, which sum to it. Indices
    may have such a sum by chance, but then the function fails if one value is the whole sum."""
    dims = argument.dims or ()
    if argument.low != 0 or len(dims) != 1 or len(value) < 2:
        return argument
    is_rising = value[0] == 0 and (value.diff() >= 0).all()
    end = int(value[-1] if is_rising else value.sum())
    into = next((place for place, size in enumerate(sizes) if size == end and place not in dims), None)
    if into is None:
        return argument
    if is_rising:
        return replace(argument, into=into, rule="offsets")
    copies = {name: each.clone() if isinstance(each, torch.Tensor) else each for name, each in given.items()}
    copies[argument.name].zero_()[0] = end
    try:
        with torch.no_grad():
            function(**copies)
    except Exception:  # noqa: BLE001 - the user's code
        return argument
    return replace(argument, into=into, rule="parts")


@dataclass(slots=True)
class _Trial:
    """Runs the function at other sizes. group: for each dimension the first dimension of its axis."""

    function: Callable[..., Any]
    arguments: list[Argument]
    sizes: list[int]
    given: list[int]

    def reaches(self, group: list[int], argument: Argument, axis: int) -> bool:
        """Whether the values are indices into that axis: their range ends at its size in the example, or the function
        fails at its size and runs below."""
        if argument.high is None or argument.low != 0:
            return False
        size = self.given[axis]

        def runs(value: int) -> bool:
            one = replace(argument, low=value, high=value + 1)
            arguments = [one if each is argument else each for each in self.arguments]
            return replace(self, arguments=arguments)._runs(group, {each: self.given[each] for each in group})

        is_own = axis in [group[each] for each in argument.dims or ()]
        return argument.high == size or (argument.high < size and not is_own and runs(size - 1) and not runs(size))

    def grouped(self) -> list[int]:
        first: dict[int, int] = {}
        group = [first.setdefault(size, place) for place, size in enumerate(self.sizes)]
        self._shrink(group)
        for place in range(len(group)):
            rest = [other for other in range(len(group)) if group[other] == group[place]]
            if rest == [place]:
                continue
            later = [other for other in rest if other != place]
            alone = [
                place if other == place else later[0] if other in later else group[other] for other in range(len(group))
            ]
            if self._takes(alone, place) and self._takes(alone, later[0]):
                group = alone
        return group

    def varies(self, group: list[int], axis: int) -> bool:
        may_be_one = self.sizes[axis] > _FEW or self._runs(group, self._of(group) | {axis: 1})
        return may_be_one and self._takes(group, axis)

    def _of(self, group: list[int]) -> dict[int, int]:
        return {each: self.sizes[each] for each in group}

    def _takes(self, group: list[int], axis: int) -> bool:
        """Whether the function accepts another size of that axis alone: an odd one, otherwise one that is divisible
        into parts."""
        prime = next(each for each in reversed(_PRIMES) if each not in self.sizes)
        others = (prime, 16 * prime, 2 * self.sizes[axis])
        return any(self._runs(group, self._of(group) | {axis: size}) for size in others)

    def _shrink(self, group: list[int]) -> None:
        """Shrinks the axes to small sizes if the function runs there, because it is called often."""
        small = {
            axis: size if size <= _FEW else _PRIMES[place % 10]
            for place, (axis, size) in enumerate(self._of(group).items())
        }
        even = {axis: size if size <= _FEW else 16 * (2 + place) for place, (axis, size) in enumerate(small.items())}
        for sizes in (small, even):
            if self._runs(group, sizes):
                self.sizes = [sizes[group[place]] for place in range(len(group))]
                return

    def _runs(self, group: list[int], sizes: Mapping[int, int]) -> bool:
        generator = torch.Generator().manual_seed(0)
        try:
            with torch.no_grad():
                self.function(
                    **{
                        a.name: _by_rule(a, sizes[group[a.dims[0]]], sizes[group[a.into]])
                        if a.rule and a.dims and a.into is not None
                        else _value(a, [sizes[group[d]] for d in a.dims or ()], generator)
                        for a in self.arguments
                    }
                )
        except Exception:  # noqa: BLE001 - it need not run there
            return False
        return True


def _by_rule(argument: Argument, length: int, end: int) -> torch.Tensor:
    """Evenly spread offsets, or parts."""
    is_parts = argument.rule == "parts"
    edges = torch.arange(length + is_parts) * end // max(1, length - (not is_parts))
    return (edges.diff() if is_parts else edges).to(getattr(torch, argument.dtype))


def _value(argument: Argument, shape: list[int], generator: torch.Generator) -> Any:
    if argument.dims is None:
        return argument.value
    dtype = getattr(torch, argument.dtype)
    if argument.high is not None and argument.low is not None:
        return torch.randint(argument.low, argument.high, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)
