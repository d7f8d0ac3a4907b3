"""A mangled C++ name (Itanium ABI) as a readable outline, enough for rules to match: no substitutions, no parameters.

A profile normally holds demangled names; CUPTI records and Kineto traces of some versions do not. A whole demangler is
not the aim: outline("_ZN2at6native9fill_kernIfLi4EEEvv") == "at::native::fill_kern<float, 4>".
"""

from __future__ import annotations

import re

_BUILTIN = {"v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
            "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
            "x": "long long", "y": "unsigned long long", "f": "float", "d": "double", "e": "long double"}
_STANDARD = {"St": "std", "Ss": "std::string", "Sa": "std::allocator"}
_LITERAL = re.compile(r"L([a-z])(n?\d+)E")
_VALUE = re.compile(r"n?\d+E")
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")  # a substitution or a template parameter, left out
_LENGTH = re.compile(r"\d+")
_LAMBDA = re.compile(r"Ul(.*?)E(\d*)_")
_LAMBDA_TYPE = re.compile(r"N3c10(\d+)")


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
        if character.isdigit():
            if top == "L" and (match := _VALUE.match(text, place)):
                self._value(match.group()[:-1].replace("n", "-"))
                self.place = match.end()
            else:
                self._identifier()
        elif match := _LITERAL.match(text, place):
            self._add(match.group(2).replace("n", "-"))
            self.place = match.end()
        elif match := _LAMBDA.match(text, place):
            self._add(f"[lambda({_lambda_type(match.group(1))}) (instance {int(match.group(2) or -1) + 2})]")
            self.place = match.end()
        elif text.startswith(("cl", "L_Z"), place):
            if character == "L":
                self._open("L")
            self.place += 2
        elif text[place:place + 2] in _STANDARD:
            self._add(_STANDARD[text[place:place + 2]])
            self.place += 2
            if text[self.place:self.place + 1].isdigit():  # St5array: std::array
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
        return "c10::" + text[match.end():match.end() + int(match.group(1))]
    return _BUILTIN.get(text[:1], "") if not text.startswith("v") else ""
