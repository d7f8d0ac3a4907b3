"""The commit of a checkout, and the set at another commit, by git, without running any program of the checkout.

A repository's config names programs (filters, fsmonitor, hooks), and `git status` starts them. So git gets another
folder as its repository, with an empty config and links to the references. Objects and index stay where they are.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.store.files import MADE_FROM, read_bytes, reason

_SECONDS = 60
_REFERENCES = ("refs", "packed-refs", "shallow")
_CONFIG = "[core]\n\trepositoryformatversion = {version}\n\tbare = false\n\thooksPath = /dev/null\n"
_OF_SHA256 = re.compile(rb"objectformat\s*=\s*sha256", re.IGNORECASE)
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"


def git_commit(root: Path) -> dict[str, Any]:
    """commit and dirty (uncommitted changes) of the checkout that holds the trace set. The environment variable
    DERBY_COMMIT has precedence, since files copied to a machine may lie inside another checkout. Empty without
    either."""
    if os.environ.get("DERBY_COMMIT"):
        return {"commit": os.environ["DERBY_COMMIT"]}
    try:
        with plain_git(root) as git:
            commit = git("rev-parse", "HEAD")
            if commit.returncode:
                return {}
            # A run writes traces itself; they do not make the code differ from the commit. A submodule would bring its
            # own config.
            words = ("status", "--porcelain", "--ignore-submodules=all", "--", ".", ":(exclude,top)traces")
            changes = git(*words)
    except (OSError, DerbyError):
        return {}
    return {"commit": commit.stdout.decode().strip(), "dirty": bool(changes.returncode or changes.stdout)}


@contextmanager
def plain_git(root: Path) -> Iterator[Any]:
    """git's commands in that folder: git("status", ...) gives the CompletedProcess, with bytes. OSError if the folder
    is in no repository, or git is missing or does not end. DerbyError if the repository is broken."""
    top, own = _repository(root.resolve())
    common = own / os.fsdecode(read_bytes(own / "commondir")).strip() if (own / "commondir").is_file() else own
    with tempfile.TemporaryDirectory(prefix="kernelderby-git-") as folder:
        place = Path(folder)
        (place / "HEAD").write_bytes(read_bytes(own / "HEAD"))
        is_sha256 = bool(_OF_SHA256.search(read_bytes(common / "config")))
        (place / "config").write_text(_CONFIG.format(version=int(is_sha256)) + _SHA256 * is_sha256)
        (place / "info").mkdir()
        for source, name in [
            *((common / name, name) for name in _REFERENCES),
            (common / "info" / "exclude", "info/exclude"),
        ]:
            if source.exists():
                (place / name).symlink_to(source)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            **{"GIT_DIR": folder, "GIT_WORK_TREE": str(top), "GIT_INDEX_FILE": str(own / "index")},
            **{"GIT_OBJECT_DIRECTORY": str(common / "objects"), "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"},
            **{"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"},
        }

        def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
            words = ["git", *arguments]
            try:
                return subprocess.run(words, cwd=root, env=environment, capture_output=True, timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                raise TimeoutError(errno.ETIMEDOUT, f"git {arguments[0]} takes over {_SECONDS} s") from None

        yield git


def _repository(folder: Path) -> tuple[Path, Path]:
    """The top of the checkout, and its git folder, which a linked worktree or a submodule names in a file."""
    for top in (folder, *folder.parents):
        own = top / ".git"
        if own.is_file():
            named = os.fsdecode(read_bytes(own)).removeprefix("gitdir:").strip()
            own = top / named
        if (own / "HEAD").is_file():
            return top, own
    raise FileNotFoundError(f"{folder}: is in no repository")


@contextmanager
def at_revision(root: Path, revision: str) -> Iterator[Catalog]:
    """The set as it was at that revision."""
    archive = _git(root, "archive", revision, "--", "definitions", "solutions")
    with tempfile.TemporaryDirectory(prefix="kernelderby-") as folder:
        done = subprocess.run(["tar", "-x", "-C", folder], input=archive, stderr=subprocess.PIPE)
        if done.returncode:
            told = " ".join(done.stderr.decode(errors="replace").split())[:200]
            raise DerbyError(f"{root}: {revision} cannot be unpacked ({told}); make room in {tempfile.gettempdir()}")
        Path(folder, MADE_FROM).symlink_to(root.resolve())
        yield Catalog.open(folder)


def revision_of(root: Path, name: str) -> str:
    refused = f"has no revision {name!r:.60}; give a branch, a tag or a commit of the set's repository"
    return _git(root, "rev-parse", "--verify", f"{name}^{{commit}}", refused=refused).decode().strip()


def has_revision(root: Path, revision: str) -> bool:
    try:
        with plain_git(root) as git:
            return bool(git("cat-file", "-e", revision).returncode == 0)
    except (OSError, DerbyError):
        return False


def _git(root: Path, *arguments: str, refused: str = "") -> bytes:
    try:
        with plain_git(root) as git:
            found = git(*arguments)
    except OSError as error:
        raise DerbyError(f"{root}: {reason(error)}; a revision needs the set's repository") from None
    if found.returncode:
        line = found.stderr.decode(errors="replace").strip().splitlines()
        told = f"git {arguments[0]}: {line[0] if line else 'failed'}; give a revision of the set's repository"
        raise DerbyError(f"{root}: {refused or told}")
    return bytes(found.stdout)
