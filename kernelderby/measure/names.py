"""Kernel names: as the module has them (mangled), as people read them, and without templates and arguments."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from functools import cache
from glob import glob

_TOOL_SECONDS = 20
_SHORTENED = re.compile(r"\((anonymous namespace)\)|<unnamed>")


@cache
def demangled(name: str) -> str:
    """The C++ name of a mangled one; any other name as it is.

    By the C++ runtime's __cxa_demangle, and where it gives up (some of CUTLASS's names) by CUDA's own cu++filt.
    """
    if not name.startswith("_Z"):
        return name
    return _by_runtime(name) or _by_tool(name) or name


def _by_runtime(name: str) -> str | None:
    library = _runtime_library()
    if library is None:
        return None
    status = ctypes.c_int()
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return None
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _free(text)


def _by_tool(name: str) -> str | None:
    tool = _tool()
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, name], capture_output=True, text=True, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.strip()
    return text if done.returncode == 0 and text != name else None


@cache
def _tool() -> str | None:
    return shutil.which("cu++filt") or next(iter(sorted(glob("/usr/local/cuda*/bin/cu++filt"), reverse=True)), None)


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
