"""Operators of torch.library over the solutions: a functional one, `<name>_out`, which writes into the caller's
tensors, and, where servers update in place, `<name>_`.

The namespace is the package's. Each call checks ranks, types and sizes (one-line ValueError), takes tensors that are
not contiguous or not at a multiple of 16 bytes through a copy, and runs the solution that the recorded times name.
A solution that refuses a shape, or that Triton cannot compile for it, is passed over for that shape; the log says so
once for each solution. In a capture only solutions that already ran at that shape outside of a capture may run, else
plain torch, so that nothing is compiled there. If every output is empty, nothing runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from .copies import with_copies
from .selector import Selector
from .solutions import PREFIX, can_run, function_of, tell

ALIGNMENT = 16  # bytes
LARGE = 1 << 24  # bytes of an input, such as a cache or weights, whose copy the log names
DATA: dict[str, Any] = json.loads((Path(__file__).parent / "operators.json").read_text(encoding="utf-8"))
_kinds = frozenset(("own", "library", "plain"))  # of the solutions that may run, see only()
_REFUSALS = (ValueError, TypeError, NotImplementedError, AssertionError)
KEPT = 16384  # shapes that an operator remembers: a server meets new ones for as long as it runs
_keeping = Lock()


@dataclass(frozen=True, slots=True)
class Layout:
    """What follows from the shapes, types and device of a call's tensors, and from its integers. shape: in the order of
    the axes that choose. call: whether a solution ran before at all of them. outputs: name -> shape and type."""

    sizes: dict[str, int]
    device: torch.device
    shape: tuple[int, ...]
    call: tuple[Any, ...]
    outputs: dict[str, tuple[torch.Size, torch.dtype]]

    def empty(self, name: str) -> torch.Tensor:
        """An output, not filled."""
        shape, dtype = self.outputs[name]
        return torch.empty(shape, dtype=dtype, device=self.device)


class ServedOperator:
    """about: an entry of operators.json, which deploy/contents.py writes."""

    def __init__(self, name: str, about: Mapping[str, Any]) -> None:
        self.name, self.about = name, about
        self.inputs: dict[str, Any] = about["inputs"]
        self.outputs: dict[str, Any] = about["outputs"]
        self.in_place: dict[str, str] = about["in_place"]  # output -> input, as the `<name>_` operator has it
        self.points = {form: with_copies(about, DATA, form) for form in (False, True)}
        self._selectors: dict[Any, Selector] = {}
        self.selector = self._selector(bool(self.in_place), ())  # of the form that servers call
        self._relations = [(compile(each, name, "eval"), each) for each in about["constraints"]]
        self._orders: dict[Any, list[str]] = {}
        self._warm: dict[Any, None] = {}
        self._newest: Any = None  # of those
        self._layouts: dict[Any, Layout] = {}

    # ------------------------------------------------------------------------------------------------------- the sizes

    def sizes(self, arguments: Sequence[Any]) -> dict[str, int]:
        """Axis -> size. ValueError for what the contract does not allow."""
        found: dict[str, int] = dict(self.about["constants"])
        device = self.first(arguments).device
        for (name, spec), value in zip(self.inputs.items(), arguments, strict=True):
            if spec["shape"] is not None:
                self._check(name, spec, value, device, found)
        for code, relation in self._relations:  # arithmetic of axes, from the operator's definition
            if not eval(code, {"__builtins__": {}}, found):
                raise ValueError(f"{self.name}: the sizes do not fit: {relation}")
        return found

    def places(self, sizes: Mapping[str, int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Output -> shape and type."""
        return {
            name: (torch.Size([sizes[axis] for axis in spec["shape"]]), getattr(torch, spec["dtype"]))
            for name, spec in self.outputs.items()
        }

    def layout(self, arguments: Sequence[Any]) -> Layout:
        """Found by a look-up where a call came before that differs in its contents alone. ValueError as sizes()."""
        key = tuple(
            [
                (each.shape, each.dtype, each.device) if isinstance(each, torch.Tensor) else _whole(each)
                for each in arguments
            ]
        )
        found = self._layouts.get(key)
        if found is None:
            sizes, device = self.sizes(arguments), self.first(arguments).device
            call = device, tuple(sizes.values()), tuple(filter(None, map(_whole, arguments)))
            found = Layout(sizes, device, tuple(sizes[axis] for axis in self.selector.axes), call, self.places(sizes))
            _keep(self._layouts, key, found)
        return found

    def _check(
        self, name: str, spec: Mapping[str, Any], tensor: torch.Tensor, device: torch.device, found: dict[str, int]
    ) -> None:
        if tensor.device != device:
            raise ValueError(f"{self.name}: {name} is on {tensor.device}, must be on {device}")
        if tensor.dtype is not getattr(torch, spec["dtype"]):
            raise ValueError(f"{self.name}: {name} is {tensor.dtype}, must be {spec['dtype']}")
        if tensor.dim() != len(spec["shape"]):
            raise ValueError(f"{self.name}: {name} has {tensor.dim()} axes, must have [{', '.join(spec['shape'])}]")
        for axis, size in zip(spec["shape"], tensor.shape, strict=True):
            if found.setdefault(axis, size) != size:
                raise ValueError(f"{self.name}: {name} has {axis} {size}, must be {found[axis]}")

    def first(self, arguments: Sequence[Any]) -> torch.Tensor:
        tensor: torch.Tensor = next(each for each in arguments if isinstance(each, torch.Tensor))
        return tensor

    # --------------------------------------------------------------------------------------------------------- a call

    def _selector(self, in_place: bool, slices: tuple[str, ...]) -> Selector:
        if (in_place, slices) not in self._selectors:
            points = with_copies(self.about, DATA, in_place, slices)
            self._selectors[in_place, slices] = Selector({**self.about, "points": points})
        return self._selectors[in_place, slices]

    def order(
        self, sizes: Mapping[str, int], device: torch.device, in_place: bool = False, slices: tuple[str, ...] = ()
    ) -> list[str]:
        """The solutions that may run at these sizes, best first. in_place: of the `_` form. slices: inputs that our
        kernels would get as a copy and an engine's own kernel would not."""
        return self._order(tuple(sizes[axis] for axis in self.selector.axes), device, in_place, slices)

    def _order(
        self, shape: tuple[int, ...], device: torch.device, in_place: bool, slices: tuple[str, ...] = ()
    ) -> list[str]:
        key = device, shape, _kinds, in_place, slices
        found = self._orders.get(key)
        if found is None:
            is_measured = device.type == "cuda" and torch.cuda.get_device_name(device) in DATA["gpus"]
            if not is_measured:
                where = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
                tell(f"{PREFIX} was measured on {DATA['gpus'][0]}; on {where} libraries or plain torch run")
            solutions: dict[str, Any] = self.about["solutions"]
            available = {
                name
                for name, about in solutions.items()
                if about["kind"] in _kinds and can_run(about, device, is_measured)
            }
            found = self._selector(in_place, slices).order(shape, available)
            _keep(self._orders, key, found)
        return found

    def runs(self, arguments: Sequence[Any]) -> str | None:
        """The kind of solution (own, library or plain) that a call from an engine would run, with a copy of each input
        that is not contiguous. None where the engine's own code should run: the contract does not allow the call, the
        shape lies outside the measured region, the best solution refused it, or did not run at these sizes before this
        capture."""
        try:
            layout = self.layout(arguments)
        except ValueError as problem:
            tell(f"{problem}; the engine's own code runs", f"{self.name}: the engine's contract")
            return None
        sizes, device = layout.sizes, layout.device
        if not self.selector.reaches(dict(zip(self.selector.axes, layout.shape, strict=True))):
            return None
        named = zip(self.inputs, arguments, strict=True)
        slices = tuple(name for name, each in named if isinstance(each, torch.Tensor) and not _is_ready(each))
        first = self.order(sizes, device, slices=slices)[0]
        if first not in self.order(sizes, device):
            return None
        if _capturing(device) and (first, layout.call) not in self._warm:
            tell(
                f"{self.name} at {sizes}: did not run before the capture, so the engine's own code is captured",
                f"{self.name}: the engine's capture",
            )
            return None
        return self.selector.kinds[first]

    def ran(self) -> list[str]:
        """The solutions that ran in this process, by name."""
        return sorted({name for name, _ in list(self._warm)})  # a copy: another thread may add

    def __call__(
        self, arguments: Sequence[Any], outputs: dict[str, torch.Tensor], in_place: bool = False, is_new: bool = False
    ) -> None:
        """Writes the outputs. in_place: those of self.in_place are the arguments' own tensors. is_new: the others are
        nobody's yet, so a tensor that a solution returns takes their place in `outputs`, without a copy."""
        if all(each.numel() == 0 for each in outputs.values()):
            return None
        layout = self.layout(arguments)
        sizes, device = layout.sizes, layout.device
        if device.type == "cuda" and device.index != torch.cuda.current_device():  # launches go to the current one
            with torch.cuda.device(device):
                return self(arguments, outputs, in_place, is_new)
        capturing = _capturing(device)
        key, order = layout.call, self._order(layout.shape, device, in_place)
        for name in order:
            about = self.about["solutions"][name]
            is_plain = about["kind"] == "plain"
            if capturing and not is_plain and (name, key) not in self._warm:
                tell(
                    f"{self.name} at {sizes}: {name} did not run before the capture; the next one is captured instead",
                    f"{self.name}: {name}'s capture",
                )
                continue
            function = function_of(name, about)
            if function is None:
                continue
            try:
                if about["returns"]:
                    self._run_returning(function, arguments, outputs, in_place, is_new, sizes)
                else:
                    self._run(function, about["in_place"], arguments, outputs, in_place)
            except Exception as problem:
                if is_plain or not _is_refusal(problem):
                    raise
                tell(
                    f"{self.name} at {sizes}: {name} refuses ({str(problem)[:160]}); the next one runs",
                    f"{self.name}: {name}'s refusal",
                )
                others = [each for each in order if each != name]
                _keep(self._orders, (device, layout.shape, _kinds, in_place, ()), others)
                return self(arguments, outputs, in_place, is_new)
            if (name, key) != self._newest:
                self._newest = name, key
                _keep(self._warm, (name, key), None)
            return None
        raise RuntimeError(f"{self.name}: nothing in this package runs on {device}")

    def _run_returning(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        outputs: dict[str, torch.Tensor],
        in_place: bool,
        is_new: bool,
        sizes: Mapping[str, int],
    ) -> None:
        """A solution that returns its outputs. ValueError if they are not the contract's."""
        given = [self._ready(name, value) for name, value in zip(self.inputs, arguments, strict=True)]
        returned = function(*given)
        found = list(returned) if isinstance(returned, tuple) else [returned]
        del returned
        held = {_memory(each) for each in (*given, *outputs.values()) if isinstance(each, torch.Tensor)}
        for place, (name, tensor) in enumerate(outputs.items()):
            self._check(name, self.outputs[name], found[place], tensor.device, dict(sizes))
            is_free = is_new and not (in_place and name in self.in_place) and found[place].is_contiguous()
            if is_free and _memory(found[place]) not in held and _is_nobodys(found, place):
                outputs[name] = found[place]
                held.add(_memory(found[place]))
            elif _memory(found[place]) in held:
                found[place] = found[place].clone()  # before an output is written over it
        for tensor, own in zip(outputs.values(), found, strict=True):
            if own is not tensor:
                tensor.copy_(own)

    def _run(
        self,
        function: Callable[..., None],
        own_in_place: Mapping[str, str],
        arguments: Sequence[Any],
        outputs: Mapping[str, torch.Tensor],
        in_place: bool,
    ) -> None:
        """own_in_place: of the solution, whose outputs lie in its inputs' memory."""
        given = {name: self._ready(name, value) for name, value in zip(self.inputs, arguments, strict=True)}
        held = {name: value.data_ptr() for name, value in given.items() if isinstance(value, torch.Tensor)}
        written: dict[str, torch.Tensor] = {}
        for name, tensor in outputs.items():
            shared = self.in_place.get(name) if in_place else None
            source = own_in_place.get(name)
            if shared is not None and source == shared:
                written[name] = given[source]  # ready: the caller's own tensor, or a copy of it
            else:
                others = [address for input, address in held.items() if input != source]
                is_free = shared is None and _is_ready(tensor) and tensor.data_ptr() not in others
                written[name] = tensor if is_free else torch.empty_like(tensor, memory_format=torch.contiguous_format)
                if source is not None:
                    written[name].copy_(given[source])
                    given[source] = written[name]
        function(*given.values(), *written.values())
        for name, tensor in outputs.items():
            if written[name] is not tensor:
                tensor.copy_(written[name])

    def _ready(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or _is_ready(value):
            return value
        if value.nbytes >= LARGE:
            tell(
                f"{self.name} copies {name}, {value.nbytes >> 20:,} MiB, at each call: it is not contiguous, or not "
                f"at a multiple of {ALIGNMENT} bytes",
                f"{self.name}: copy of {name}",
            )
        return value.clone(memory_format=torch.contiguous_format)


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Stores it as the newest entry; the oldest one is dropped if there are more than KEPT. Threads may call at the
    same time."""
    with _keeping:
        known.pop(key, None)
        known[key] = value
        if len(known) > KEPT:
            del known[next(iter(known))]


def _is_refusal(problem: Exception) -> bool:
    """Whether the error came before anything was launched: the solution refused the call, or Triton could not compile
    or load a kernel there."""
    return isinstance(problem, _REFUSALS) or type(problem).__module__.partition(".")[0] == "triton"


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _whole(number: Any) -> tuple[type, int] | None:
    """Of a number that is whole: a kernel may depend on it. With its type, since 0 is False."""
    return (type(number), number) if isinstance(number, int) else None


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_nobodys(found: list[torch.Tensor], place: int) -> bool:
    """Whether only this list holds the tensor and its memory: a solution may keep a buffer that it returns. No where
    this torch cannot tell."""
    tensor = found[place]
    alone = sys.getrefcount(tensor) <= 3  # the list, the variable, the argument
    holders = getattr(torch._C, "_storage_Use_Count", None)  # not part of torch's public interface
    memory = tensor.untyped_storage()
    return alone and tensor._base is None and holders is not None and holders(memory._cdata) <= 2  # the tensor and us


def _is_ready(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0


@contextmanager
def only(*kinds: str) -> Iterator[None]:
    """Lets only solutions of these kinds run (own, library; plain torch always may), to compare them in one process."""
    global _kinds
    before, _kinds = _kinds, frozenset((*kinds, "plain"))
    try:
        yield
    finally:
        _kinds = before


# ------------------------------------------------------------------------------------------------------- registration

OPERATORS = {name: ServedOperator(name, about) for name, about in DATA["operators"].items()}


def schema(operator: ServedOperator, form: str) -> str:
    """form: "" (functional), "_out" or "_" (in place)."""
    letters = iter("abcdefghijklmnop")
    shared = set(operator.in_place.values()) if form == "_" else set()
    parts = []
    for name, spec in operator.inputs.items():
        if spec["shape"] is None:
            parts.append(f"{'float' if spec['dtype'].startswith(('float', 'bfloat')) else 'SymInt'} {name}")
        else:
            parts.append(f"Tensor{f'({next(letters)}!)' if name in shared else ''} {name}")
    new = [name for name in operator.outputs if form != "_" or name not in operator.in_place]
    if form == "_out":
        parts += [f"Tensor({next(letters)}!) {name}" for name in new]
        new = []
    gives = ", ".join(["Tensor"] * len(new))
    return f"({', '.join(parts)}) -> {gives if len(new) == 1 else f'({gives})'}"


def _functional(operator: ServedOperator, form: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The call and its fake. For "_", outputs that lie in inputs are not returned."""
    in_place = operator.in_place if form == "_" else {}
    place = {name: list(operator.inputs).index(source) for name, source in in_place.items()}

    def fake(*arguments: Any) -> Any:
        sizes, device = operator.sizes(arguments), operator.first(arguments).device
        new = [
            torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in operator.places(sizes).items()
            if name not in place
        ]
        return None if not new else new[0] if len(new) == 1 else tuple(new)

    def call(*arguments: Any) -> Any:
        layout = operator.layout(arguments)
        outputs = {name: arguments[place[name]] if name in place else layout.empty(name) for name in operator.outputs}
        operator(arguments, outputs, in_place=form == "_", is_new=True)
        new = [tensor for name, tensor in outputs.items() if name not in place]
        return None if not new else new[0] if len(new) == 1 else tuple(new)

    return call, fake


def _out(operator: ServedOperator) -> tuple[Callable[..., Any], Callable[..., Any]]:
    count = len(operator.inputs)

    def fake(*arguments: Any) -> None:
        operator.sizes(arguments[:count])

    def call(*arguments: Any) -> None:
        layout = operator.layout(arguments[:count])
        outputs = dict(zip(operator.outputs, arguments[count:], strict=True))
        for name, tensor in outputs.items():
            if (tensor.shape, tensor.dtype) != layout.outputs[name] or tensor.device != layout.device:
                operator._check(name, operator.outputs[name], tensor, layout.device, dict(layout.sizes))
        operator(arguments[:count], outputs)

    return call, fake


def register() -> dict[str, Any]:
    """Name -> the operator of torch.library, in all its forms."""
    found = {}
    for name, operator in OPERATORS.items():
        for form in ("", "_out") + (("_",) if operator.in_place else ()):
            call, fake = _out(operator) if form == "_out" else _functional(operator, form)
            mutated = {"": (), "_out": tuple(operator.outputs), "_": tuple(operator.in_place.values())}[form]
            made = torch.library.custom_op(
                f"{PREFIX}::{name}{form}", call, mutates_args=mutated, schema=schema(operator, form)
            )
            made.register_fake(fake)
            found[f"{name}{form}"] = getattr(getattr(torch.ops, PREFIX), f"{name}{form}").default
    return found
