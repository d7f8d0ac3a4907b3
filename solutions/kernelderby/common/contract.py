"""What a solution accepts, stated once and checked at each call: shapes, types, device, contiguity, addresses.

    check = contract.Contract("derby_rms_norm", hidden_states="bfloat16 num_tokens hidden_size",
                              weight="bfloat16 hidden_size", output="bfloat16 num_tokens hidden_size")
    layout = check(hidden_states, weight, output)

Anything else is a ValueError of one line that names the solution, the input and what is wrong. Without this check a
kernel would read memory that is not its own, or end the CUDA context. The layout is the same object for all calls of
equal sizes, types and device, so a solution keeps there what depends only on these (`config`).

A layout that came twice in a row is compared by a single call into torch, by the means with which its compiler guards
its graphs; any other layout is looked up. The only other cost of a call is reading the addresses of tensors that must
be aligned.
"""

import re
from operator import attrgetter

import torch

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # not part of torch's public interface: without it every layout is looked up
    TensorGuards = None

_layout = attrgetter("shape", "dtype", "device")
_contiguous, _address = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
_MOST_KNOWN = 1 << 14  # layouts; then they are found anew
_MOST_GUARDED = 4


class Layout:
    """Sizes, types and device of a valid call. config: where the solution keeps its choice."""

    __slots__ = ("config", "device")

    def __init__(self, device):
        self.config, self.device = None, device


class Contract:
    """name: of the solution. aligned: bytes that every address must be a multiple of. tensors, in the order of a call:
    dtype, then for each axis a size or a name; a name stands for the same size everywhere. where: conditions between
    these names ("wide == 2 * columns", "heads a multiple of groups"). on_current: the kernels are Triton kernels, which
    run only on torch's current GPU."""

    def __init__(self, name, aligned=1, where=(), on_current=False, **tensors):
        self.name, self.mask, self.where, self.on_current = name, aligned - 1, where, on_current
        self.tensors = {tensor: tuple(spec.split()) for tensor, spec in tensors.items()}
        self.known, self.guarded, self.last = {}, [], None

    def __call__(self, *tensors):
        for same, known in self.guarded:
            if same(*tensors):
                layout = known
                break
        else:
            layout = self._look_up(tensors)
        if self.mask and any(map(self.mask.__and__, map(_address, tensors))):
            self._refuse_addresses(tensors)
        if self.on_current and layout.device is not None and layout.device != torch._C._cuda_getDevice():
            raise self.error(next(iter(self.tensors)), f"is on cuda:{layout.device}, the current GPU is another; call "
                                                       f"within torch.cuda.device({layout.device})")
        return layout

    def error(self, name, what):
        return ValueError(f"{self.name}: {name} {what}")

    def _look_up(self, tensors):
        try:
            layouts = tuple(map(_layout, tensors))
            layout = self.known.get(layouts) if all(map(_contiguous, tensors)) else None
        except (AttributeError, TypeError):
            layout = None
        if layout is None:
            self._refuse_others(tensors)
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            device = tensors[0].device
            layout = self.known[layouts] = Layout(device.index if device.type == "cuda" else None)
        elif layout is self.last:
            self._guard(tensors, layout)
        self.last = layout
        return layout

    def _guard(self, tensors, layout):
        """From now on found first. A guard takes no tensor twice: an output in an input is compared by identity."""
        if TensorGuards is None:
            return
        first = [next(at for at, other in enumerate(tensors) if other is tensor) for tensor in tensors]
        own = sorted(set(first))
        sizes, strides = ([list(getattr(tensors[at], name)()) for at in own] for name in ("size", "stride"))
        alone = TensorGuards(*[tensors[at] for at in own], dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        again = [(at, other) for at, other in enumerate(first) if at != other]

        def same(*tensors):
            for at, other in again:
                if tensors[at] is not tensors[other]:
                    return False
            return alone(*[tensors[at] for at in own])

        self.guarded = [(same if again else alone, layout), *self.guarded[:_MOST_GUARDED - 1]]

    def _refuse_others(self, tensors):
        sizes, first = {}, None
        for (name, (dtype, *axes)), tensor in zip(self.tensors.items(), tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise self.error(name, f"is a {type(tensor).__name__}, not a tensor")
            device, found = tensor.device, str(tensor.dtype).removeprefix("torch.")
            if device.type not in ("cuda", "cpu"):  # of a CPU, where kernels are interpreted
                raise self.error(name, f"is on {device}, must be on a CUDA device")
            if found != dtype:
                raise self.error(name, f"is {found}, must be {dtype}")
            if tensor.dim() != len(axes):
                raise self.error(name, f"has shape {tuple(tensor.shape)}, must have [{', '.join(axes)}]")
            for axis, size in zip(axes, tensor.shape, strict=True):
                wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
                if size != wanted:
                    raise self.error(name, f"has shape {tuple(tensor.shape)}, must have [{', '.join(axes)}], where "
                                           f"{axis} is {wanted}")
            first = first or (name, device)
            if device != first[1]:
                raise self.error(name, f"is on {device}, {first[0]} on {first[1]}; they must be on one device")
            if not tensor.is_contiguous():
                raise self.error(name, f"has strides {tensor.stride()}, must be contiguous; pass a .contiguous() one")
        self._refuse_sizes(sizes)

    def _refuse_sizes(self, sizes):
        for condition in self.where:
            whole, _, part = condition.partition(" a multiple of ")
            if part:
                holds = sizes[whole] % sizes[part] == 0 if sizes[part] else sizes[whole] == 0
            else:
                holds = eval(condition, {"__builtins__": {}}, sizes)
            if not holds:
                axes = list(dict.fromkeys(word for word in re.findall(r"[a-z]\w*", condition) if word in sizes))
                name = next(name for name, (_, *own) in self.tensors.items() if axes[0] in own)
                told = " and ".join(f"{axis} {sizes[axis]}" for axis in axes)
                raise self.error(name, f"has {told}, must have {condition}")

    def _refuse_addresses(self, tensors):
        for name, tensor in zip(self.tensors, tensors, strict=True):
            if tensor.data_ptr() & self.mask:
                raise self.error(name, f"begins at an address that {self.mask + 1} does not divide; pass a .clone()")
