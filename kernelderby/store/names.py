"""Names in a set, from its folders alone: in a tenth of the time that reading the set takes."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.store.files import LARGEST_TEXT, entries, folders_below, read_bytes

OPERATOR, SOLUTION = "operator", "solution"
REFERENCE = "_reference"  # OPERATOR_reference is a solution: plain torch to race against


def alike(name: str) -> str:
    """The same text for names of which the set may have one: that differ in case alone, of which some file systems have
    one file for both, or in how their letters are written (composed or not, of full width), which nobody sees."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def names_in(root: Path, kind: str) -> Iterator[str]:
    """Of operators or solutions, broken ones too; a solution may come twice. Aliases stand in no path."""
    if kind == OPERATOR:
        yield from _stems(folders_below(root / "definitions", 1))
    else:
        for folder in folders_below(root / "solutions", 3):
            yield from _stems([folder])
            yield from (each.name for each in entries(folder) if each.is_dir())


def is_strange(root: Path, name: str) -> bool:
    """Whether a plain word is surely neither an operator, a solution, a reference nor an alias of the set."""
    known = {*names_in(root, OPERATOR), *names_in(root, SOLUTION)}
    if not name.isidentifier() or not known or {name, name.removesuffix(REFERENCE)} & known:
        return False
    alias = re.compile(rf'\baliases"?\s*[=:]\s*\[[^\]]*\b{name}\b')  # TOML or JSON; prose may say the name too
    return not any(name in text and alias.search(text) for text in _written(root))


def _written(root: Path) -> Iterator[str]:
    """The texts that may hold an alias."""
    for folder in folders_below(root / "solutions", 3):
        found = entries(folder)
        sources = {each.name for each in found if each.is_dir()}
        for each in found:
            stem, ending = os.path.splitext(each.name)
            path = Path(each.path, "solution.toml") if each.name in sources else Path(each.path)
            if each.name in sources or (ending == ".json" and stem not in sources):
                with suppress(DerbyError):  # the reader of the set says so
                    yield read_bytes(path, LARGEST_TEXT).decode("utf-8", "replace")


def _stems(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        yield from (each.name[:-5] for each in entries(folder) if each.name.endswith(".json"))
