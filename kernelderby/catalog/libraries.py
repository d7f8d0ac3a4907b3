"""The libraries whose kernels solutions call: the library of each solution, and the versions installed here."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import struct
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from kernelderby.catalog.model import Solution
from kernelderby.errors import DerbyError
from kernelderby.store.fields import read_text, read_toml

UNKNOWN = "unknown"  # a version: the installed package has none

# Import name -> the distributions that may carry it.
LIBRARIES = {
    "inductor": ("torch",),  # torch.compile, which has no module of its own and does not count as torch's kernels
    "torch": ("torch",),
    "triton": ("triton",),
    "numpy": ("numpy",),
    "safetensors": ("safetensors",),
    "flashinfer_bench": ("flashinfer-bench",),
    "flashinfer": ("flashinfer-python",),
    "flashinfer_jit_cache": ("flashinfer-jit-cache",),
    "sgl_kernel": ("sglang-kernel", "sgl-kernel"),
    "sglang": ("sglang",),
    "vllm": ("vllm",),
    "fla": ("fla-core", "flash-linear-attention"),
    "hpc": ("hpc-ops",),
    "deep_gemm": ("sgl-deep-gemm", "deep-gemm"),
    "quack": ("quack-kernels",),
    "liger_kernel": ("liger-kernel",),
    "cutlass": ("nvidia-cutlass-dsl",),
    "cudnn": ("nvidia-cudnn-frontend",),
    "tilelang": ("tilelang",),
    "helion": ("helion",),
    "tvm_ffi": ("apache-tvm-ffi",),
    "cupti": ("cupti-python",),
    "pynvml": ("nvidia-ml-py",),
}
_INDUCTOR = "torch._inductor"
_BUILT = ("hpc", "deep_gemm", "flashinfer_jit_cache")  # docs/rivals.md: no package index has the real ones
_BY_DISTRIBUTION = {each: name for name, distributions in LIBRARIES.items() for each in distributions}
_VERSION_FILES = ("version.py", "_version.py", "__init__.py")
# Of ELF64: where and how many, type place size, lengths.
_HEADER, _PROGRAM, _NOTE = "<32xQ14x2H", "<I4xQ16xQ16x", "<3I"
_IS_NOTE, _IS_BUILD_ID = 4, 3
_KNOWN_BUILDS = Path(__file__).with_name("builds.toml")
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*==\s*([^\s;#\\]+)")


def library_of(solution: Solution) -> str | None:
    """The import name of the library that the solution calls: the first dependency that is a library, `inductor` if
    torch compiles its kernels, `torch` if its author is torch or it is Python without kernels and dependencies. None if
    all kernels are its own."""
    if _INDUCTOR in solution.requires.modules:
        return "inductor"
    for dependency in solution.dependencies:
        if name := _BY_DISTRIBUTION.get(_normal(re.split(r"[\s\[<>=!~;]", dependency)[0])):
            return name
    brings_kernels = solution.language != "python" or any(not name.endswith(".py") for name in solution.sources)
    is_plain = not brings_kernels and not solution.dependencies
    return "torch" if is_plain or solution.author == "torch" else None


def how_to_install(module: str) -> str:
    """The text after "is not installed": the install command if a package index has the module."""
    known = module in LIBRARIES and module not in _BUILT
    return f"; pip install {LIBRARIES[module][0]}" if known else "; docs/rivals.md" if module in _BUILT else ""


def library_versions() -> dict[str, str]:
    """Import name -> version of the package that an import finds, from its metadata, its version file, or its
    libraries' build ids; otherwise "unknown". Imports nothing. If a package lies in several places (libraries unpacked
    beside an older install), the first one counts."""
    found = {}
    for module, distributions in LIBRARIES.items():
        text = _version_of_package(module, distributions) or _distribution_version(distributions)
        if text:
            found[module] = text
    return found


def pinned_versions(path: Path) -> dict[str, str]:
    """Import name -> version of a library, from a constraints file (lines `name==version`, as for pip). DerbyError if
    the file names no library."""
    found = {}
    for line in read_text(path).splitlines():
        match = _PINNED.match(line.strip())
        if match and (name := _BY_DISTRIBUTION.get(_normal(match[1]))):
            found[name] = match[2]
    if not found:
        raise DerbyError(f"{path}: no line is <library>==<version>, such as vllm==0.25.1; write one for each library")
    return found


def oldest(versions: Iterable[str]) -> str:
    """The lowest of these versions; numbers are compared as numbers. "unknown" if one of them is unknown."""
    several = set(versions)
    if not several or UNKNOWN in several:
        return UNKNOWN
    return min(several, key=lambda text: [(int(part), "") if part.isdigit() else (-1, part) for part in _parts(text)])


def _parts(text: str) -> list[str]:
    return re.findall(r"\d{1,18}|[A-Za-z]+", text.partition("+")[0])  # Python reads no number of thousands of digits


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _distribution_version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _version_of_package(module: str, distributions: tuple[str, ...]) -> str | None:
    """The version in the first place that holds the package: from the metadata there, otherwise from its version file.
    None if there is no package."""
    spec = importlib.util.find_spec(module)
    for folder in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
        for name in distributions:
            for found in metadata.distributions(name=name, path=[str(folder.parent)]):
                return found.version
        for name in _VERSION_FILES:
            path = folder / name
            text = path.read_text(errors="replace") if path.is_file() else ""
            if match := re.search(r"^(?:__version__|version)\b[^\n\"']*=\s*[\"']([^\"']+)", text, re.MULTILINE):
                return match.group(1)
        is_whole = (folder / "__init__.py").is_file()  # otherwise somebody unpacked a part of it here
        return (_distribution_version(distributions) if is_whole else None) or version_of_builds(folder) or UNKNOWN
    return None


def version_of_builds(folder: Path) -> str | None:
    """The version of the libraries (*.so) under the folder. Several versions give "0.25.1/0.33.0". An unknown library
    gives "build-" and eight digits that identify these files. None if no file has a build id."""
    found = [build for path in sorted(folder.rglob("*.so")) if (build := build_id(path))]
    if not found:
        return None
    versions = {_versions().get(build) for build in found}
    if None in versions:
        return f"build-{hashlib.sha256(' '.join(found).encode()).hexdigest()[:8]}"
    return "/".join(sorted(filter(None, versions)))


def build_id(path: Path) -> str | None:
    """The GNU build id of an ELF file in hexadecimal. None without one, and for a file that is not a 64-bit
    little-endian ELF."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return None
        place, entry, count = struct.unpack_from(_HEADER, header)
        file.seek(place)
        table = file.read(entry * count)
        for at in range(0, len(table) - struct.calcsize(_PROGRAM) + 1, entry or 1):
            kind, start, size = struct.unpack_from(_PROGRAM, table, at)
            if kind == _IS_NOTE:
                file.seek(start)
                if found := _build_id_of(file.read(size)):
                    return found
    return None


def _build_id_of(notes: bytes) -> str | None:
    at = 0
    while at + struct.calcsize(_NOTE) <= len(notes):
        name_size, size, kind = struct.unpack_from(_NOTE, notes, at)
        name = at + struct.calcsize(_NOTE)
        value = name + _padded(name_size)
        if kind == _IS_BUILD_ID and notes[name : name + name_size] == b"GNU\0":
            return notes[value : value + size].hex()
        at = value + _padded(size)
    return None


def _padded(size: int) -> int:
    return -(-size // 4) * 4


@cache
def _versions() -> dict[str, str]:
    known = read_toml(_KNOWN_BUILDS, dict[str, dict[str, str]])
    return {build: library.split()[1] for library, files in known.items() for build in files.values()}
