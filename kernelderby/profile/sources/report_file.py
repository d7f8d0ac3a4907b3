"""Reports of nsys (.nsys-rep, .qdrep), exported to SQLite by the installed nsys.

An export beside the report that is not older than the report is used. Otherwise one is made in a folder that is removed
when the program ends.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from glob import glob
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.spans import Profile
from kernelderby.store.bounds import bound_text, bounds

SUFFIXES = (".nsys-rep", ".qdrep")
_SECONDS = 900
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
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
    """DerbyError: nsys is not installed or cannot export the report."""
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
    options = ("--type", "sqlite", "--force-overwrite", "true", "--output", str(database))
    try:
        code, said = _run([nsys, "export", *options, str(path.absolute())])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DerbyError(f"{path}: {nsys} cannot export it ({error}); export it by hand") from None
    if code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        raise DerbyError(f"{path}: unpacks to over {bound_text('unpacked', bounds().unpacked)}")
    if code or not database.is_file():
        said = " ".join(said.split())[-300:]
        raise DerbyError(
            f"{path}: {nsys} cannot export it ({said or 'no file'}); is it whole, and not of a newer nsys?"
        )
    return open_sqlite(database, shown=path)


def _run(words: list[str]) -> tuple[int, str]:
    """Runs the command. Returns its exit code and output. It ends with this program, however that ends. Its children
    end with it, except after a SIGKILL."""
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_within_bounds if sys.platform.startswith("linux") else None,
    ) as process:
        try:
            said = process.communicate(timeout=_SECONDS)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # it was not waited for yet, so the group still belongs to it
            raise
    return process.returncode, said


def _within_bounds() -> None:
    """Makes the process end with its parent, and at the maximum size of a profile."""
    most, hard = int(bounds().unpacked), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if hard < 0 else min(most, hard), hard))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="kernelderby-export-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
