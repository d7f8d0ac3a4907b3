"""A digest of the host code that launches kernels, from the host compiler's assembly (gcc -S).

A function counts with everything it refers to: the functions it calls, the strings and tables it reads, and the kernels
that it launches, by the digest of their machine code. So names, the order of functions in the file and the place of a
constant do not count. External functions count by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

FORM = 5  # of the digests; digests that are made in another way get another number
_SYMBOL = re.compile(r"(?<![%\w.$@])[A-Za-z_.$][\w.$]*")
_LABEL = re.compile(r"^([A-Za-z_.$][\w.$]*):")
# By the form of the digests: all labels in a function's lines, and the labels that count by their order only. The
# compiler numbers the labels throughout the file. The earlier form kept the numbers of labels in tables of exceptions.
_IN_FUNCTION = {4: re.compile(r"^\.L\d+$"), FORM: re.compile(r"^\.L(?:EH[BE])?\d+$")}
_COUNTED = {4: _IN_FUNCTION[4], FORM: re.compile(r"^\.L[A-Z]*\d+$")}
_FRAME = re.compile(r"^\.L(?:FB|FE|VL|LSDA|EHB|EHE|HOT|COLD|FSB|FDE|CFI|SSDA)")
_SAYS_NOTHING = (
    ".align", ".cfi", ".file", ".globl", ".hidden", ".ident", ".loc", ".p2align", ".popsection", ".pushsection",
    ".section", ".size", ".text", ".type", ".weak", ".set", ".data", ".bss", "#",
)  # fmt: skip
_REGISTERS = ("__sti____cudaRegisterAll", "__cudaUnregisterBinaryUtil")


def launches(assembly: str, kernels: Mapping[str, str], form: int = FORM) -> dict[str, str]:
    """Exported function, or function that runs when the library is loaded -> digest. kernels: mangled name -> digest.
    form: the form of the digests in a certificate. ValueError if the assembly exports nothing."""
    blocks = _blocks(assembly, _IN_FUNCTION[form])
    hidden = set(re.findall(r"^\s*\.hidden\s+(\S+)", assembly, re.MULTILINE))
    functions = set(re.findall(r"^\s*\.type\s+(\S+),\s*@function", assembly, re.MULTILINE))
    roots = set(re.findall(r"^\s*\.globl\s+(\S+)", assembly, re.MULTILINE)) - hidden
    roots = {name for name in roots & functions & set(blocks) if name not in kernels and "__device_stub__" not in name}
    at_start = re.findall(r"\.init_array.*\n(?:\s*\.align.*\n)?\s*\.quad\s+(\S+)", assembly)
    started = {
        f"at start {place}": name for place, name in enumerate(at_start) if not any(one in name for one in _REGISTERS)
    }
    known: dict[str, str] = {}
    counted = _COUNTED[form]
    found = {root: _digest(root, blocks, kernels, known, counted) for root in sorted(roots)}
    if not found:
        raise ValueError("the library exports no function")
    return found | {label: _digest(name, blocks, kernels, known, counted) for label, name in started.items()}


def _blocks(assembly: str, in_function: re.Pattern[str]) -> dict[str, list[str]]:
    """Symbol -> its lines. A function's cold part, which lies elsewhere, belongs to the function."""
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in _outside_of_device_code(assembly):
        text = line.split("\t#", 1)[0].strip() if '"' not in line else line.strip()
        if label := _LABEL.match(text):
            name = label[1]
            if in_function.match(name):
                if current is not None:
                    current.append(text)
            elif not _FRAME.match(name):
                current = blocks.setdefault(name.removesuffix(".cold"), [])
        elif text.startswith(".size"):
            current = None
        elif text.startswith(".comm"):
            name, _, size = text.removeprefix(".comm").strip().partition(",")
            blocks[name] = [f"comm {size}"]
        elif text and current is not None and not text.startswith(_SAYS_NOTHING):
            current.append(text)
    return blocks


def _outside_of_device_code(assembly: str) -> Iterator[str]:
    """Removes the fatbin, which is data between #APP and #NO_APP."""
    is_device = False
    for line in assembly.splitlines():
        if line.strip() == '.section .nv_fatbin, "a"':
            is_device = True
        elif line.startswith("#NO_APP"):
            is_device = False
        if not is_device:
            yield line


def _digest(
    name: str,
    blocks: Mapping[str, list[str]],
    kernels: Mapping[str, str],
    known: dict[str, str],
    counted: re.Pattern[str],
    above: tuple[str, ...] = (),
) -> str:
    """above: the functions whose digests are in progress, for functions that call themselves or each other."""
    if name in kernels:
        return f"kernel {kernels[name]}"
    if name in above:
        return f"above {len(above) - above.index(name)}"
    places: dict[str, int] = {}  # symbol -> its number, in the order in which they appear

    def canonical(match: re.Match[str]) -> str:
        symbol = match[0].removesuffix(".cold")
        if symbol not in blocks and symbol not in kernels:
            return f".L{places.setdefault(symbol, len(places))}" if counted.match(symbol) else symbol
        reached = _digest(symbol, blocks, kernels, known, counted, (*above, name))
        return f"<{places.setdefault(symbol, len(places))} {reached}>"

    if name not in known:
        lines = [line if '"' in line else _SYMBOL.sub(canonical, line) for line in blocks[name]]
        known[name] = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return known[name]
