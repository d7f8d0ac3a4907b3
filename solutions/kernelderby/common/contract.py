"""What a solution takes, said once and checked at each call: shapes, types, device, contiguity, addresses.

    check = contract.Contract("derby_rms_norm", hidden_states="bfloat16 num_tokens hidden_size",
                              weight="bfloat16 hidden_size", output="bfloat16 num_tokens hidden_size")
    check(hidden_states, weight, output)

What is none of that is a ValueError of one line that names the solution, the input and what is wrong; without it a
kernel would read strangers' memory, or end the CUDA context. A call's sizes and types that were right once are looked
up; beside that, a call costs the contiguity and the addresses of its tensors.
"""

from operator import attrgetter

import torch

_layout = attrgetter("shape", "dtype", "device")
_contiguous, _address = torch.Tensor.is_contiguous, torch.Tensor.data_ptr
_MOST_KNOWN = 1 << 14  # layouts; then they are found anew


class Contract:
    """name: of the solution. aligned: bytes that every address must be a multiple of. tensors, in the order of a call:
    dtype and then for each axis a size or a name, of which each stands for one size. where: "axis == 2 * axis"."""

    def __init__(self, name, aligned=1, where=(), **tensors):
        self.name, self.mask, self.known = name, aligned - 1, set()
        self.where = [condition.split() for condition in where]
        self.tensors = {tensor: tuple(spec.split()) for tensor, spec in tensors.items()}

    def __call__(self, *tensors):
        try:
            layouts = tuple(map(_layout, tensors))
            known = layouts in self.known and all(map(_contiguous, tensors))
        except (AttributeError, TypeError):
            known = False
        if not known:
            self._refuse_others(tensors)
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            self.known.add(tuple(map(_layout, tensors)))
        if self.mask:
            for address in map(_address, tensors):
                if address & self.mask:
                    self._refuse_addresses(tensors)

    def _refuse_others(self, tensors):
        sizes, device = {}, None
        for (name, (dtype, *axes)), tensor in zip(self.tensors.items(), tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise self._error(name, f"is a {type(tensor).__name__}, not a tensor")
            if tensor.dtype is not getattr(torch, dtype):
                raise self._error(name, f"is {str(tensor.dtype).removeprefix('torch.')}, must be {dtype}")
            if tensor.dim() != len(axes):
                raise self._error(name, f"has shape {tuple(tensor.shape)}, must have [{', '.join(axes)}]")
            for axis, size in zip(axes, tensor.shape, strict=True):
                wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
                if size != wanted:
                    raise self._error(name, f"has shape {tuple(tensor.shape)}, must have [{', '.join(axes)}], where "
                                            f"{axis} is {wanted}")
            if device is not None and tensor.device != device:
                raise self._error(name, f"is on {tensor.device}, what stands before it on {device}")
            device = tensor.device
            if not tensor.is_contiguous():
                raise self._error(name, f"has strides {tensor.stride()}, must be contiguous; pass a .contiguous() one")
        for whole, _, factor, _, part in self.where:
            if sizes[whole] != int(factor) * sizes[part]:
                name = next(name for name, (_, *axes) in self.tensors.items() if whole in axes)
                raise self._error(name, f"has {whole} {sizes[whole]}, must have {factor} * {part} = "
                                        f"{int(factor) * sizes[part]}")

    def _refuse_addresses(self, tensors):
        for name, tensor in zip(self.tensors, tensors, strict=True):
            if tensor.data_ptr() & self.mask:
                raise self._error(name, f"begins at an address that {self.mask + 1} does not divide; pass a .clone()")

    def _error(self, name, what):
        return ValueError(f"{self.name}: {name} {what}")
