"""A columnar copy of the rows of a large set: made once, extended with new rows, and never the source of truth.

The lines of traces/ count. Their columns lie in the user's cache folder, a Parquet file for some thousand lines
(write.py). Each file is named by the hash of its lines, of the workloads with which they were compared, and of the
code that read them. Missing files are made again. If a file cannot be made or read, the lines are read instead. Results
computed from all rows of an operator lie beside them, named by the hash of their inputs (remembered()).
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from msgspec import Struct

from kernelderby.catalog.agreement import out_of_session
from kernelderby.errors import DerbyError
from kernelderby.store.bounds import remaining_bounds
from kernelderby.store.fields import LONGEST_LINE
from kernelderby.store.files import cache_home, opened, write_whole

T = TypeVar("T")
FEWEST_BYTES = 64 << 20  # of traces; smaller sets are read in seconds
_LINES_BYTES = 16 << 20  # that one part holds, approximately
_ALONE_BYTES = 4 << 20  # less is not worth another process
_CLOCK_SECONDS = 2.0  # a file that was written within this time before it was read may have changed since
_PACKAGE = Path(__file__).resolve().parents[2]


class Part(Struct, frozen=True):
    """Lines of a file, from byte `start` to byte `end`. name: name of the Parquet file without its ending. lines:
    number of line breaks. left_out: number of lines that do not count; problem: why the first of them does not. newest:
    time of its newest row, in seconds since 1970. is_cut: the last line has no line break."""

    start: int
    end: int
    digest: str
    name: str
    first: int
    lines: int
    left_out: int
    problem: str
    newest: float
    is_cut: bool


class Index(Struct):
    """The parts of one file of traces, as it was when it was last read. key: how it was read, see key_of(). agrees: no
    row contradicts another one of its session."""

    key: str
    size: int
    changed_ns: int
    inode: int
    looked: float
    parts: list[Part]
    agrees: bool = True


class Stretch(Struct, frozen=True):
    """Lines that become columns. definition: the definition that is used to read them."""

    path: str
    definition: str
    key: str
    start: int
    end: int
    first: int


class ColumnParts:
    """The columns of one set's rows. read: makes the part of a stretch in this process."""

    def __init__(self, root: Path, read: Callable[[Stretch], Part]) -> None:
        self.root, self._read = root, read
        own = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        self.folder = cache_folder() / "rows" / own
        self._known: dict[Path, Index] = {}

    def of(self, paths: Sequence[Path], keys: Mapping[Path, str]) -> dict[Path, Index]:
        """The parts of these files in their present state. Missing parts are made, on all cores. keys: see key_of().
        OSError, DerbyError: a file cannot be read, or nothing can be stored."""
        waiting: dict[Path, tuple[Index, list[Stretch]]] = {}
        for path in paths:
            if path not in self._known:
                index, stretches = self._looked(path, keys[path])
                waiting[path] = index, stretches
        stretches = [stretch for _, of_file in waiting.values() for stretch in of_file]
        made = dict(zip(stretches, self._made(stretches), strict=True))
        for path, (index, of_file) in waiting.items():
            index.parts += [made[stretch] for stretch in of_file]
            if of_file:
                from kernelderby.catalog.columns.read import read_sessions  # numpy

                index.agrees = not any(out_of_session(read_sessions(self.paths(path, index))))
            write_whole(self._index_path(path), msgspec.json.encode(index))
            self._known[path] = index
            self._tidy(path, index)
        return {path: self._known[path] for path in paths}

    def paths(self, path: Path, index: Index) -> list[Path]:
        return [self.place(path, part.name) for part in index.parts]

    def place(self, path: Path, name: str) -> Path:
        return self._folder(path) / f"{name}.parquet"

    def remembered(self, key: Iterable[str], kind: type[T], work_out: Callable[[], T]) -> T:
        """An earlier result from the same inputs, otherwise a new one. key: everything that the result depends on,
        except the code. A result that cannot be stored is computed each time."""
        path = self.result_path(key)
        with suppress(OSError, msgspec.MsgspecError):
            found: T = msgspec.msgpack.decode(path.read_bytes(), type=kind)
            os.utime(path)
            return found
        result = work_out()
        with suppress(DerbyError, OSError):
            write_whole(path, msgspec.msgpack.encode(result))
            _keep_newest(path.parent)
        return result

    def result_path(self, key: Iterable[str]) -> Path:
        digest = hashlib.sha256("\0".join([code_digest(), *key]).encode()).hexdigest()[:32]
        return self.folder / "results" / f"{digest}.msgpack"

    def _folder(self, path: Path) -> Path:
        return self.folder / path.relative_to(self.root / "traces").with_suffix("")

    def _index_path(self, path: Path) -> Path:
        return self._folder(path) / "index.json"

    def _looked(self, path: Path, key: str) -> tuple[Index, list[Stretch]]:
        """The valid parts of a file, and the stretches whose parts must be made."""
        found = os.stat(path)
        now = Index(key, found.st_size, found.st_mtime_ns, found.st_ino, time.time(), [])
        with suppress(OSError, msgspec.MsgspecError):
            before = msgspec.json.decode(self._index_path(path).read_bytes(), type=Index)
            if before.key == key and all(each.is_file() for each in self.paths(path, before)):
                same = (before.size, before.changed_ns, before.inode) == (now.size, now.changed_ns, now.inode)
                if same and before.looked > now.changed_ns / 1e9 + _CLOCK_SECONDS:
                    return before, []
                now.agrees = before.agrees
                now.parts = _unchanged(path, before.parts, now.size)
        last = now.parts[-1] if now.parts else None
        if last and last.end < now.size and (last.is_cut or last.end - last.start < _LINES_BYTES // 2):
            now.parts.pop()
        return now, [*_stretches(path, key, now)]

    def _made(self, stretches: Sequence[Stretch]) -> Iterator[Part]:
        if sum(stretch.end - stretch.start for stretch in stretches) < _ALONE_BYTES:
            return map(self._read, stretches)
        return _made_apart(self.root, stretches)

    def _tidy(self, path: Path, index: Index) -> None:
        """Deletes the parts that the file's index no longer names: they are of former lines."""
        named = {each.name for each in self.paths(path, index)}
        with suppress(OSError):
            for each in self._folder(path).glob("*.parquet"):
                if each.name not in named:
                    each.unlink()


def cache_folder() -> Path:
    return Path(cache_home(), "kernelderby")


def are_worth_it(paths: Iterable[Path]) -> bool:
    """Whether to keep columns of these files: they are large, and pyarrow is installed."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return size >= FEWEST_BYTES and find_spec("pyarrow") is not None


def key_of(*texts: str | bytes) -> str:
    """A key of the way in which a file is read: the data with which its rows are compared, and the code."""
    digest = hashlib.sha256(code_digest().encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode() if isinstance(text, str) else text).digest())
    return digest.hexdigest()[:32]


@cache
def code_digest() -> str:
    """A digest of the whole package, since other code may read or compute something else."""
    digest = hashlib.sha256()
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.toml")]):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _unchanged(path: Path, parts: Sequence[Part], size: int) -> list[Part]:
    """The parts at the head of the file whose lines are unchanged."""
    kept: list[Part] = []
    with opened(path) as file:
        for part in parts:
            if part.end > size or digest_of(os.pread(file.fileno(), part.end - part.start, part.start)) != part.digest:
                break
            kept.append(part)
    return kept


def _stretches(path: Path, key: str, index: Index) -> Iterator[Stretch]:
    start = index.parts[-1].end if index.parts else 0
    first = index.parts[-1].first + index.parts[-1].lines if index.parts else 1
    with opened(path) as file:
        while start < index.size:
            text = os.pread(file.fileno(), _LINES_BYTES, start)
            while (whole := text.rfind(b"\n") + 1) == 0 and start + len(text) < index.size:
                if len(text) > LONGEST_LINE:
                    raise OSError(errno.EFBIG, f"{path}: a line of more than {LONGEST_LINE:,} bytes")
                text += os.pread(file.fileno(), _LINES_BYTES, start + len(text)) or b"\n"
            end = index.size if start + len(text) >= index.size else start + whole
            yield Stretch(str(path), path.stem, key, start, end, first)
            first += text.count(b"\n", 0, end - start)
            start = end


def digest_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]  # half the time of blake2b if the processor supports it


_SERVE = """
import gc, sys
gc.set_threshold(5_000_000, 50, 50)  # as in the command: records live until their part is written
from kernelderby.store.bounds import Bounds, enforced
from kernelderby.catalog import Catalog
from kernelderby.catalog.columns.parts import serve
from kernelderby.errors import DerbyError
try:
    with enforced(Bounds.parse(sys.argv[2]), "rows"):
        serve(Catalog.open(sys.argv[1]).part_of, sys.stdin.buffer, sys.stdout.buffer)
except DerbyError:
    sys.exit(1)
"""


def _made_apart(root: Path, stretches: Sequence[Stretch]) -> Iterator[Part]:
    """Makes parts with one process for each core. Each reads a stretch per line and answers with a part per line. A
    failing process reports nothing: the lines that it did not process are read in this process, which then gives the
    error."""
    here = threading.local()
    helpers: list[subprocess.Popen[bytes]] = []
    is_over = threading.Event()

    def make(stretch: Stretch) -> Part:
        if not hasattr(here, "helper"):
            words = [sys.executable, "-c", _SERVE, str(root), remaining_bounds()]
            here.helper = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            helpers.append(here.helper)
            if is_over.is_set():
                here.helper.kill()
        ask, answer = here.helper.stdin, here.helper.stdout
        try:
            ask.write(msgspec.json.encode(stretch) + b"\n")
            ask.flush()
            return msgspec.json.decode(answer.readline(), type=Part)
        except (OSError, ValueError, msgspec.MsgspecError):  # or the path is no UTF-8
            raise DerbyError(f"{stretch.path}: its rows are not kept as columns; they are read from the file") from None

    pool = ThreadPoolExecutor(min(len(stretches), len(os.sched_getaffinity(0))))
    try:
        yield from pool.map(make, stretches)
    except BaseException:
        is_over.set()
        for helper in helpers:
            helper.kill()  # ends the wait of a thread for it
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        pool.shutdown()
        for helper in helpers:
            _end(helper)


def _end(helper: subprocess.Popen[bytes]) -> None:
    for pipe in (helper.stdin, helper.stdout):
        with suppress(OSError):
            if pipe:
                pipe.close()
    helper.wait()


def serve(read: Callable[[Stretch], Part], asked: IO[bytes], answered: IO[bytes]) -> None:
    for line in asked:
        answered.write(msgspec.json.encode(read(msgspec.json.decode(line, type=Stretch))) + b"\n")
        answered.flush()


_RESULTS_BYTES = 1 << 30


def _keep_newest(folder: Path) -> None:
    """If there are more than a gigabyte of results, deletes those that were not used for the longest time."""
    found = sorted(((each.stat(), each) for each in folder.iterdir()), key=lambda each: -each[0].st_mtime)
    total = 0
    for state, path in found:
        total += state.st_size
        if total > _RESULTS_BYTES:
            path.unlink(missing_ok=True)
