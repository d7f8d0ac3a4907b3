"""Files that are whole or absent, and paths from data that stay inside their folder.

Every file is replaced in one step (a temporary file beside it, fsync, rename), so a full disk or a kill leaves the old
one. A killed process leaves `.NAME.*.unfinished`; the next process that writes NAME removes it. Files that grow row by
row: appended.py.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import gzip
import json
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from kernelderby.errors import DerbyError
from kernelderby.store.bounds import bound_text, bounds

UNFINISHED = ".unfinished"
MADE_FROM = ".made_from"  # a symlink in a set that is made from another one, to that one
UNCHANGED = "it is as it was; make room or mend its permissions"
LARGEST = 1 << 30  # bytes of a file that is read at once; a hundred thousand rows take less
LARGEST_TEXT = 64 << 20  # bytes of a file that people write, or that is packed from such files
_PIECE = 16 << 20
_NOT_FOLLOWED = "{}: is a symlink to a folder, which is not followed; put the folder itself there"
_LONGEST, _LONGEST_NAME = 4095, 255  # bytes of a path (Linux), and of one of its parts on most file systems


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Opens a regular file to read. OSError for anything else: a pipe or a device could block the reader for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # no file can have this name
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def unpacked(path: Path, packed: bool) -> bytes:
    """The content of a file, decompressed if packed. DerbyError if it is damaged or too large."""
    most, pieces, size = int(bounds().unpacked), list[bytes](), 0
    try:
        with gzip.open(path) if packed else opened(path) as file:
            while size <= most and (piece := file.read(_PIECE)):
                pieces.append(piece)
                size += len(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise DerbyError(f"{path}: cannot be read whole ({error}); copy or write it again") from None
    if size > most:
        raise DerbyError(f"{path}: {'unpacks to' if packed else 'has'} over {bound_text('unpacked', most)}")
    return b"".join(pieces)


def decoded(data: bytes, errors: str = "strict") -> str:
    """A file's text: UTF-16 with its mark, as PowerShell's `>` writes it, otherwise UTF-8 with or without one."""
    return data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", errors)


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file, as many as its size says (files of /proc say 0, and some never end). DerbyError if
    it cannot be read or is too large."""
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > largest:
                raise OSError(errno.EFBIG, f"{size:,} bytes, and {largest:,} are the most that is read")
            return file.read(size) or b""
    except (OSError, ValueError, MemoryError) as error:
        mends: dict[type, str] = {IsADirectoryError: "name a file in it", FileNotFoundError: "mend the name"}
        mend = mends.get(type(error), "mend or remove the file")
        raise DerbyError(f"{path}: cannot be read ({reason(error)}); {mend}") from None


def expect_folders(*folders: Path) -> None:
    """DerbyError if a path exists and is no folder (a file, a link to a disk that is not mounted), or if it cannot be
    listed. A missing folder is fine."""
    for folder in folders:
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise DerbyError(f"{folder}: is no folder; mend or remove it")
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
            raise DerbyError(f"{folder}: cannot be looked into; mend its permissions")


def expect_writable(folder: Path) -> None:
    """Called before long work. DerbyError if nothing can be written into the folder, or if it is missing and cannot be
    made. Makes nothing itself."""
    there = next((each for each in (folder, *folder.absolute().parents) if os.path.lexists(each)), folder)
    expect_folders(there)
    if not os.access(there, os.W_OK | os.X_OK):
        raise DerbyError(f"{folder}: cannot be written to; mend the permissions of {there}, or give another folder")


def files_under(folder: Path, ending: str, told: Callable[[str], None], *, hidden: bool = True) -> list[Path]:
    """All paths with this ending in a folder and its subfolders, sorted; empty if the folder is missing. told: gets a
    line about each folder that is left out, because it cannot be listed or is a symlink. hidden: also names that begin
    with a dot, and caches."""
    found: list[Path] = []
    try:
        expect_folders(folder)
    except DerbyError as problem:
        told(str(problem))
        return []
    if folder.is_symlink():
        told(_NOT_FOLLOWED.format(folder))
        return []

    def unlisted(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            told(f"{error.filename}: cannot be looked into ({reason(error)}); mend its permissions")

    waiting = [os.fspath(folder)]
    while waiting:  # os.walk() calls itself for each level, and a path may have two thousand
        for each in entries(waiting.pop(), unlisted):
            is_folder = _is_folder(each)
            if not hidden and each.name.startswith((".", "__pycache__") if is_folder else "."):
                continue
            if is_folder and each.is_symlink():
                told(_NOT_FOLLOWED.format(each.path))
            elif is_folder:
                waiting.append(each.path)
            if each.name.endswith(ending):
                found.append(Path(each.path))
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def folders_below(folder: Path, depth: int) -> list[Path]:
    """The folders this many levels below, sorted. Symlinks are not followed. Folders that cannot be listed are left
    out; files_under() reports them."""
    found = [] if folder.is_symlink() else [folder]
    for _ in range(depth):
        found = [Path(each.path) for one in found for each in entries(one) if each.is_dir(follow_symlinks=False)]
    return sorted(found)


def entries(folder: Path | str, failed: Callable[[OSError], None] | None = None) -> list[os.DirEntry[str]]:
    """Of a folder, by name; none of one that cannot be listed, which is told to failed."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda each: each.name)
    except OSError as error:
        if failed is not None:
            failed(error)
        return []


def cache_home() -> str:
    """$XDG_CACHE_HOME, otherwise ~/.cache. A relative path does not count (XDG Base Directory Specification): a worker
    has another working directory."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return named if os.path.isabs(named) else os.path.expanduser("~/.cache")


def too_long(path: bytes) -> bool:
    """Whether no file system can have this path. Even a test for its existence would raise."""
    return len(path) > _LONGEST or max(map(len, path.split(b"/"))) > _LONGEST_NAME


def relative_problem(text: str) -> str | None:
    """Why a path from data would leave its folder, judged by the text; None if it stays inside."""
    if not text or any(ord(character) < 32 or ord(character) == 127 for character in text):
        return "is empty or holds control characters"
    if text.startswith(("/", "~")) or "\\" in text or text[1:2] == ":":
        return "is not relative"
    if ".." in text.split("/"):
        return "leads outside with .."
    if too_long(text.encode("utf-8", "replace")):
        return "is longer than a path can be"
    if text.endswith("/") or not any(part not in ("", ".") for part in text.split("/")):
        return "names no file"
    return None


def inside(folder: Path, text: str | Path, where: str) -> Path:
    """folder / text, for a path from data. DerbyError if it leads outside the folder: an absolute path, "..", or a
    symlink. where: file and field, for the message."""
    text = text.as_posix() if isinstance(text, Path) else text
    problem = relative_problem(text)
    if problem is None:
        path = folder / text
        if is_inside(folder, path):
            return path
        problem = "leads outside through a symlink"
    raise DerbyError(f"{where}: {text!r} {problem}; write a path inside {folder}")


def is_inside(folder: Path, path: Path) -> bool:
    """Whether a path lies in the folder after its symlinks are resolved."""
    real = os.path.realpath(folder)
    return os.path.commonpath([real, os.path.realpath(path)]) == real


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step and keeps its mode and a symlink to it. DerbyError if it cannot be written; then the
    file is unchanged."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    with refusing(f"{path}: cannot be written", UNCHANGED):
        if target.is_dir():
            raise DerbyError(f"{path}: is a folder; name a file in it")
        if os.path.lexists(target) and not target.is_file():  # a device would be replaced by a file, for everybody
            raise OSError(errno.EINVAL, "it is no regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target)
        _replace(target, data)


def json_text(data: Any) -> str:
    """Indented, for people to read."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """As write_whole(): a line for each record."""
    write_whole(path, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in records))


def _replace(target: Path, data: bytes) -> None:
    with temporary(target) as (path, descriptor):
        with suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        write_all(descriptor, data)
        os.fsync(descriptor)
        os.replace(path, target)
    _sync_folder(target.parent)


@contextmanager
def temporary(target: Path) -> Iterator[tuple[Path, int]]:
    """A new file beside the target, locked while its writer lives (see remove_unfinished). It is removed at the end,
    unless it was renamed."""
    while True:
        path = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}{UNFINISHED}")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # no locks on this file system: then no process removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another process removed it before it was locked
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


def remove_unfinished(target: Path, *, is_folder: bool = False) -> None:
    """Removes the leftovers of killed processes. A file or folder whose writer lives is locked and stays."""
    for left in target.parent.glob(f".{glob.escape(target.name[:200])}.*{UNFINISHED}"):
        with suppress(OSError):
            descriptor = os.open(left, (os.O_DIRECTORY if is_folder else os.O_NONBLOCK) | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left) if is_folder else left.unlink()
            finally:
                os.close(descriptor)


def write_folder(folder: Path, content: Mapping[str, str]) -> Path:
    """Makes a folder of these files, whole or not at all. An existing folder stays; then the path of a new one beside
    it is returned. Removes the leftovers of killed processes. OSError if it cannot be made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder, is_folder=True)
    staging, descriptor = _new_folder(folder)
    try:
        for name, text in content.items():
            path = inside(staging, name, str(folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            staging.rename(folder)
            return folder
        except OSError:  # another process was first, or an edited copy is in the way
            other = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
            staging.rename(other)
            return other
    finally:
        os.close(descriptor)


def _new_folder(target: Path) -> tuple[Path, int]:
    """A new folder beside the target. The descriptor locks it while its writer lives."""
    while True:
        folder = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}{UNFINISHED}")
        folder.mkdir()
        with suppress(FileNotFoundError):  # another process may remove it until it is locked
            descriptor = os.open(folder, os.O_DIRECTORY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.exists(folder):
                return folder, descriptor
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes every byte, or OSError: one os.write may write fewer."""
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if written <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]


def _sync_folder(folder: Path) -> None:
    """Makes a rename survive a power cut, if the file system has fsync of folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def refusing(told: str, mend: str) -> Iterator[None]:
    """An OSError becomes a DerbyError: what cannot be done, the reason, and the mend."""
    try:
        yield
    except OSError as error:
        raise DerbyError(f"{told} ({reason(error)}); {mend}") from None


def reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return getattr(error, "strerror", None) or str(error)
