"""The work of an operator for which nobody wrote count_cost: its reference runs once, without computing its products.

Flops are those of torch's FlopCounterMode (`torch.utils.flop_counter.flop_registry`): products and convolutions. A
reference that has none counts one for each element of a pointwise operation or of what a reduction reads. Bytes are the
inputs, of a gathered one the gathered rows, and the outputs, each once.

What a product gives, and a large random input, is not known: it has a shape and no contents, so no memory and no time.
What depends on such contents (a loop over them, a mask of them) cannot be counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.flop_counter import flop_registry

from kernelderby.catalog import Definition
from kernelderby.measure.judge.correctness import named_outputs
from kernelderby.measure.judge.definition import Uncountable
from kernelderby.measure.judge.inputs import place_of
from kernelderby.measure.wire.replies import Wrong

_KNOWN_BYTES = 4 << 20  # a random input of up to so many has contents: a routing's scores decide what follows
_OPERATIONS = 2_000_000  # a reference that loops longer than that over its tokens
_ATEN = torch.ops.aten
_COPIES = {_ATEN._to_copy, _ATEN.clone, _ATEN.alias, _ATEN.detach}
_GATHERS = {_ATEN.index, _ATEN.index_select, _ATEN.embedding, _ATEN.gather}
_REDUCTIONS = {
    *(_ATEN.sum, _ATEN.mean, _ATEN.amax, _ATEN.amin, _ATEN.max, _ATEN.min, _ATEN.prod, _ATEN.var, _ATEN.var_mean),
    *(_ATEN._softmax, _ATEN._log_softmax, _ATEN.cumsum, _ATEN.cumprod, _ATEN.logsumexp, _ATEN.linalg_vector_norm),
    *(_ATEN.native_layer_norm, _ATEN._fused_rms_norm, _ATEN.argmax, _ATEN.topk, _ATEN.sort),
}
_READS_CONTENTS = {_ATEN._local_scalar_dense, _ATEN.nonzero, _ATEN.masked_select, _ATEN.equal, _ATEN.bincount}


@dataclass(slots=True)
class _Origin:
    """dtype, numel: of the largest input that a tensor was computed from. input: the one whose elements it holds."""

    dtype: torch.dtype
    numel: int
    input: str | None = None


def counted_cost(
    definition: Definition,
    module: ModuleType,
    sizes: Mapping[str, int],
    scalars: Mapping[str, Any],
    given: Mapping[str, torch.Tensor],
) -> dict[str, Any]:
    """As count_cost would give it. sizes: of every axis. given: the inputs that are not random. Uncountable with the
    reason; what run() raises goes through as that too."""
    counter = _Counter()
    inputs: dict[str, Any] = {}
    for name, spec in definition.inputs.items():
        if spec.shape is None:
            if name not in scalars:
                raise Uncountable(f"the number {name} is random")
            inputs[name] = scalars[name]
            continue
        shape, dtype = place_of(spec, sizes)
        tensor = given[name] if name in given else _random(shape, dtype)
        inputs[name] = counter.named(name, counter.unknown(shape, dtype) if tensor is None else tensor, dtype)
    try:
        with torch.no_grad(), counter:
            returned = module.run(*inputs.values())
        outputs = named_outputs(definition, returned)
    except Uncountable:
        raise
    except Wrong as wrong:
        raise Uncountable(str(wrong)) from wrong
    except Exception as error:  # the definition's own code
        raise Uncountable(" ".join(f"{type(error).__name__}: {error}".split())[:200]) from error
    counter.returned(outputs.values())
    places = [place_of(spec, sizes) for spec in definition.outputs.values()]
    written = sum(math.prod(shape) * dtype.itemsize for shape, dtype in places)
    return {"flops": counter.flops(), "bytes_read": counter.bytes_read(), "bytes_written": written, "counted": True}


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """Contents of a small input; None for a large one. Integers that nobody generates mean nothing."""
    if math.prod(shape) * dtype.itemsize > _KNOWN_BYTES or not dtype.is_floating_point:
        return None
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operation on shapes where it is a product or where contents are unknown, and as it is elsewhere.

    An unknown tensor is one element expanded to the shape, so that its device is the CPU for whoever asks."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would wrap __torch_dispatch__ against torch.compile, whose import takes two seconds and more."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins: Any = torch.utils.weak.WeakIdKeyDictionary()
        self._unknown: dict[int, torch.UntypedStorage] = {}  # held, so that no other storage gets the same address
        self._inputs: dict[str, _Origin] = {}
        self._read: dict[str, int] = {}  # name -> elements
        self._products: dict[torch.dtype, int] = {}
        self._elements = 0
        self._left = _OPERATIONS

    def unknown(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros((), dtype=torch.uint8).expand(dtype.itemsize).clone().view(dtype)[:1]
        tensor = tensor.reshape(()).expand(shape)
        self._unknown[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    def named(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        self._inputs[name] = self._origins[tensor] = _Origin(dtype, tensor.numel(), name)
        return tensor

    def flops(self) -> dict[str, int]:
        """By the narrowest dtype of the inputs that a product multiplies: no kernel is faster than that one's peak."""
        largest = max(self._inputs.values(), key=lambda each: (each.dtype.is_floating_point, each.numel), default=None)
        found = self._products or ({largest.dtype: self._elements} if largest else {})
        return {str(dtype).removeprefix("torch."): count for dtype, count in sorted(found.items(), key=str) if count}

    def bytes_read(self) -> int:
        read = {name: min(self._read.get(name, 0), each.numel) for name, each in self._inputs.items()}
        return sum(read[name] * each.dtype.itemsize for name, each in self._inputs.items())

    def returned(self, outputs: Any) -> None:
        for tensor in outputs:
            self._reads(None, [tensor], tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func._overloadpacket
        self._left -= 1
        if self._left < 0:
            raise Uncountable(f"its reference runs more than {_OPERATIONS} operations")
        is_product = packet in flop_registry
        if not is_product:
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        tensors = [each for each in _flat((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(map(self._is_unknown, tensors)) or is_product:
            out = self._on_shapes(func, packet, args, kwargs, tensors)
        else:
            out = func(*args, **kwargs)
        first = next((each for each in _flat(out) if isinstance(each, torch.Tensor)), None)
        if is_product:
            dtype = self._multiplied(tensors)
            flops = flop_registry[packet](*args, **kwargs, out_val=out)
            self._products[dtype] = self._products.get(dtype, 0) + flops
        self._follow(func, tensors, out, first, is_product)
        return out

    def _on_shapes(self, func: Any, packet: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        if packet in _READS_CONTENTS:
            raise Uncountable(f"its reference depends on computed contents ({packet.__name__})")
        if packet in (_ATEN.index, _ATEN.index_put_, _ATEN.index_put):
            args = (args[0], [self._places(each) for each in args[1]], *args[2:])
        out = func(*tree_map(_shape_alone, args), **tree_map(_shape_alone, kwargs))
        if not func._schema.is_mutable:
            return tree_map_only(torch.Tensor, lambda each: self.unknown(tuple(each.shape), each.dtype), out)
        changed = [
            given
            for given, argument in zip(args, func._schema.arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        changed += [kwargs["out"]] if isinstance(kwargs.get("out"), torch.Tensor) else []
        for tensor in changed:
            self._unknown[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return changed[0] if len(changed) == 1 else tuple(changed)

    def _places(self, index: torch.Tensor | None) -> torch.Tensor | None:
        """A mask selects as many as it holds."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return index
        if self._is_unknown(index):
            raise Uncountable("its reference selects by computed contents")
        if index.dim() != 1:
            raise Uncountable("its reference selects by a mask of several axes")
        return index.nonzero()[:, 0]

    def _is_unknown(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._unknown

    def _origin(self, tensor: torch.Tensor) -> _Origin | None:
        return self._origins.get(tensor)  # type: ignore[no-any-return]

    def _multiplied(self, tensors: list[torch.Tensor]) -> torch.dtype:
        found = [origin.dtype for each in tensors[:3] if (origin := self._origin(each))]
        floating = [dtype for dtype in found if dtype.is_floating_point]
        return min(floating or found or [torch.float32], key=lambda dtype: dtype.itemsize)

    def _follow(
        self, func: Any, tensors: list[torch.Tensor], out: Any, first: torch.Tensor | None, multiplied: bool
    ) -> None:
        """What the results come from, and which inputs were read for them."""
        packet = func._overloadpacket
        if first is None or not tensors:
            self._reads(None, tensors, None)
            return
        made = [each for each in _flat(out) if isinstance(each, torch.Tensor)]
        if (func.is_view or packet in _COPIES) and (aliased := self._origin(tensors[0])) is not None:
            for each in made:
                self._origins[each] = aliased
            return
        self._reads(packet, tensors, first)
        known = [origin for each in tensors if (origin := self._origin(each))]
        largest = max(known, key=lambda each: (each.dtype.is_floating_point, each.numel), default=None)
        dtype = self._multiplied(tensors) if multiplied else largest.dtype if largest else first.dtype
        if not multiplied and first.dtype.is_floating_point:
            is_pointwise = torch.Tag.pointwise in func.tags and packet not in _COPIES
            self._elements += first.numel() if is_pointwise else tensors[0].numel() if packet in _REDUCTIONS else 0
        for each in made:
            if each not in self._origins:
                self._origins[each] = _Origin(dtype, largest.numel if largest else each.numel())

    def _reads(self, packet: Any, tensors: list[torch.Tensor], out: torch.Tensor | None) -> None:
        for place, tensor in enumerate(tensors):
            origin = self._origin(tensor)
            if origin is not None and origin.input is not None:
                taken = out if packet in _GATHERS and place == 0 and out is not None else tensor
                self._read[origin.input] = self._read.get(origin.input, 0) + taken.numel()


def _shape_alone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in _flat(part)]
    if isinstance(value, dict):
        return _flat(list(value.values()))
    return [value]
