"""Reports of nsys (.nsys-rep, .qdrep), exported to SQLite by the nsys that is installed.

An export that already lies beside the report and is not older is taken; else one is made in a folder that goes when the
program ends.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from glob import glob
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.spans import Profile

SUFFIXES = (".nsys-rep", ".qdrep")
_SECONDS = 900
_PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
)


def find_nsys() -> str | None:
    """On PATH, else the newest in NVIDIA's usual places."""
    found = shutil.which("nsys")
    return found or next((path for place in _PLACES for path in sorted(glob(place), reverse=True)), None)


def open_report(path: Path) -> Profile:
    """DerbyError: no nsys is installed, or it cannot export the report."""
    from kernelderby.profile.sources.sqlite.export import open_sqlite

    beside = path.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime >= path.stat().st_mtime:
        return open_sqlite(beside, shown=path)
    nsys = find_nsys()
    if nsys is None:
        raise DerbyError(
            f"{path}: a report of nsys, and no nsys is installed to export it; where there is one: "
            f"`nsys export --type sqlite {path.name}`"
        )
    database = Path(_folder()) / f"{abs(hash(path.resolve()))}.sqlite"
    words = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(database), str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DerbyError(f"{path}: {nsys} cannot export it ({error}); export it by hand") from None
    if done.returncode or not database.is_file():
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DerbyError(
            f"{path}: {nsys} cannot export it ({said or 'no file'}); is it whole, and not of a newer nsys?"
        )
    return open_sqlite(database, shown=path)


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="kernelderby-export-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
