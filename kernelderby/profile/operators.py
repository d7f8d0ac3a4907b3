"""The operators of a framework that were open on a thread when it launched: names, shapes, element types, values.

Kineto writes them as events of the category cpu_op; their arguments are `Input Dims`, `Input type`, `Concrete Inputs`.
torch.autograd.profiler.emit_nvtx(record_shapes=True) writes "aten::mm, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]]".
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OPERATORS = {"cpu_op", "operator"}  # the second: torch before 1.11
ARGUMENTS = {"External id", "external id", "Input Dims", "Input dims", "Input type", "Concrete Inputs", "kernel"}
# torch's name after "c10::" -> flashinfer-bench's name
TYPES = {
    **{"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32", "double": "float64"},
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e4m3fnuz"), "float8_e4m3fn"),
    **dict.fromkeys(("c10::Float8_e5m2", "c10::Float8_e5m2fnuz"), "float8_e5m2"),
    **{"c10::Float4_e2m1fn_x2": "float4_e2m1", "c10::Float8_e8m0fnu": "float8_e8m0"},
    **dict.fromkeys(("long int", "long"), "int64"),
    **dict.fromkeys(("short", "short int"), "int16"),
    **{"int": "int32", "signed char": "int8", "unsigned char": "uint8", "bool": "bool"},
}
_RANGE = re.compile(
    r"^(?P<name>[^,]{1,200}?)(?:, (?:seq|op_id) = -?\d+)*, sizes = (?P<sizes>\[.*?\])(?:, input_op_ids = .*)?$"
)
_LARGEST = 1 << 48  # no tensor has a larger size
_LONGEST = 4000  # characters of a range's name: longer ones are not torch's


@dataclass(frozen=True, slots=True)
class Operand:
    """dims: None if it is not a tensor. type: flashinfer-bench's name, "" if unknown. value: a number or list as text,
    "" without one. parts: the sizes of each tensor in a list of tensors."""

    dims: tuple[int, ...] | None
    type: str = ""
    value: str = ""
    parts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """One call: equal only to itself. start_ns, end_ns: on the host."""

    name: str
    operands: tuple[Operand, ...]
    start_ns: int = 0
    end_ns: int = 0

    @property
    def is_shaped(self) -> bool:
        return any(each.dims is not None or each.parts for each in self.operands)


@dataclass(frozen=True, slots=True)
class LaunchOrigin:
    """The origin of GPU work. chain: the operators open at its launch, outermost first. graph: the launch of the CUDA
    graph that contains it, None outside graphs. grid: a kernel's grid, if the trace has it."""

    chain: tuple[OperatorCall, ...] = ()
    graph: int | None = None
    grid: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CapturedLaunch:
    """A launch captured into a CUDA graph. kernel, grid: only in traces that have them (ROCm's)."""

    chain: tuple[OperatorCall, ...]
    kernel: str | None = None
    grid: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """The launches between begin and end of a stream's capture. ranges: the annotations around it, outermost first."""

    launches: tuple[CapturedLaunch, ...]
    ranges: tuple[str, ...] = ()


class OperatorStacks:
    """The calls that are open at a time on a thread. First take() every call, then use chain()."""

    def __init__(self) -> None:
        self._calls: dict[Any, list[OperatorCall]] = defaultdict(list)
        self._of_id: dict[Any, tuple[Any, OperatorCall]] = {}
        self._sorted: dict[Any, tuple[list[OperatorCall], list[int], list[int]]] = {}

    def take(self, place: Any, call: OperatorCall, identity: object = None) -> None:
        """place: process and thread. identity: its id in the GPU's events (Kineto's External id)."""
        self._calls[place].append(call)
        if identity is not None:
            self._of_id.setdefault(identity, (place, call))

    def chain(self, place: Any, time: int) -> tuple[OperatorCall, ...]:
        """The calls open then, outermost first."""
        if place not in self._calls:
            return ()
        calls, starts, parents = self._order(place)
        index = bisect_right(starts, time) - 1
        found = []
        while index >= 0:
            if calls[index].end_ns > time:
                found.append(calls[index])
            index = parents[index]
        return tuple(reversed(found))

    def chain_of(self, identity: object) -> tuple[OperatorCall, ...]:
        """The call of that identity and those around it."""
        known = self._of_id.get(identity)
        if known is None:
            return ()
        place, call = known
        around = self.chain(place, call.start_ns)
        return around[: around.index(call) + 1] if call in around else (call,)

    def _order(self, place: Any) -> tuple[list[OperatorCall], list[int], list[int]]:
        """The thread's calls by start, outer before inner, with the index of the call around each (-1: none)."""
        if place not in self._sorted:
            calls = sorted(self._calls[place], key=lambda each: (each.start_ns, -each.end_ns))
            parents, stack = [], list[int]()
            for index, call in enumerate(calls):
                while stack and calls[stack[-1]].end_ns <= call.start_ns and calls[stack[-1]].end_ns < call.end_ns:
                    stack.pop()
                parents.append(stack[-1] if stack else -1)
                stack.append(index)
            self._sorted[place] = calls, [each.start_ns for each in calls], parents
        return self._sorted[place]


class RangeCalls:
    """Finds the calls that ranges describe, launch by launch. Consecutive launches in ranges of the same names belong
    to one call."""

    def __init__(self) -> None:
        self._before: dict[Any, list[tuple[str, OperatorCall | None]]] = {}

    def chain(self, place: Any, ranges: Iterable[str]) -> tuple[OperatorCall, ...]:
        """place: the process or thread whose launches are consecutive."""
        path, last = list[tuple[str, OperatorCall | None]](), self._before.get(place, [])
        for depth, name in enumerate(ranges):
            is_same = depth < len(last) and len(path) == depth and last[depth][0] == name
            is_same = is_same and path == last[:depth]
            path.append(last[depth] if is_same else (name, call_of_range(name)))
        self._before[place] = path
        return tuple(call for _, call in path if call)


def operands_of(arguments: Mapping[str, Any]) -> tuple[Operand, ...]:
    """The operands in the arguments of a cpu_op; () if it was recorded without shapes."""
    dims = arguments.get("Input Dims", arguments.get("Input dims"))
    types, values = arguments.get("Input type"), arguments.get("Concrete Inputs")
    columns = [each if isinstance(each, list) else [] for each in (dims, types, values)]
    found = []
    for place in range(max(map(len, columns))):
        size, kind, value = (column[place] if place < len(column) else None for column in columns)
        name = TYPES.get(kind, "") if isinstance(kind, str) else ""
        is_tensor = bool(name) or (bool(size) and kind != "ScalarList")
        text = value if isinstance(value, str) else ""
        found.append(Operand(_whole(size) if is_tensor else None, name, text, _parts(size)))
    return tuple(found)


def _parts(sizes: object) -> tuple[tuple[int, ...], ...]:
    """The sizes of the tensors in a list, as torch.cat takes; () for anything else."""
    parts = [_whole(each) for each in sizes] if isinstance(sizes, list) else []
    whole = tuple(each for each in parts if each is not None)
    return whole if len(whole) == len(parts) else ()


def call_of_range(text: str) -> OperatorCall | None:
    """The operator and its sizes in an NVTX range's name; None for any other name. vLLM and SGLang mark modules layer
    by layer; one with a weight is module::linear, module::block_scaled_linear or module::norm."""
    if len(text) > _LONGEST:
        return None
    if text.startswith("{'Module': "):
        return _call_of_module(text)
    match = _RANGE.match(text) if "sizes = [" in text else None
    if match is None:
        return None
    try:
        sizes = json.loads(match["sizes"])
    except (ValueError, RecursionError):
        return None
    return OperatorCall(match["name"], tuple(Operand(_whole(each) if each else None) for each in sizes))


def _call_of_module(text: str) -> OperatorCall | None:
    try:
        marked = ast.literal_eval(text)
        own, inputs = marked.get("TrainableParams", {}), marked.get("Inputs", [])
        weight, scale, bias = (_sizes(own.get(name)) for name in ("weight", "weight_scale_inv", "bias"))
        given = [_sizes(each) for each in inputs]
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
        return None
    if not weight or not given:
        return None
    kind = "norm" if len(weight) == 1 else "block_scaled_linear" if scale else "linear"
    return OperatorCall(f"module::{kind}", tuple(map(Operand, (given[0], weight, scale or bias, *given[1:2]))))


def _sizes(value: object) -> tuple[int, ...] | None:
    return _whole(list(value)) if isinstance(value, list | tuple) else None


def _whole(sizes: object) -> tuple[int, ...] | None:
    """The sizes as a tuple; None if the argument is not a list of sizes, such as a list of tensors."""
    if not isinstance(sizes, list) or not all(type(each) is int and 0 <= each < _LARGEST for each in sizes):
        return None
    return tuple(sizes)


def tensors(call: OperatorCall) -> Iterable[Operand]:
    return (each for each in call.operands if each.dims is not None)
