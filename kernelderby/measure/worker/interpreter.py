"""Patches for Triton's interpreter: correct conversions and products of narrow types, bounds of loops, and fewer
look-ups.

The interpreter (seen in triton 3.7.1, runtime/interpreter.py, _convert_float) rounds the mantissa up without carrying
into the exponent, so that 1.97 becomes 1.0 instead of 2.0 in e4m3, it rounds halves up instead of to even, truncates to
bfloat16, and takes fp8's NaN for a number. On a GPU the same kernel converts correctly, so a check in the interpreter
would blame the solution. tl.dot multiplies the bits of two bfloat16 tensors as integers (create_dot there converts fp8
only). Triton 3.6 computes a loop's bound by int() of an array of one value, which NumPy 2.5 refuses ("only
0-dimensional arrays ..."); 3.7 does not.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy
import torch
from triton.runtime import autotuner, interpreter

from kernelderby.measure.worker.libdevice import call_libdevice


@functools.cache
def as_on_a_gpu() -> None:
    """Applies all patches, once in this process."""
    look_up_less()
    describe_shapes_once()
    convert_right()
    multiply_right()
    take_whole_numbers()
    take_the_first_configuration()
    call_libdevice()


def convert_right() -> None:
    """Makes the interpreter of this process convert between float32, float16, bfloat16 and fp8 as torch does: to
    nearest, ties to even, NaN and infinities kept. Values beyond fp8's largest saturate, as in Triton's conversion on
    NVIDIA GPUs. Types of up to 16 bits are converted by a table. Rounding towards zero is left to the interpreter."""
    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    types |= {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    bits: dict[int, tuple[torch.dtype, Any]] = {
        1: (torch.uint8, numpy.uint8),
        2: (torch.int16, numpy.uint16),
        4: (torch.int32, numpy.uint32),
    }
    towards_zero = interpreter._ir.ROUNDING_MODE.RTZ
    original = interpreter._convert_float
    tables: dict[tuple[str, str], Any] = {}

    def computed(values: Any, source: torch.dtype, target: torch.dtype) -> Any:
        numbers = torch.from_numpy(numpy.array(values, order="C").view(bits[source.itemsize][1])).view(source).float()
        if target.itemsize == 1:
            largest = torch.finfo(target).max
            numbers = numbers.clamp(-largest, largest)
        as_torch, as_numpy = bits[target.itemsize]
        return numbers.to(target).view(as_torch).numpy().view(as_numpy)

    def convert(values: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source.name not in types or target.name not in types or rounding_mode == towards_zero:
            return original(values, source, target, rounding_mode)
        size = types[source.name].itemsize
        if size == 4:
            return computed(values, types[source.name], types[target.name]).reshape(values.shape)
        names, narrow = (source.name, target.name), bits[size][1]
        if names not in tables:
            every = numpy.arange(1 << 8 * size, dtype=narrow)
            tables[names] = computed(every, types[source.name], types[target.name])
        return tables[names][values.view(narrow)].reshape(values.shape)

    interpreter._convert_float = convert


def multiply_right() -> None:
    """Makes tl.dot in the interpreter of this process multiply the values of bfloat16 and fp8, in float32."""
    original = interpreter.InterpreterBuilder.create_dot
    narrow = {"bf16": numpy.uint16, "fp8e4nv": numpy.uint8, "fp8e5": numpy.uint8}

    def widened(handle: Any) -> Any:
        if handle.dtype.name not in narrow:
            return handle
        data = handle.data.view(narrow[handle.dtype.name])
        bits = interpreter._convert_float(data, handle.dtype, interpreter.tl.float32, None)
        return interpreter.TensorHandle(bits.view(numpy.float32), interpreter.tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return original(self, widened(a), widened(b), *others)

    interpreter.InterpreterBuilder.create_dot = create_dot


def take_whole_numbers() -> None:
    """Makes a number in the interpreter of this process usable as the bound of a loop with any version of NumPy."""
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, *others: Any) -> None:
        original(tensor, *others)  # it stores the former value, and restores it after the launch
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def take_the_first_configuration() -> None:
    """Makes triton.autotune in this process run the first configuration that its pruning leaves. Without a GPU there is
    nothing to time, and Triton has no timer."""

    def bench(self: Any, *arguments: Any, config: Any, **meta: Any) -> list[float]:
        return [0.0, 0.0, 0.0]

    autotuner.Autotuner._bench = bench


def look_up_less() -> None:
    """Saves half of the interpreter's time. For every call of a device function it searches triton.language for
    builtins, which it has replaced already, and looks up the numpy type of each value. Beside every integer sum it
    computes one in int64, which is used only if TRITON_DEBUG is set."""
    patch, get = interpreter._patch_builtin, interpreter._get_np_dtype
    options = interpreter.interpreter_builder.options
    if not options.debug and hasattr(options, "sanitize_overflow"):
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    tl = interpreter.tl
    one_of: dict[Any, str | None] = {}  # a package -> the name of one of its builtins
    known: dict[str, Any] = {}

    def patch_builtin(package: Any, *others: Any) -> None:
        """Replaces the builtins of a package only if one of them is not replaced yet, since all are replaced and
        restored together."""
        name = one_of.get(package)
        if name is not None and not tl.core.is_builtin(getattr(package, name)):
            return
        if name is None:
            members = dir(package)
            one_of[package] = next((each for each in members if tl.core.is_builtin(getattr(package, each))), None)
        patch(package, *others)

    def get_np_dtype(dtype: Any) -> Any:
        element = dtype.element_ty if type(dtype) is tl.block_type else dtype
        if type(element) is not tl.dtype:  # a pointer
            return get(dtype)
        if element.name not in known:
            known[element.name] = get(element)
        return known[element.name]

    interpreter._patch_builtin, interpreter._get_np_dtype = patch_builtin, get_np_dtype


def describe_shapes_once() -> None:
    """Saves a quarter of the remaining time: a tensor of the interpreter wraps its sizes anew for every value. Does
    nothing if triton's tensors have other fields than in 3.6 and 3.7."""
    core = interpreter.tl.core
    make_block, make_tensor = core.block_type.__init__, core.tensor.__init__
    block = core.block_type(core.int32, [2, 4])
    known_block, known_tensor = {"element_ty", "shape", "numel", "name"}, {"handle", "shape", "numel", "type", "dtype"}
    if vars(block).keys() != known_block or vars(core.tensor(None, block)).keys() != known_tensor:
        return
    blocks: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, tuple[Any, Any]] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        if type(element_ty) is not core.dtype:  # a pointer, which has no hash
            make_block(self, element_ty, shape)
            return
        sizes = tuple([getattr(size, "value", size) for size in shape])
        if (known := blocks.get((element_ty, sizes))) is None:
            make_block(self, element_ty, shape)
            blocks[element_ty, sizes] = dict(vars(self))
        else:
            vars(self).update(known)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(getattr(type.shape, "values", type.shape)) if type.is_block() else ()
        if (known := shapes.get(sizes)) is None:
            make_tensor(self, handle, type)
            shapes[sizes] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
