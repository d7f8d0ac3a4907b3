"""Memory that the judge allocates and a worker's process sees: the inputs and outputs of one set, in one arena.

On a GPU the arena is an allocation of the driver, which the worker opens through CUDA IPC. On a CPU it is a nameless
file whose descriptor the worker gets, sealed so that nobody can truncate it. An arena fills whole blocks of 2 MiB, the
unit in which the driver shares memory, so it contains no other memory of the judge. The worker gets a description
(JSON) with the handle and each tensor's place. Each tensor has a storage of its own, as a user's tensors have:
torch.compile refuses to write into tensors of several types that share one.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_BLOCK = 2 << 20
_ALIGNMENT = 4096


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class _DeviceBytes:
    """An object that torch.as_tensor accepts as memory on the GPU."""

    def __init__(self, pointer: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }


Place = tuple[tuple[int, ...], torch.dtype]  # shape and type of a tensor
Arena = Callable[[int, int], torch.Tensor]  # offset and number of bytes -> these bytes


@dataclass(slots=True)
class BufferSet:
    """Inputs (including plain numbers) and outputs by name, in the definition's order. description: for attach(); None
    for memory of this process only. lender: the number of the set whose constants this set shares."""

    inputs: dict[str, Any]
    outputs: dict[str, torch.Tensor]
    description: dict[str, Any] | None = None
    lender: int | None = None
    _free: list[Any] = field(default_factory=list)

    def release(self) -> None:
        """Frees the memory. Do not use the tensors afterwards."""
        self.inputs, self.outputs = {}, {}
        while self._free:
            self._free.pop()()


@dataclass(frozen=True, slots=True)
class Loan:
    """The number of a set, its inputs, and the names of the inputs that another set borrows."""

    number: int
    inputs: dict[str, Any]
    names: tuple[str, ...]


def private_set(
    inputs: Mapping[str, Place | int | float | bool],
    outputs: Mapping[str, Place],
    device: torch.device,
    loan: Loan | None = None,
) -> BufferSet:
    """Buffers of this process only."""

    def made(place: Any) -> Any:
        return torch.empty(place[0], dtype=place[1], device=device) if isinstance(place, tuple) else place

    lent = {name: loan.inputs[name] for name in loan.names} if loan else {}
    return BufferSet(
        {name: lent[name] if name in lent else made(place) for name, place in inputs.items()},
        {name: made(place) for name, place in outputs.items()},
        lender=loan.number if loan else None,
    )


def shared_set(
    inputs: Mapping[str, Place | int | float | bool],
    outputs: Mapping[str, Place],
    device: torch.device,
    loan: Loan | None = None,
) -> BufferSet:
    """Buffers in their own arena, with the description for a worker."""
    described: dict[str, dict[str, Any]] = {"inputs": {}, "outputs": {}}
    size = 0
    for kind, places in (("inputs", inputs), ("outputs", outputs)):
        for name, place in places.items():
            if loan and kind == "inputs" and name in loan.names:
                described[kind][name] = {"lent": True}
                continue
            if not isinstance(place, tuple):
                described[kind][name] = {"value": place}
                continue
            shape, dtype = place
            described[kind][name] = {"offset": size, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
            size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    size = (-(-size // _BLOCK) + 1) * _BLOCK  # one additional block, since kernels that load whole tiles read past ends
    free: list[Any] = []
    arena, handle = _cuda_arena(size, free) if device.type == "cuda" else _cpu_arena(size, free)
    if device.type == "cuda":
        arena(0, size).zero_()  # the driver may return former memory of the judge, with expected outputs
    lender = loan.number if loan else None
    description = {"size": size, "handle": handle, "lender": lender, **described}
    return BufferSet(*_tensors(description, arena, device, loan.inputs if loan else {}), description, lender, free)


def opened_set(description: dict[str, Any], device: torch.device, known: Sequence[BufferSet] = ()) -> BufferSet:
    """The worker's side: the same memory in this process. known: the open sets, from which it may borrow."""
    free: list[Any] = []
    size, handle = description["size"], description["handle"]
    if device.type == "cuda":
        torch.zeros(1, device=device)  # from now on the context is current in this thread
        pointer = ctypes.c_uint64()
        driver_call(
            "cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _IpcHandle.from_buffer_copy(bytes.fromhex(handle)), 1
        )
        free.append(lambda: driver_call("cuIpcCloseMemHandle", pointer))
        arena = _on_gpu(pointer.value, device)
    else:
        arena = _mapped(handle, size)
        os.close(handle)
    lender = description["lender"]
    lent = {} if lender is None else known[lender].inputs
    return BufferSet(*_tensors(description, arena, device, lent), None, lender, free)


def _tensors(
    description: dict[str, Any], arena: Arena, device: torch.device, lent: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    def tensor(spec: dict[str, Any]) -> Any:
        if "value" in spec:
            return spec["value"]
        shape, dtype = tuple(spec["shape"]), getattr(torch, spec["dtype"])
        count = math.prod(shape) * dtype.itemsize
        if not count:
            return torch.empty(shape, dtype=dtype, device=device)
        return arena(spec["offset"], count).view(dtype).view(shape)

    return (
        {name: lent[name] if "lent" in spec else tensor(spec) for name, spec in description["inputs"].items()},
        {name: tensor(spec) for name, spec in description["outputs"].items()},
    )


def _cuda_arena(size: int, free: list[Any]) -> tuple[Arena, str]:
    torch.zeros(1, device="cuda:0")  # from now on the context is current in this thread
    pointer, handle = ctypes.c_uint64(), _IpcHandle()
    try:
        driver_call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()  # memory that torch keeps for later
        driver_call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    free.append(lambda: driver_call("cuMemFree_v2", pointer))
    driver_call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
    return _on_gpu(pointer.value, torch.device("cuda:0")), bytes(handle.reserved).hex()


def _on_gpu(pointer: int, device: torch.device) -> Arena:
    return lambda offset, count: torch.as_tensor(_DeviceBytes(pointer + offset, count), device=device)


def _cpu_arena(size: int, free: list[Any]) -> tuple[Arena, int]:
    descriptor = os.memfd_create("kernelderby", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    free.append(lambda: os.close(descriptor))
    os.truncate(descriptor, size)
    # A process that maps a truncated file gets SIGBUS.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return _mapped(descriptor, size), descriptor


def _mapped(descriptor: int, size: int) -> Arena:
    memory = mmap.mmap(descriptor, size)
    return lambda offset, count: torch.frombuffer(memory, dtype=torch.uint8, offset=offset, count=count)


_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def driver_call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver. torch.OutOfMemoryError if it has no memory, RuntimeError for all other errors."""
    code = getattr(_driver(), name)(*arguments)
    if code == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"{name}: CUDA out of memory")
    if code:
        raise RuntimeError(f"{name} failed with CUDA error {code}")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
