"""The trace set of a command if none is named; and a copy that can be written to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import kernelderby
from kernelderby.errors import DerbyError

PARTS = ("definitions", "workloads", "solutions", "traces", "profiles")
_INSTALLED = Path(kernelderby.__file__).resolve().parent / "set"  # what the wheel brings; a checkout has none


def is_set(folder: Path) -> bool:
    return os.path.isdir(folder / "definitions")  # and not where nobody may look


def find_set() -> Path:
    """$DERBY_ROOT; else the nearest set from the working directory upward; else $FIB_DATASET_PATH; else the user's copy
    of the installed set, once there is one; else the installed set, or the checkout that is installed. The working
    directory where there is nothing at all: whoever opens it says that it is no set."""
    if named := os.environ.get("DERBY_ROOT"):
        return Path(named)
    if is_set(Path()):
        return Path()
    for folder in _parents():
        if is_set(folder):
            return folder
    if named := os.environ.get("FIB_DATASET_PATH"):
        return Path(named)
    for place in (own_copy(), _INSTALLED, _INSTALLED.parent.parent):
        if place is not None and is_set(place):
            return place
    return Path()


def _parents() -> Sequence[Path]:
    try:
        return Path().absolute().parents
    except OSError:  # the working directory was removed
        return ()


def own_copy() -> Path | None:
    """Where the installed set is copied to before something is written into it; None for a user without a home."""
    base, home = os.environ.get("XDG_DATA_HOME"), os.path.expanduser("~")
    if not base and not os.path.isabs(home):
        return None
    return Path(base or f"{home}/.local/share") / "kernelderby" / f"set-{kernelderby.__version__}"


def is_installed(folder: Path) -> bool:
    """Whether it is the set that the package brought, which an update replaces."""
    return os.path.realpath(folder) == str(_INSTALLED)


def install_words(extra: str) -> str:
    """The words that install an extra where this package came from: a checkout, or an index."""
    is_checkout = (Path(__file__).resolve().parents[2] / "pyproject.toml").is_file()
    return f"pip install -e '.[{extra}]'" if is_checkout else f"pip install 'kernelderby[{extra}]'"


def writable_set(root: Path) -> Path:
    """The same set, or a copy of it where it is the installed one: an update of the package would take rows along."""
    if not is_installed(root):
        return root
    copy = own_copy()
    if copy is None:
        raise DerbyError("the installed set cannot be copied (there is no home); set $XDG_DATA_HOME or give --root")
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
