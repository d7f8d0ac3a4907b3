"""Whether two builds of a CUDA solution are the same machine code: for changes that must not touch a kernel's time.

    python benchmarks/compare_sass.py derby_moe_sm90 HEAD~3 .

A build is a git revision (the solution's sources as they were then), "." (as they are now) or any folder of sources, as
for compare_builds.py. Each is compiled by its own main.py, and its kernels are read with cuobjdump (from the CUDA
toolkit, the PATH or Triton's package). A kernel that has another mangled name but the same instructions counts as
renamed. Of each kernel one line: `same words` (every encoding, scheduling bits included), `same but for constant bank
offsets` (parameters lie elsewhere), or how many instructions differ, the first of them, and how many multiply-adds have
all three registers in one bank (even or odd numbers), which makes them slow (docs/lab). Needs nvcc
and no GPU. Exit code 1 where a kernel differs by more than its name.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from compare_builds import build

from kernelderby.catalog import Catalog, Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.worker.build import BuildFailed, load_solution, solution_module

CHECKOUT = Path(__file__).resolve().parent.parent
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?;)\s*/\* (0x[0-9a-f]{16}) \*/")
SECOND_WORD = re.compile(r"^\s*/\* (0x[0-9a-f]{16}) \*/\s*$")
MULTIPLY_ADD = re.compile(r"\bFFMA\S* R\d+, R(\d+)\S*, R(\d+)\S*, R(\d+)")
CONSTANT = re.compile(r"(c\[0x[0-9a-f]+\])\[0x[0-9a-f]+\]")


@dataclass(frozen=True)
class Kernel:
    """Instructions as text, without their addresses, and their encodings: two words each."""

    texts: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def without_constant_offsets(self) -> tuple[str, ...]:
        return tuple(CONSTANT.sub(r"\1[]", text) for text in self.texts)

    @property
    def bank_conflicts(self) -> str:
        """How many of its float32 multiply-adds of three registers read one bank three times."""
        found = [match.groups() for match in map(MULTIPLY_ADD.search, self.texts) if match]
        return f"{sum(len({int(number) % 2 for number in each}) == 1 for each in found)} of {len(found)}"


def parse_sass(listing: str) -> dict[str, Kernel]:
    """Mangled name -> kernel, of what `cuobjdump -sass` prints."""
    kernels = {}
    for part in re.split(r"^\s*Function : ", listing, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        texts, words = [], []
        for line in lines:
            if found := INSTRUCTION.match(line):
                texts.append(found[1])
                words.append(found[2])
            elif found := SECOND_WORD.match(line):
                words.append(found[1])
        kernels[name.strip()] = Kernel(tuple(texts), tuple(words))
    return kernels


def difference(one: Kernel, other: Kernel) -> tuple[bool, str]:
    """(whether they are the same except for constant bank offsets, the line that says how they differ)."""
    if one.words == other.words:
        return True, f"same words ({len(one.texts)} instructions)"
    if one.texts == other.texts:
        return False, "same instructions, other encodings (scheduling)"
    if one.without_constant_offsets == other.without_constant_offsets:
        moved = sum(a != b for a, b in zip(one.texts, other.texts, strict=True))
        return True, f"same but for constant bank offsets ({moved} of {len(one.texts)} instructions)"
    changes = [
        change
        for change in difflib.SequenceMatcher(None, one.texts, other.texts, False).get_opcodes()
        if change[0] != "equal"
    ]
    count = sum(max(to - begin, other_to - other_begin) for _, begin, to, other_begin, other_to in changes)
    _, begin, to, other_begin, other_to = changes[0]
    return False, (
        f"{count} of {len(one.texts)} instructions differ, the first at {begin}: "
        f"{' '.join(one.texts[begin:to][:1])} | {' '.join(other.texts[other_begin:other_to][:1])}; "
        f"multiply-adds of one bank {one.bank_conflicts} | {other.bank_conflicts}"
    )


def compare(first: dict[str, Kernel], second: dict[str, Kernel]) -> list[tuple[bool, str]]:
    """A line for each kernel, as difference() gives them. Kernels are paired by name, the remaining ones by
    instructions."""
    lines = [(*difference(first[name], second[name]), name) for name in first if name in second]
    left = {name: kernel for name, kernel in second.items() if name not in first}
    for name in [name for name in first if name not in second]:
        same = next((other for other, kernel in left.items() if difference(first[name], kernel)[0]), None)
        if same is None:
            lines.append((False, "gone", name))
        else:
            lines.append((*difference(first[name], left.pop(same)), f"{name}, renamed {same}"))
    lines += [(False, "new", name) for name in left]
    return [(same, f"{name}: {text}") for same, text, name in lines]


def find_cuobjdump() -> str:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [shutil.which("cuobjdump"), *(f"{home}/bin/cuobjdump" for home in homes if home)]
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        places.append(str(Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"))
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    raise SystemExit("compare_sass: no cuobjdump on the PATH, in $CUDA_HOME/bin or in Triton's package")


def libraries(solution: Solution, folder: Path) -> list[Path]:
    """Shared libraries for sm_90a: of its main.py's CudaLibrary objects, or of its own build(folder)."""
    load_solution(Catalog.open(CHECKOUT).definition(solution.definition), solution)
    module = solution_module(solution)
    found = [value for value in vars(module).values() if type(value).__name__ == "CudaLibrary"]
    if not found and not hasattr(module, "build"):
        raise DerbyError(f"{solution.name}: its main.py has neither a CudaLibrary nor build(folder)")
    return [library.build("90a", folder) for library in found] or [Path(module.build(folder))]


def sass(solution: Solution, folder: Path) -> dict[str, Kernel]:
    """The kernels of the solution's libraries, built in the folder."""
    kernels = {}
    for library in libraries(solution, folder):
        command = [find_cuobjdump(), "-sass", library]
        kernels |= parse_sass(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if not kernels or not all(kernel.texts for kernel in kernels.values()):
        raise DerbyError(f"{solution.name}: cuobjdump shows no instructions")
    return kernels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("solution", help="name of a CUDA solution that its main.py compiles with nvcc")
    parser.add_argument("builds", nargs=2, help="git revisions, folders, or . for the working tree")
    arguments = parser.parse_args()
    try:
        solution = Catalog.open(CHECKOUT).solution(arguments.solution)
        with tempfile.TemporaryDirectory() as scratch:
            kernels = [
                sass(build(solution, name), Path(scratch, str(number))) for number, name in enumerate(arguments.builds)
            ]
    except (BuildFailed, DerbyError) as error:
        raise SystemExit(f"compare_sass: {error}") from None
    lines = compare(*kernels)
    print(*(line for _, line in lines), sep="\n")
    return 0 if all(same for same, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
