"""The words of a contract: `x:bf16[T,2,D]`, `scale:f32[T,D/128]`, `ids:i32[T]=0..V`, `starts:i32[B+1]=offsets(T)`,
`sizes:i32[E]=parts(T)`, `eps:f32=1e-6`, sizes `T=1,64,1024`."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kernelderby.authoring.formulas import Formula, formula
from kernelderby.errors import DerbyError

_SHORT = {
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("f16", "fp16", "half"), "float16"),
    **dict.fromkeys(("f32", "fp32", "float"), "float32"),
    **dict.fromkeys(("fp8", "f8", "e4m3", "fp8_e4m3", "float8_e4m3"), "float8_e4m3fn"),
    **dict.fromkeys(("e5m2", "fp8_e5m2"), "float8_e5m2"),
    **{f"{word}{bits}": f"int{bits}" for bits in (8, 16, 32, 64) for word in ("i", "int")},
    "bool": "bool",
}
DTYPES = {**_SHORT, **{name: name for name in _SHORT.values()}}
_WORD = re.compile(r"([A-Za-z_]\w*):([A-Za-z]\w*)(?:\[([^\]]*)\])?(?:=(.+))?")
_RANGE = re.compile(r"([^.]+(?:\.\d+)?)\.\.(.+)")
_SIZE = re.compile(r"\w+=[\d,]+")
_FEW_PARTS = 8
_RULE = re.compile(r"(offsets|parts|distinct)\((.+)\)")
_COMMA = re.compile(r",(?![^(]*\))")  # not a comma inside min(A,B)
Part = str | int | Formula


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. shape: names of axes, sizes, and sizes that follow from axes; None for a plain number, whose
    value is then known. low, high: the range of the values; high is an axis or a number, which integers stay below.
    rule: "offsets" rise from 0 to high, "parts" sum to high, "distinct" are below high."""

    name: str
    dtype: str
    shape: tuple[Part, ...] | None
    value: float | int | bool | None = None
    low: float | None = None
    high: str | float | None = None
    rule: str = ""

    def __str__(self) -> str:
        short = _short(self.dtype)
        if self.shape is None:
            return f"{self.name}:{short}={self.value}"
        drawn = "" if self.low is None else f"={self.rule}({self.high})" if self.rule else f"={self.low:g}..{self.high}"
        return f"{self.name}:{short}[{','.join(map(str, self.shape))}]{drawn}"


def _short(dtype: str) -> str:
    return next(word for word, name in _SHORT.items() if name == dtype)


def tensor(word: str) -> Tensor:
    """The tensor that a word describes. DerbyError in one line that shows the correct form."""
    found = _WORD.fullmatch(word.strip().replace(" ", ""))
    if found is None and _SIZE.fullmatch(word):
        raise DerbyError(f"{word!r:.80}: is no input; write --size {word} for sizes to measure")
    if found is None:
        raise DerbyError(
            f"{word!r:.80}: is no input; write NAME:DTYPE[AXIS,...] such as x:bf16[T,2,D], or eps:f32=1e-6"
        )
    name, dtype, dims, given = found.groups()
    if keyword.iskeyword(name):
        raise DerbyError(f"{word!r:.80}: {name} is a word of Python; rename the input")
    if dtype not in DTYPES:
        raise DerbyError(
            f"{word!r:.80}: no dtype {dtype!r}; there are {', '.join(map(_short, dict.fromkeys(_SHORT.values())))}"
        )
    if dims is None:
        if given is None:
            raise DerbyError(f"{word!r:.80}: has no shape; write {name}:{dtype}[T,D], or a number's value: {word}=1e-6")
        return Tensor(name, DTYPES[dtype], None, _number(word, DTYPES[dtype], given))
    shape = tuple(_dimension(word, each) for each in _COMMA.split(dims)) if dims else ()
    if given is None:
        return Tensor(name, DTYPES[dtype], shape)
    if rule := _RULE.fullmatch(given):
        if not DTYPES[dtype].startswith("int") or (len(shape) != 1 and rule[1] != "distinct"):
            raise DerbyError(f"{word!r:.80}: {rule[1]} are one row of integers; write {name}:i32[B]={rule[1]}(T)")
        return Tensor(name, DTYPES[dtype], shape, low=0, high=_high(word, rule[2]), rule=rule[1])
    drawn = _RANGE.fullmatch(given)
    if drawn is None:
        raise DerbyError(f"{word!r:.80}: {given!r} is no range; write {name}:{dtype}[{dims}]=0..V or =distinct(V)")
    return Tensor(name, DTYPES[dtype], shape, low=_float(word, drawn[1]), high=_high(word, drawn[2]))


def tensors(words: Iterable[str]) -> list[Tensor]:
    found = [tensor(word) for word in words]
    for place, each in enumerate(found):
        if each.name in [other.name for other in found[:place]]:
            raise DerbyError(f"{each.name}: stands twice; rename one of them")
    return found


def is_size(text: str) -> bool:
    """Whether a word is a whole number below 10^18: larger ones fit no tensor, and int() refuses the longest."""
    return text.isdecimal() and len(text) <= 18


def sizes(words: Sequence[str], axes: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Axis -> sizes, from `T=1,64 D=4096`. DerbyError for a name that is not an axis."""
    known, found = list(axes), dict[str, tuple[int, ...]]()
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not all(is_size(each) for each in values.split(",")):
            raise DerbyError(f"{word!r:.80}: is no size; write AXIS=1,64,1024")
        if name in found:
            raise DerbyError(f"{name}: stands twice; write {name}={','.join(map(str, found[name]))},{values:.40}")
        if name not in known:
            raise DerbyError(f"{word!r:.80}: {name} is no axis that varies; there are {', '.join(known) or 'none'}")
        found[name] = tuple(int(each) for each in values.split(","))
    return found


def axis_names(every: Iterable[Tensor]) -> dict[str, int | None]:
    """Name -> size of every axis, None for a variable axis. A fixed size n is the axis size_n."""
    found: dict[str, int | None] = {}
    for each in every:
        for part in each.shape or ():
            found[axis_of(part)] = part if isinstance(part, int) else None
    return found


def axis_of(part: Part) -> str:
    return f"size_{part}" if isinstance(part, int) else part.axis if isinstance(part, Formula) else part


def formulas_of(every: Iterable[Tensor]) -> dict[str, Formula]:
    """Name -> formula, for the axes that follow from others."""
    return {axis_of(part): part for each in every for part in each.shape or () if isinstance(part, Formula)}


def demands_of(every: Iterable[Tensor]) -> list[str]:
    """Relations between axes that values need: as many distinct ones as the tensor has, below `high`."""
    found = [each for each in every if each.rule == "distinct"]
    return [f"{'*'.join(f'{axis_of(part)}' for part in each.shape or ())} <= {each.high}" for each in found]


def expect_told(inputs: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> None:
    """DerbyError if a formula or a range of values names an axis that no input has by itself, because then no call
    determines its size. Also if two axes would have the same name, or if an output has a size that no input has."""
    plain = {part for each in inputs for part in each.shape or () if isinstance(part, str)}
    taken: dict[str, Part] = {}
    for each in inputs:
        for part in each.shape or ():
            other = taken.setdefault(axis_of(part), part)
            if other != part and not (isinstance(part, Formula) and part.is_same(other)):
                raise DerbyError(f"{each}: {part} and {other} would both be the axis {axis_of(part)}; rename an axis")
            if isinstance(part, Formula):
                for axis in set(part.axes) - plain:
                    raise DerbyError(
                        f"{each}: no input has {axis} by itself, so no call tells it; {_mend(each, part, axis)}"
                    )
        if isinstance(each.high, str) and each.high not in plain:
            raise DerbyError(f"{each}: {each.high} is no axis of an input; name one, or give a number")
    for each in outputs:
        for part in each.shape or ():
            if isinstance(part, Formula) and part.axis not in taken:
                raise DerbyError(f"{each}: no input has the size {part}, so no call tells it; {untold(part, inputs)}")


def _mend(each: Tensor, part: Formula, axis: str) -> str:
    if factors := part.factors:  # the same memory
        shape = ",".join(",".join(factors) if one is part else str(one) for one in each.shape or ())
        return f"write {each.name}:{_short(each.dtype)}[{shape}]"
    return f"name the size, such as [{part.axis}], or add an input of [{axis}]"


def untold(size: Formula | None, inputs: Sequence[Tensor]) -> str:
    """What to change if an output has a size that no input has."""
    if size is None:
        return "the sizes of an output have to follow from those of inputs"
    divided = re.fullmatch(r"([A-Za-z_]\w*)//?(\d+)", size.text)
    having = [each for each in inputs if divided and divided[1] in (each.shape or ())]
    if divided is None or not having:
        return f"add an input of that size, such as slots:i8[{size}]"
    # A small divisor counts parts, such as gate and up. A large one is a group, such as the values of one scale.
    pair = (divided[2], size.axis) if int(divided[2]) <= _FEW_PARTS else (size.axis, divided[2])
    words = []
    for each in having:
        shape = ",".join(",".join(pair) if part == divided[1] else str(part) for part in each.shape or ())
        words.append(f"{each.name}:{_short(each.dtype)}[{shape}]")
    return f"write {' '.join(words)}, the same memory"


def usual_sizes(inputs: Sequence[Tensor], given: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Default sizes to measure: the first axis at 1, 64 and 1024, last axes at 4096, others at 32."""
    found = dict(given)
    last = {each.shape[-1] for each in inputs if each.shape}
    axes = base_axes(inputs)
    for each in inputs:
        if each.rule == "distinct":  # more places than are written to
            found = {str(each.high): (8192,), str((each.shape or ("",))[0]): (1, 64, 1024)} | found
    for place, axis in enumerate(axes):
        found.setdefault(axis, (1, 64, 1024) if place == 0 and len(axes) > 1 else (4096,) if axis in last else (32,))
    return {axis: found[axis] for axis in axes}


def base_axes(every: Iterable[Tensor]) -> list[str]:
    """The axes that vary independently."""
    every = list(every)
    return [name for name, size in axis_names(every).items() if size is None and name not in formulas_of(every)]


def _dimension(word: str, part: str) -> Part:
    if is_size(part):
        return int(part)
    if part.isidentifier() and not keyword.iskeyword(part):
        return part
    return formula(word, part)


def _number(word: str, dtype: str, given: str) -> float | int | bool:
    if dtype == "bool":
        if given not in ("true", "false", "True", "False"):
            raise DerbyError(f"{word!r:.80}: {given!r} is no bool; write true or false")
        return given in ("true", "True")
    value = _float(word, given)
    return int(value) if dtype.startswith("int") else value


def _float(word: str, given: str) -> float:
    with suppress(ValueError):
        if math.isfinite(found := float(given)):
            return found
    raise DerbyError(f"{word!r:.80}: {given!r:.60} is no finite number; mend it")


def _high(word: str, given: str) -> str | float:
    return given if given.isidentifier() else _float(word, given)
