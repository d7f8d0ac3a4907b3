"""One GPU (or one core) of a Ray cluster. An actor holds it; the actor's child process measures on a copy of the
set."""

from __future__ import annotations

import io
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns.parts import cache_folder
from kernelderby.catalog.solutions import SOURCE_SUFFIXES
from kernelderby.store.files import inside, is_inside

_END_SECONDS = 30
_FOLDERS = ("definitions", "workloads", "solutions", "blob")
_SUFFIXES = {".json", ".jsonl", ".toml", ".safetensors", *SOURCE_SUFFIXES}


class Host:
    """Runs inside Ray. Ray's `num_gpus=1` shows it one GPU, and nobody else gets that one."""

    def __init__(self, data: bytes, device: str) -> None:
        base = cache_folder() / "cluster"
        base.mkdir(parents=True, exist_ok=True)
        self._remove_left(base)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base))
        unpack(data, self._folder)
        words = [sys.executable, "-m", "kernelderby.measure.cluster", str(self._folder), device]
        self._log = (self._folder / "stderr.txt").open("wb")
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)

    def ask(self, message: bytes, seconds: float) -> bytes:
        """The child's answer to a message, or its greeting to an empty one. RuntimeError if it ended or took too long;
        then it and its children are gone."""
        assert self._child.stdin and self._child.stdout
        try:
            if message:
                self._child.stdin.write(message + b"\n")
                self._child.stdin.flush()
            return self._line(time.monotonic() + seconds)
        except (OSError, EOFError, TimeoutError) as error:
            self.end()
            said = (self._folder / "stderr.txt").read_text(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"{error or 'its process ended'}{f': {said[0]:.200}' if said else ''}") from None

    def _line(self, until: float) -> bytes:
        assert self._child.stdout
        descriptor, found = self._child.stdout.fileno(), bytearray()
        with selectors.DefaultSelector() as waiting:
            waiting.register(descriptor, selectors.EVENT_READ)
            while not found.endswith(b"\n"):
                if not waiting.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError("no answer within the task's deadline")
                piece = os.read(descriptor, 1 << 20)
                if not piece:
                    raise EOFError("the process that measures has ended")
                found += piece
        return bytes(found)

    def end(self) -> None:
        """Closes the child's stdin, so that it ends by itself; its solutions' processes end with it."""
        with suppress(OSError):
            if self._child.stdin:
                self._child.stdin.close()
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def close(self) -> None:
        self.end()
        for each in (self._log, self._child.stdout):
            if each:
                each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_left(self, base: Path) -> None:
        """Removes the copies of the set of killed actors."""
        for each in base.iterdir():
            with suppress(ValueError):
                if not Path(f"/proc/{int(each.name.partition('-')[0])}").exists():
                    shutil.rmtree(each, ignore_errors=True)


def packed(catalog: Catalog, solutions: Collection[str]) -> bytes:
    """The set as an archive for a host: definitions, workloads and solutions, without rows. solutions: names; other
    solutions contribute only the files that they share with these."""
    others = [each for name, each in catalog.solutions.items() if name not in solutions]
    left_out = {each.folder for each in others if each.folder} | {each.json_path for each in others}
    used = {catalog.solution(name).definition for name in solutions}
    paths = []
    for folder in _FOLDERS:
        for path in sorted((catalog.root / folder).rglob("*")):
            inner = path.relative_to(catalog.root)
            is_asked = folder != "blob" or not used.isdisjoint(inner.parts)  # tensors of other operators are large
            is_asked = is_asked and path.suffix in _SUFFIXES and left_out.isdisjoint((path, *path.parents))
            if is_asked and is_inside(catalog.root, path) and path.is_file():
                paths.append(inner)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner in paths:  # without times, so that the same set gives the same bytes
            archive.writestr(zipfile.ZipInfo(inner.as_posix()), (catalog.root / inner).read_bytes())
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            path = inside(folder, name, "the set of a job")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
