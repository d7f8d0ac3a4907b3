"""Right rounding to fp8, right products of bfloat16, bounds of loops and fewer look-ups in Triton's interpreter.

The interpreter (seen in triton 3.7.1, runtime/interpreter.py, _convert_float) rounds the mantissa up without carrying
into the exponent, so that 1.97 becomes 1.0 instead of 2.0 in e4m3, and it rounds halves up instead of to even. On a GPU
the same kernel rounds right; a check in the interpreter would blame the solution. And of two bfloat16 tensors tl.dot
multiplies the 16 bits as whole numbers (create_dot there converts fp8 only). Triton 3.6 takes a loop's bound by int()
of an array of one value, which NumPy 2.5 refuses ("only 0-dimensional arrays ..."); 3.7 does not.
"""

from __future__ import annotations

from typing import Any


def round_fp8_right() -> None:
    """Makes the interpreter of this process convert float32 to fp8 as torch does (to nearest, ties to even; values
    beyond the largest saturate, as Triton's conversion on NVIDIA GPUs does). Does nothing without triton."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    if getattr(interpreter._convert_float, "rounds_right", False):
        return
    import numpy
    import torch

    fp8 = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    original = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source.name != "fp32" or target.name not in fp8:
            return original(values, source, target, rounding_mode)
        dtype = fp8[target.name]
        numbers = torch.from_numpy(numpy.ascontiguousarray(values).view(numpy.float32).copy())
        largest = torch.finfo(dtype).max
        return numbers.clamp(-largest, largest).to(dtype).view(torch.uint8).numpy().reshape(values.shape)

    convert.rounds_right = True  # type: ignore[attr-defined]
    interpreter._convert_float = convert


def multiply_bfloat16_right() -> None:
    """Makes tl.dot in the interpreter of this process multiply bfloat16 values, in float32. Does nothing without
    triton."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    original = interpreter.InterpreterBuilder.create_dot
    if getattr(original, "multiplies_right", False):
        return
    import numpy

    def widened(handle: Any) -> Any:
        if handle.dtype.name != "bf16":
            return handle
        bits = numpy.ascontiguousarray(handle.data).view(numpy.uint16).astype(numpy.uint32) << 16
        return interpreter.TensorHandle(bits.view(numpy.float32), interpreter.tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return original(self, widened(a), widened(b), *others)

    create_dot.multiplies_right = True  # type: ignore[attr-defined]
    interpreter.InterpreterBuilder.create_dot = create_dot


def take_whole_numbers() -> None:
    """Makes a number in the interpreter of this process usable as the bound of a loop whatever NumPy's version. Does
    nothing without triton."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    original = interpreter._patch_lang_tensor
    if getattr(original, "takes_whole_numbers", False):
        return

    def patch(tensor: Any, *others: Any) -> None:
        original(tensor, *others)  # it notes what stood there before, and puts that back after the launch
        tensor.__index__ = lambda self: int(self.handle.data.item())

    patch.takes_whole_numbers = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch


def look_up_less() -> None:
    """Saves a third of the interpreter's time, most of which goes into what it looks up anew for every call of a device
    function: which members of triton.language are builtins, to replace those that it has replaced already, and the
    numpy type of each value. Does nothing without triton."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch, get = interpreter._patch_builtin, interpreter._get_np_dtype
    if getattr(patch, "looks_up_less", False):
        return
    tl = interpreter.tl
    one_of: dict[Any, str | None] = {}  # a package -> the name of one of its builtins
    known: dict[str, Any] = {}

    def patch_builtin(package: Any, *others: Any) -> None:
        """All builtins of a package are replaced together and restored together, so that one tells of the rest."""
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

    patch_builtin.looks_up_less = True  # type: ignore[attr-defined]
    interpreter._patch_builtin, interpreter._get_np_dtype = patch_builtin, get_np_dtype
