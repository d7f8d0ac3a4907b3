"""Which trace set a command works on, where none is named; and a copy that can be written to."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import kernelderby
from kernelderby.errors import DerbyError

PARTS = ("definitions", "workloads", "solutions", "traces", "profiles")
_INSTALLED = Path(kernelderby.__file__).resolve().parent / "set"  # what the wheel brings; a checkout has none


def is_set(folder: Path) -> bool:
    return (folder / "definitions").is_dir()


def find_set(working: Path | None = None) -> Path:
    """$DERBY_ROOT; else the nearest set from the working directory upward; else $FIB_DATASET_PATH; else the user's copy
    of the installed set, once there is one; else the installed set, or the checkout that is installed. The working
    directory where there is nothing at all: whoever opens it says that it is no set."""
    if named := os.environ.get("DERBY_ROOT"):
        return Path(named)
    working = working or Path()
    if is_set(working):
        return working
    for folder in working.absolute().parents:
        if is_set(folder):
            return folder
    if named := os.environ.get("FIB_DATASET_PATH"):
        return Path(named)
    for folder in (own_copy(), _INSTALLED, _INSTALLED.parent.parent):
        if is_set(folder):
            return folder
    return working


def own_copy() -> Path:
    """Where the installed set is copied to before something is written into it."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "kernelderby" / f"set-{kernelderby.__version__}"


def is_installed(folder: Path) -> bool:
    """Whether it is the set that the package brought, which an update replaces."""
    return folder.resolve() == _INSTALLED


def writable_set(root: Path) -> Path:
    """The same set, or a copy of it where it is the installed one: an update of the package would take rows along."""
    if not is_installed(root):
        return root
    copy = own_copy()
    if is_set(copy):
        return copy
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:  # renamed when whole
            for part in PARTS:
                if (root / part).is_dir():
                    shutil.copytree(root / part, Path(scratch) / "set" / part)
            (Path(scratch) / "set").rename(copy)
    except OSError as error:
        if not is_set(copy):  # or somebody else was quicker
            told = f"{copy}: the installed set cannot be copied there ({error.strerror})"
            raise DerbyError(f"{told}; set $XDG_DATA_HOME or give --root") from None
    return copy
