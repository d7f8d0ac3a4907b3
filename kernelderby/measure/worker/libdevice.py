"""CUDA's libdevice in Triton's interpreter, which has none: functions of float32 and float64, computed by torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import torch
from triton.runtime import interpreter

_SAME = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc"),
    *("erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "lgamma", "log", "log10", "log1p", "log2"),
    *("nextafter", "pow", "rsqrt", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME},
    "cbrt": lambda x: x.sign() * x.abs() ** (1 / 3),
    "exp10": lambda x: 10**x,
    "fabs": torch.abs,
    "fdim": lambda x, y: (x - y).clamp(min=0),
    "fdivide": torch.div,
    "finite": torch.isfinite,
    "fma": lambda x, y, z: (x.double() * y + z).to(x.dtype),
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "nearbyint": torch.round,  # halves to even
    "normcdf": torch.special.ndtr,
    "powi": torch.pow,
    "rint": torch.round,
    "round": lambda x: x.sign() * (x.abs() + 0.5).floor(),  # halves away from zero
    "saturate": lambda x: x.nan_to_num(0).clamp(0, 1),
}


def call_libdevice() -> None:
    """Makes its functions work in the interpreter of this process, under all names by which a kernel imports them."""
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as of_cuda

    interpreter.InterpreterBuilder.create_extern_elementwise = _elementwise
    for name, function in list(vars(of_cuda).items()):
        if getattr(function, "__triton_builtin__", False):
            called = _in_the_interpreter(function)
            setattr(of_cuda, name, called)
            setattr(libdevice, name, called)


def _in_the_interpreter(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **_: Any) -> Any:
        return function(*arguments, _semantic=interpreter.interpreter_semantic)

    return called


def _elementwise(self: Any, library: str, path: str, symbol: str, arguments: Any, kind: Any, is_pure: bool) -> Any:
    """symbol: the name in libdevice, such as __nv_tanhf. kind: the type of what it returns."""
    is_single = any(each.data.dtype == numpy.float32 for each in arguments)
    name = symbol.removeprefix("__nv_").removeprefix("fast_").removesuffix("f" if is_single else "")
    if name not in _FUNCTIONS:
        raise NotImplementedError(f"libdevice's {name} is not known to the interpreter; check this kernel on a GPU")
    found = _FUNCTIONS[name](*(torch.from_numpy(numpy.array(each.data)) for each in arguments))
    scalar = kind.scalar
    return interpreter.TensorHandle(found.numpy().astype(interpreter._get_np_dtype(scalar)), scalar)
