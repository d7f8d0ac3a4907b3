"""Hashes that mean the same code of a solution: certificates/ beside traces/.

certificates/texts.json: hash of the text -> hash of the code, of the sources as they were when rows carried the former.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.fields import must_be, read_json

Hash = Annotated[str, must_be("a hash of 16 hexadecimal digits", pattern=r"^[0-9a-f]{16}\Z")]


class Texts(Struct, frozen=True):
    """certificates/texts.json. hashes: solution -> hash of its text -> hash of its code, at the commit."""

    commit: str
    hashes: dict[str, dict[Hash, Hash]]


def texts_path(root: Path) -> Path:
    return root / "certificates" / "texts.json"


def same_code(root: Path, left_out: Callable[[str], None]) -> dict[str, tuple[frozenset[str], ...]]:
    """Solution -> groups of hashes. A file that is broken is told to left_out."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    path = texts_path(root)
    if path.is_file():
        try:
            for name, hashes in read_json(path, Texts).hashes.items():
                pairs.setdefault(name, []).extend(hashes.items())
        except DerbyError as error:
            left_out(str(error))
    return {name: groups(own) for name, own in pairs.items()}


def unknown_solutions(root: Path, known: Collection[str]) -> Iterator[str]:
    """A line for each solution that a certificate names and the set has not."""
    path = texts_path(root)
    names = read_json(path, Texts).hashes if path.is_file() else ()
    yield from (f"{path}: hashes.{name}: is no solution of the set; remove it" for name in names if name not in known)


def groups(pairs: Iterable[tuple[str, str]]) -> tuple[frozenset[str], ...]:
    """What pairs of equals make equal: a chain is one group."""
    found: list[frozenset[str]] = []
    for pair in pairs:
        touched = [group for group in found if not group.isdisjoint(pair)]
        found = [group for group in found if group not in touched] + [frozenset(pair).union(*touched)]
    return tuple(found)
