"""Kernel names as a module has them (mangled by the Itanium ABI), made readable.

demangled() is the whole C++ name, by the machine's own demanglers: for what we record. outline() needs none of them and
is the same on every machine: enough of a name for rules to match, no substitutions, no parameters; a profile normally
holds demangled names, CUPTI records and Kineto traces of some versions do not.
outline("_ZN2at6native9fill_kernIfLi4EEEvv") == "at::native::fill_kern<float, 4>".
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from functools import cache
from glob import glob

_TOOL_SECONDS = 20
_SHORTENED = re.compile(r"\((anonymous namespace)\)|<unnamed>")
_BUILTIN = {
    "v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "f": "float", "d": "double", "e": "long double", "DF16b": "__bf16", "DF16_": "_Float16",
    "Dh": "__half",
}  # fmt: skip
_STANDARD = {"St": "std", "Ss": "std::string", "Sa": "std::allocator"}
_LITERAL = re.compile(r"L([a-z])(n?[0-9]+)E")
_VALUE = re.compile(r"n?[0-9]+E")
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")  # a substitution or a template parameter, left out
_HALF = re.compile(r"DF16b|DF16_|Dh")
_DIGITS = frozenset("0123456789")
_LENGTH = re.compile(r"[0-9]{1,9}")  # a longer one is no length
_LAMBDA = re.compile(r"Ul(.*?)E([0-9]{0,9})_")
_LAMBDA_TYPE = re.compile(r"N3c10([0-9]{1,9})")


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
            library.__cxa_demangle.argtypes = [
                ctypes.c_char_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_int),
            ]
            return library
        except (OSError, AttributeError):
            continue
    return None


def _free(pointer: int) -> None:
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(pointer)


@cache
def function_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template arguments or parameters.

    "void at::native::copy_kernel<4, float*>(int)" -> "copy_kernel".
    """
    flat: list[str] = []
    depth = 0
    for letter in _SHORTENED.sub("", name):
        if letter == "(" and depth == 0 and flat:
            break  # the parameters
        depth -= letter == ">"
        if depth == 0 and letter not in "<>":
            flat.append(letter)
        depth += letter == "<"
    words = "".join(flat).split()
    return words[-1].rpartition("::")[2] or name if words else name


def outline(mangled: str) -> str:
    """The readable outline of a name that begins with _Z; what cannot be read ends it, it never fails."""
    return _Reader(mangled).read()


class _Reader:
    """One pass from left to right with a stack of what is open: N nested name, I/J arguments, L literal, Z local."""

    def __init__(self, mangled: str) -> None:
        self.text = mangled
        self.place = 2
        self.open: list[str] = []
        self.enums: list[int] = []  # where in out the type of each open literal begins
        self.out = ""

    def read(self) -> str:
        while self.place < len(self.text) and not self._is_complete():
            before = self.place
            self._step()
            if self.place <= before:
                break
        return self.out + ">" * sum(kind in "IJ" for kind in self.open)

    def _is_complete(self) -> bool:
        """The function's name and template arguments are read; parameter types follow."""
        return bool(self.out) and not self.open and self.text[self.place] != "I"

    def _step(self) -> None:
        text, place = self.text, self.place
        character = text[place]
        top = self.open[-1] if self.open else ""
        if character in _DIGITS:
            if top == "L" and (match := _VALUE.match(text, place)):
                self._value(match.group()[:-1].replace("n", "-"))
                self.place = match.end()
            else:
                self._identifier()
        elif match := _LITERAL.match(text, place):
            self._add(match.group(2).replace("n", "-"))
            self.place = match.end()
        elif match := _HALF.match(text, place):  # before its digits pass for the length of a name
            if top in ("I", "J"):
                self._add(_BUILTIN[match.group()])
            self.place = match.end()
        elif match := _LAMBDA.match(text, place):
            self._add(f"[lambda({_lambda_type(match.group(1))}) (instance {int(match.group(2) or -1) + 2})]")
            self.place = match.end()
        elif text.startswith(("cl", "L_Z"), place):
            if character == "L":
                self._open("L")
            self.place += 2
        elif text[place : place + 2] in _STANDARD:
            self._add(_STANDARD[text[place : place + 2]])
            self.place += 2
            if text[self.place : self.place + 1].isdigit():  # St5array: std::array
                self.out += "::"
        elif match := _REFERENCE.match(text, place):
            self.place = match.end()
        elif character in "NIJLZ":
            self._open(character)
        elif character == "E":
            self._close()
        else:
            if character in _BUILTIN and top in ("I", "J"):
                self._add(_BUILTIN[character])
            self.place += 1  # qualifiers, pointers, parameter types of local functions

    def _open(self, character: str) -> None:
        if character in "IJ":
            self.out += "<" if character == "I" else ""
        elif character == "L":
            self.enums.append(len(self.out))
        elif self.open and self.open[-1] in "IJ":
            self._separate()
        self.open.append(character)
        self.place += 1

    def _close(self) -> None:
        if self.open:
            kind = self.open.pop()
            self.out += ">" if kind == "I" else ""
            if kind == "L":
                self.enums.pop()
        self.place += 1

    def _value(self, value: str) -> None:
        """A literal of a named type: "...deep_gemm::GemmType" and 1 become "(deep_gemm::GemmType)1"."""
        self.open.pop()
        start = self.enums.pop()
        kind = self.out[start:].lstrip(", :")
        self.out = self.out[:start]
        self._add(f"({kind}){value}" if kind else value)

    def _identifier(self) -> None:
        length = _LENGTH.match(self.text, self.place)
        assert length is not None  # _step saw a digit here
        start = length.end()
        end = start + int(length.group())
        word = self.text[start:end]
        self.place = end
        if word and not word.startswith("_GLOBAL__N_"):
            self._add(word)

    def _add(self, word: str) -> None:
        if self.open and self.open[-1] in "NZ" and self.out and not self.out.endswith(("<", ", ", "::")):
            self.out += "::"
        else:
            self._separate()
        self.out += word

    def _separate(self) -> None:
        if self.open and self.out and not self.out.endswith(("<", ", ", "::")):
            self.out += ", "


def _lambda_type(text: str) -> str:
    """The first parameter's type of a lambda: f -> float, N3c108BFloat16 -> c10::BFloat16, v -> nothing."""
    if match := _LAMBDA_TYPE.match(text):
        return "c10::" + text[match.end() : match.end() + int(match.group(1))]
    return _BUILTIN.get(text[:1], "") if not text.startswith("v") else ""
