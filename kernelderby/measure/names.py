"""Kernel names: as the module has them (mangled), as people read them, and without templates and arguments."""

from __future__ import annotations

import ctypes
import re
from functools import cache

_SHORTENED = re.compile(r"\((anonymous namespace)\)|<unnamed>")


@cache
def demangled(name: str) -> str:
    """The C++ name of a mangled one, by the C++ runtime's own __cxa_demangle; any other name as it is."""
    library = _runtime_library()
    if library is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace") if status.value == 0 else name
    finally:
        _free(text)


@cache
def _runtime_library() -> ctypes.CDLL | None:
    for file in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            library = ctypes.CDLL(file)
            library.__cxa_demangle.restype = ctypes.c_void_p
            library.__cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
                                               ctypes.POINTER(ctypes.c_int)]
            return library
        except (OSError, AttributeError):
            continue
    return None


def _free(pointer: int) -> None:
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(pointer)


@cache
def short_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template arguments or parameters.

    "void at::native::copy_kernel<4, float*>(int)" -> "copy_kernel".
    """
    flat, depth = [], 0
    for letter in _SHORTENED.sub("", name):
        if letter == "(" and depth == 0 and flat:
            break  # the parameters
        depth -= letter == ">"
        if depth == 0 and letter not in "<>":
            flat.append(letter)
        depth += letter == "<"
    words = "".join(flat).split()
    return words[-1].rpartition("::")[2] or name if words else name
