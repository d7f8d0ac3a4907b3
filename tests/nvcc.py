"""CUDA sources compiled on a machine without a GPU, once: the result is kept beside the tests' other temporary files,
by the tokens of all that goes in, for other processes of the same run and for the next run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelderby.catalog.code import running_parts

SUFFIXES = (".cu", ".cuh", ".cpp", ".h", ".hpp")
FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-v")


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of one. name: mangled; spilled: bytes stored."""

    name: str
    registers: int
    spilled: int


@dataclass(frozen=True)
class Compiled:
    path: Path
    said: str  # by nvcc and ptxas

    @property
    def kernels(self) -> list[Kernel]:
        pattern = r"entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
        found = re.findall(pattern, self.said, re.DOTALL)
        return [Kernel(name, int(registers), int(spilled)) for name, spilled, registers in found]


def compiled(
    nvcc: str, source: Path, architecture: str = "90a", flags: Sequence[str] = FLAGS, includes: Sequence[Path] = ()
) -> Compiled:
    """Kernels alone. source: its folder counts as included. includes: further folders of headers. AssertionError with
    what nvcc said where it fails or warns."""
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    made = program(nvcc, source, *flags, target, "-cubin", includes=includes)
    # Among the warnings is C7510: wgmma made to wait for registers that the compiler moved.
    assert "warning" not in made.said and "Potential Performance Loss" not in made.said, made.said
    return made


def program(nvcc: str, source: Path, *flags: str, includes: Sequence[Path] = ()) -> Compiled:
    """What nvcc makes with these flags, a program or (--shared) a library. AssertionError where it fails."""
    folder = kept_folder() / digest_of([nvcc, *flags], [source.parent, *includes], source.name)
    made, log = folder / "made", folder / "said.json"
    if not log.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as making:
            making_it = Path(making) / "made"
            headers = [f"-I{each}" for each in includes]
            command = [nvcc, *flags, *headers, "-o", str(making_it), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            os.replace(making_it, made)
            note = Path(making) / "said.json"
            note.write_text(json.dumps(done.stderr))
            os.replace(note, log)  # last: where it is, the rest is
    return Compiled(made, json.loads(log.read_text()))


def kept_folder() -> Path:
    """Of what is compiled once on this machine: a file or folder each, named by digest_of() what it was made from."""
    folder = Path(tempfile.gettempdir()) / f"kernelderby-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def digest_of(command: Sequence[str], folders: Sequence[Path], *more: str) -> str:
    """Of a compiler and its flags, and of the tokens of all sources in the folders: comments do not count."""
    tool = Path(command[0]).stat()
    digest = hashlib.sha256(json.dumps([*command, *more, tool.st_size, tool.st_mtime_ns]).encode())
    for folder in folders:
        found = (
            path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix in (".cu", ".cuh", ".cpp", ".h", ".hpp")
        )
        texts = {str(path.relative_to(folder)): path.read_text() for path in found}
        digest.update(json.dumps(running_parts(texts)).encode())
    return digest.hexdigest()[:32]
