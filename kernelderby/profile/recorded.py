"""The profiles of a set under profiles/ and reports/profiles/, and their solutions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.store.files import files_under

FOLDERS = ("profiles", "reports/profiles")
COUNTED = ".ncu.csv"  # what `derby profile run --with ncu` writes
_PROFILE = re.compile(r"\.(sqlite|json|json\.gz|csv)$")
_NO_PROFILE = re.compile(r"^(published_\w+|recorders|ends)\.csv$|\.ncu\.csv$")


def profile_files(root: Path, problem: Callable[[str], None]) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in files_under(root / folder, "", problem) if path.is_file())


def is_profile(path: Path) -> bool:
    return bool(_PROFILE.search(path.name)) and not _NO_PROFILE.search(path.name)


def solution_of(catalog: Catalog, path: Path) -> str | None:
    """The solution whose name or alias begins the file's name (the longest match), as `derby profile run` names
    files."""
    stem = path.name.partition(".")[0]
    known = {**catalog.aliases, **catalog.solutions}
    names = [name for name, each in known.items() if each.stages and f"{stem}_".startswith(f"{name}_")]
    return known[max(names, key=len)].name if names else None


def title_of(path: Path, solution: str) -> str:
    """The axes in a name from `derby profile run` ("seq_len901"), otherwise the text after the solution's name."""
    rest = path.name.partition(".")[0].removeprefix(solution).lstrip("_")
    return re.sub(r"_[0-9a-f]{8}$", "", rest) or path.name
