"""The set as it was at a git revision."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.machine.commit import plain_git
from kernelderby.store.files import reason


@contextmanager
def at_revision(root: Path, revision: str) -> Iterator[Catalog]:
    """The set as it was then."""
    archive = _git(root, "archive", revision, "--", "definitions", "solutions")
    with tempfile.TemporaryDirectory(prefix="kernelderby-") as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Catalog.open(folder)


def revision_of(root: Path, name: str) -> str:
    return _git(root, "rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()


def has_revision(root: Path, revision: str) -> bool:
    try:
        with plain_git(root) as git:
            return bool(git("cat-file", "-e", revision).returncode == 0)
    except OSError:
        return False


def _git(root: Path, *arguments: str) -> bytes:
    try:
        with plain_git(root) as git:
            found = git(*arguments)
    except OSError as error:
        raise DerbyError(f"{root}: {reason(error)}; a revision needs the set's repository") from None
    if found.returncode:
        line = found.stderr.decode(errors="replace").strip().splitlines()
        raise DerbyError(
            f"{root}: git {arguments[0]}: {line[0] if line else 'failed'}; give a revision of the set's repository"
        )
    return bytes(found.stdout)
