"""CUDA sources compiled with nvcc on a machine without a GPU, once: what comes out is kept beside the tests' other
temporary files, by the hash of all that goes in, for other processes of the same run and for the next one."""

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

FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-v")


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of one. name: mangled; spilled: bytes stored."""

    name: str
    registers: int
    spilled: int


@dataclass(frozen=True)
class Compiled:
    cubin: Path
    said: str  # by nvcc and ptxas

    @property
    def kernels(self) -> list[Kernel]:
        pattern = r"entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
        found = re.findall(pattern, self.said, re.DOTALL)
        return [Kernel(name, int(registers), int(spilled)) for name, spilled, registers in found]


def compiled(nvcc: str, source: Path, architecture: str = "90a", flags: Sequence[str] = FLAGS) -> Compiled:
    """source: its folder counts as included. AssertionError with what nvcc said where it fails or warns."""
    command = [nvcc, *flags, f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-cubin"]
    folder = _kept_folder() / _key(command, source)
    cubin, log = folder / "kernel.cubin", folder / "said.json"
    if not log.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as making:
            made = Path(making) / "kernel.cubin"
            done = subprocess.run([*command, "-o", str(made), str(source)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            os.replace(made, cubin)
            note = Path(making) / "said.json"
            note.write_text(json.dumps(done.stderr))
            os.replace(note, log)  # last: where it is, the rest is
    said = json.loads(log.read_text())
    # Among the warnings is C7510: wgmma made to wait for registers that the compiler moved.
    assert "warning" not in said, said
    return Compiled(cubin, said)


def _kept_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"kernelderby-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _key(command: Sequence[str], source: Path) -> str:
    tool = Path(command[0]).stat()
    digest = hashlib.sha256(json.dumps([*command, source.name, tool.st_size, tool.st_mtime_ns]).encode())
    for path in sorted(source.parent.rglob("*")):
        if path.is_file() and path.suffix in (".cu", ".cuh", ".h", ".hpp"):
            digest.update(json.dumps([str(path.relative_to(source.parent)), path.stat().st_size]).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
