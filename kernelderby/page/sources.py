"""The sources of solutions, each text once, and the address of the repository."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from kernelderby.catalog import Catalog, Solution
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted
from kernelderby.store.files import read_bytes

DOCS = ("docs/README.md", "docs/scoring.md", "docs/protocol.md", "CONTRIBUTING.md")
_MOST_LETTERS = 400_000  # bytes of one file; generated tables are larger
_LARGEST_CONFIG = 1 << 20  # bytes
_HTTPS = re.compile(r"(?:https://|git@)([\w.-]+)[/:]([\w./-]+?)(?:\.git)?/?")
_REMOTE = re.compile(r'\[remote "origin"\][^\[]*?\burl\s*=\s*(\S+)')


class Sources(Struct, frozen=True):
    """texts: key -> file. now: solution -> path in it -> key. before: the same for solutions whose sources differ in
    the set with which the page is compared."""

    texts: dict[str, str]
    now: dict[str, dict[str, str]]
    before: dict[str, dict[str, str]]


def sources_of(catalog: Catalog, against: Path | None) -> Sources:
    texts: dict[str, str] = {}
    now = _kept(catalog.solutions.values(), texts)
    former: dict[str, Solution] = {}
    if against is not None:
        with suppress(DerbyError):  # a folder of traces has no sources
            former = Catalog.open(against).solutions
    changed = [each for name, each in former.items() if name in now and each.hash != catalog.solutions[name].hash]
    return Sources(texts, now, _kept(changed, texts))


def _kept(solutions: Iterable[Solution], texts: dict[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for solution in solutions:
        own = found[solution.name] = {}
        for path, text in solution.sources.items():
            key = own[path] = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
            texts[key] = text if len(text) <= _MOST_LETTERS else f"{counted(len(text), 'letter')}, not in this page"
    return found


def repository_of(root: Path) -> str:
    """https://host/owner/name of the checkout's origin; empty without an origin of this form."""
    try:
        config = read_bytes(root / ".git/config", _LARGEST_CONFIG)
    except DerbyError:
        return ""
    remote = _REMOTE.search(config.decode("utf-8", "replace"))
    found = _HTTPS.fullmatch(remote[1]) if remote else None
    return f"https://{found[1]}/{found[2]}" if found else ""
