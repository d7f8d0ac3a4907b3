"""CUDA sources compiled on a machine without a GPU, once: the result is kept beside the tests' other temporary files,
by the tokens of all that goes in, for other processes of the same run and for the next run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from kernelderby.catalog.code import running_parts

T = TypeVar("T")
SUFFIXES = (".cu", ".cuh", ".cpp", ".h", ".hpp")
FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-v")
CUBIN = ("-gencode=arch=compute_90a,code=sm_90a", "-cubin")
RECORDED = Path(__file__).parent / "data" / "compiled.json"
OUTDATED: list[str] = []  # tests of this process whose entry in it is of other sources


@dataclass(frozen=True)
class Kernel:
    """ptxas's report of one kernel. name: mangled; spilled: bytes stored."""

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


def kernels_of(
    nvcc: str,
    source: Path,
    architecture: str = "90a",
    flags: Sequence[str] = FLAGS,
    includes: Sequence[Path] = (),
    part: str = "",
) -> list[Kernel]:
    """Registers and spills of the kernels, recalled() for the tokens, the flags and the release of nvcc. source: its
    folder counts as included. includes: further folders of headers. part: as for recalled(). AssertionError with what
    nvcc said where it fails or warns."""
    flags = (*flags, f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-cubin")

    def compile_it() -> list[tuple[object, ...]]:
        return [astuple(each) for each in compiled(nvcc, source, flags, includes).kernels]

    def without_names(said: list[list[object]]) -> list[list[object]]:  # a name holds the folder of its source
        return sorted(each[1:] for each in said)

    said = recalled([release(nvcc), *flags, tokens(source, includes)], compile_it, without_names, part)
    return [Kernel(*each) for each in said]


def recalled(
    facts: Sequence[object],
    make: Callable[[], T],
    compared: Callable[[T], object] = lambda said: said,
    part: str = "",
) -> T:
    """What make() gave for these facts: tests/data/compiled.json keeps it for the committed sources. A test that asks
    more than once names each part.
    Other facts (a changed token, flag or release of nvcc) make it again. DERBY_TESTS_ALL=1 makes all and compares,
    DERBY_TESTS_RECORD=1 writes what the file lacks, with `pytest -n0`. facts and make()'s answer are JSON."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0] + (f" {part}" if part else "")
    digest = hashlib.sha256(json.dumps([*facts]).encode()).hexdigest()[:32]
    known = json.loads(RECORDED.read_text())
    entry = known.get(test, {})
    is_known = entry.get("digest") == digest
    if is_known and "DERBY_TESTS_ALL" not in os.environ:
        return entry["said"]
    said = json.loads(json.dumps(make()))
    if "DERBY_TESTS_RECORD" in os.environ:
        known[test] = {"digest": digest, "said": said}
        lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    elif entry and not is_known:
        OUTDATED.append(test)
    elif is_known:
        assert compared(entry["said"]) == compared(said)
    return said


@cache
def release(nvcc: str) -> str:
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


def tokens(source: Path, includes: Sequence[Path] = ()) -> list[tuple[str, str]]:
    """Of a source and of the headers that it includes in quotes, and these."""
    texts: dict[str, str] = {}
    names = [source.name]
    while names:
        name = names.pop()
        place = next((folder / name for folder in (source.parent, *includes) if (folder / name).is_file()), None)
        if place is not None and name not in texts:
            texts[name] = place.read_text()
            names += re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', texts[name], re.MULTILINE)
    return running_parts(texts)


def compiled(
    nvcc: str, source: Path, flags: Sequence[str] = (*FLAGS, *CUBIN), includes: Sequence[Path] = ()
) -> Compiled:
    """The cubin; otherwise as kernels_of()."""
    made = program(nvcc, source, *flags, includes=includes)
    # Lost performance: C7510, C7518 (wgmma waits for registers that the compiler moved), C7508 (setmaxnreg is ignored).
    assert not re.search("warning|Potential Performance Loss", made.said), made.said
    return made


def program(nvcc: str, source: Path, *flags: str, includes: Sequence[Path] = ()) -> Compiled:
    """A program or (--shared) a library, made by nvcc with these flags. AssertionError where it fails."""
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
    """The folder of compilations kept on this machine: a file or folder each, named by digest_of() its sources."""
    folder = Path(tempfile.gettempdir()) / f"kernelderby-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def digest_of(command: Sequence[str], folders: Sequence[Path], *more: str) -> str:
    """A digest of a compiler, its flags and the tokens of all sources in the folders: comments do not count."""
    tool = Path(command[0]).stat()
    digest = hashlib.sha256(json.dumps([*command, *more, tool.st_size, tool.st_mtime_ns]).encode())
    for folder in folders:
        found = (path for path in folder.rglob("*") if path.is_file() and path.suffix in SUFFIXES)
        texts = {str(path.relative_to(folder)): path.read_text() for path in found}
        digest.update(json.dumps(running_parts(texts)).encode())
    return digest.hexdigest()[:32]
