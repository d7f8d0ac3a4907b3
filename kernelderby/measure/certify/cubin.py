"""Digests of the kernels in a cubin: every instruction word, and everything else that determines how a kernel runs.

A cubin is a 64-bit ELF file. A kernel's digest covers its code with relocations, its constants, its static shared
memory, its registers, and its attributes (bounds on threads, cluster sizes). A further digest covers the module's data:
__constant__ and __device__ variables and their initial values. Names do not count, so a renamed kernel keeps its
digest.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

_OF_SYMBOLS = (0x0A, 0x0F)  # EIATTR_PARAM_CBANK, EIATTR_EXTERNS: indices into the symbol table
_REGISTERS = 0x2F  # EIATTR_REGCOUNT: symbol and count; older compilers keep the count in the section's header
_MOST_THREADS, _REQUIRED_THREADS = 0x05, 0x10  # EIATTR_MAX_THREADS, EIATTR_REQNTID: 3 x 32 bits
_NO_BITS, _RELOCATIONS, _RELOCATIONS_WITHOUT_ADDEND = 8, 4, 9
_MODULE_DATA = (".nv.global", ".nv.constant3", ".nv.constant4", ".nv.constant1")


class _Section(NamedTuple):
    name: str
    kind: int
    data: bytes
    size: int
    link: int
    info: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """digests: mangled name -> digest. data: digest of the module's variables."""

    digests: dict[str, str]
    data: str


def kernels_of(cubin: bytes) -> Kernels:
    """ValueError if the file is not a cubin of this layout."""
    sections = _sections(cubin)
    symbols = _symbols(sections)
    digests = {
        section.name.removeprefix(".text."): _kernel_digest(number, sections, symbols)
        for number, section in enumerate(sections)
        if section.name.startswith(".text.")
    }
    own = [each for each in sections if each.name in _MODULE_DATA or each.name.startswith(".nv.global")]
    return Kernels(digests, _digest([(each.name, each.size, each.data) for each in own]))


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a kernel's code asks of a multiprocessor. registers: of a thread; shared_bytes: static, of a block; threads:
    the most of a block, where the code says (__launch_bounds__), else None."""

    registers: int
    shared_bytes: int
    threads: int | None


def resources_of(cubin: bytes) -> dict[str, KernelResources]:
    """Mangled name -> resources. ValueError if the file is not a cubin of this layout."""
    listed = _sections(cubin)
    sections, symbols = {each.name: each for each in listed}, _symbols(listed)
    registers = {}
    if about := sections.get(".nv.info"):
        for kind, _, payload in _attributes(about.data):
            if kind == _REGISTERS:
                symbol, count = struct.unpack("<II", payload)
                registers[symbols[symbol][0]] = count
    found = {}
    for section in sections.values():
        if section.name.startswith(".text."):
            name = section.name.removeprefix(".text.")
            shared, about = sections.get(f".nv.shared.{name}"), sections.get(f".nv.info.{name}")
            bounds = {kind: payload for kind, _, payload in _attributes(about.data)} if about else {}
            bound = bounds.get(_REQUIRED_THREADS) or bounds.get(_MOST_THREADS)
            threads = math.prod(struct.unpack("<III", bound)) if bound else None
            found[name] = KernelResources(
                registers.get(name) or section.info >> 24, shared.size if shared else 0, threads
            )
    return found


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file, so no cubin")
    (offset,), (entry, count, names_at) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + number * entry) for number in range(count)]
    names = cubin[headers[names_at][4] :]
    return [
        _Section(
            names[name : names.index(b"\0", name)].decode(),
            kind,
            b"" if kind == _NO_BITS else cubin[start : start + size],
            size,
            link,
            info,
        )
        for name, kind, _, _, start, size, link, info, _, _ in headers
    ]


def _symbols(sections: list[_Section]) -> list[tuple[str, int, int]]:
    """Name, section and value of each symbol."""
    table = next((each for each in sections if each.name == ".symtab"), None)
    if table is None:
        raise ValueError("no symbol table")
    names = sections[table.link].data
    return [
        (names[name : names.index(b"\0", name)].decode(), section, value)
        for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.data)
    ]


def _kernel_digest(number: int, sections: list[_Section], symbols: list[tuple[str, int, int]]) -> str:
    text = sections[number]
    name = text.name.removeprefix(".text.")
    parts: list[object] = [text.data, text.info >> 24]  # its registers
    for each in sections:
        if each.info == number and each.kind in (_RELOCATIONS, _RELOCATIONS_WITHOUT_ADDEND):
            parts += _relocations(each, sections, symbols, number)
        elif each.name == f".nv.info.{name}":
            parts += (found for found in _attributes(each.data) if found[0] not in _OF_SYMBOLS)
        elif each.name == f".nv.shared.{name}" or (
            each.name.startswith(".nv.constant") and each.name.endswith(f".{name}")
        ):
            parts.append((each.name.removesuffix(name), each.size, each.data))
    return _digest(parts)


def _relocations(
    table: _Section, sections: list[_Section], symbols: list[tuple[str, int, int]], own: int
) -> list[tuple[object, ...]]:
    """Where the code takes an address, and of what: a place in the code itself, another function's code, or a name."""
    layout = "<QQq" if table.kind == _RELOCATIONS else "<QQ"
    found: list[tuple[object, ...]] = []
    for offset, info, *addend in struct.iter_unpack(layout, table.data):
        name, section, value = symbols[info >> 32]
        other = sections[section] if 0 < section < len(sections) else None
        if section == own:
            target: object = "own"
        elif other is not None and other.name.startswith(".text."):
            target = other.data
        else:
            target = other.name if other is not None else name
        found.append((offset, info & 0xFFFFFFFF, target, value, *addend))
    return found


def _attributes(data: bytes) -> list[tuple[int, int, bytes]]:
    """(attribute, value) of .nv.info: a form, an attribute, and 16 bits that are the value or the length of one."""
    found: list[tuple[int, int, bytes]] = []
    place = 0
    while place + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, place)
        place += 4
        payload = b""
        if form == 4:
            payload, place = data[place : place + value], place + value
        found.append((attribute, value, payload))
    return found


def _digest(parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
