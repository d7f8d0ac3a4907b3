"""A caller's arguments, checked: their types, names, kinds of time, GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from kernelderby.errors import DerbyError
from kernelderby.hardware import Gpu, find_gpu, gpus
from kernelderby.rows.measurement import TIME_KINDS
from kernelderby.store.bounds import answering
from kernelderby.store.fields import suggestion

Shape = Mapping[str, Any]  # axis -> size
Names = str | int | Shape | Iterable[str | int | Shape] | None
Given = ParamSpec("Given")
T = TypeVar("T")


def question(verb: str) -> Callable[[Callable[Given, T]], Callable[Given, T]]:
    """Makes a function a question of the API: checks its arguments with typed() and keeps it within the bounds of the
    verb."""
    return lambda asked: typed(answering(verb)(asked))


def typed(asked: Callable[Given, T]) -> Callable[Given, T]:
    """DerbyError for the first argument whose type is not that of its annotation."""
    takes, hints = signature(asked), cache(lambda: get_type_hints(asked))

    @wraps(asked)
    def expecting(*given: Given.args, **named: Given.kwargs) -> T:
        for name, value in takes.bind(*given, **named).arguments.items():
            kind, hint = takes.parameters[name].kind, hints().get(name, Any)
            each_fits = [_fits(each, hint) for each in (value if kind is Parameter.VAR_POSITIONAL else (value,))]
            if kind is not Parameter.VAR_KEYWORD and not all(each_fits):
                raise DerbyError(f"{asked.__name__}: {name}={value!r:.60} has the wrong type; give {_words(hint)}")
        return asked(*given, **named)

    return expecting


def _fits(value: object, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    kind, of = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if of and isinstance(value, str | bytes):  # a single name is not a list of letters
        return False
    has_items = of and isinstance(value, Collection) and not isinstance(value, Mapping)
    return isinstance(value, kind) and not (has_items and not all(_fits(each, of[0]) for each in value))


def _words(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " or ".join(_words(each) for each in get_args(hint) if each is not NoneType)
    kind, of = get_origin(hint) or hint, get_args(hint)
    if issubclass(kind, Mapping):
        return "a dict"
    return f"a list of {_words(of[0])}" if of else str(kind.__name__)


def names_of(names: Names) -> tuple[str, ...]:
    """Sizes may be numbers (workloads=5120), shapes dicts: {"T": 64, "D": 4096} is T=64,D=4096. None means no names."""
    several = () if names is None else (names,) if isinstance(names, str | int | Mapping) else tuple(names)
    for name in several:
        if not _fits(name, str | int | Mapping):  # of an iterator, which question() cannot look into
            raise DerbyError(f"{name!r:.60} is no name; give one, or a list of them")
    return tuple(
        ",".join(f"{axis}={size}" for axis, size in each.items()) if isinstance(each, Mapping) else str(each)
        for each in several
    )


def check_time(time: str | None) -> None:
    """DerbyError for a kind of time that no row has."""
    if time is not None and time not in TIME_KINDS:
        raise DerbyError(f"time: {time!r:.60} is unknown; {suggestion(str(time), TIME_KINDS)}")


def known_gpu(name: str) -> Gpu:
    """DerbyError for a GPU without a file of peaks."""
    gpu = find_gpu(name)
    if gpu is None:
        raise DerbyError(f"--gpu: kernelderby/hardware/gpus has no {name!r}; {suggestion(name, gpus())}")
    return gpu
