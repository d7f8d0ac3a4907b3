"""The libraries whose kernels solutions call: which one a solution calls, and which version is installed here."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from kernelderby.catalog.builds import version_of_builds
from kernelderby.catalog.model import Solution
from kernelderby.errors import DerbyError
from kernelderby.store.fields import read_text

UNKNOWN = "unknown"  # a version: what is installed carries none

# Import name -> the distributions that may carry it.
LIBRARIES = {
    "inductor": ("torch",),  # no module of its own: torch.compile, which is none of torch's kernels
    "torch": ("torch",),
    "triton": ("triton",),
    "numpy": ("numpy",),
    "safetensors": ("safetensors",),
    "flashinfer_bench": ("flashinfer-bench",),
    "flashinfer": ("flashinfer-python",),
    "flashinfer_jit_cache": ("flashinfer-jit-cache",),
    "sgl_kernel": ("sglang-kernel", "sgl-kernel"),
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
_BUILT = ("hpc", "deep_gemm", "flashinfer_jit_cache")  # docs/rivals.md: an index has none, or a placeholder
_BY_DISTRIBUTION = {each: name for name, distributions in LIBRARIES.items() for each in distributions}
_VERSION_FILES = ("version.py", "_version.py", "__init__.py")
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*==\s*([^\s;#\\]+)")


def library_of(solution: Solution) -> str | None:
    """The import name of the library that it calls. torch, where it is Python without a kernel and a dependency of its
    own, inductor where it has torch write one; None where it brings its kernels itself."""
    if _INDUCTOR in solution.requires.modules:
        return "inductor"
    for dependency in solution.dependencies:
        if name := _BY_DISTRIBUTION.get(_normal(re.split(r"[\s\[<>=!~;]", dependency)[0])):
            return name
    brings_kernels = solution.language != "python" or any(not name.endswith(".py") for name in solution.sources)
    return "torch" if not brings_kernels and not solution.dependencies else None


def how_to_install(module: str) -> str:
    """What follows "is not installed": the command, where an index has it."""
    known = module in LIBRARIES and module not in _BUILT
    return f"; pip install {LIBRARIES[module][0]}" if known else "; docs/rivals.md" if module in _BUILT else ""


def library_versions() -> dict[str, str]:
    """Import name -> version of what an import finds: by its metadata, a file of its own, or its libraries' build ids;
    else "unknown". Imports nothing. Of a package that lies in several places (libraries that were unpacked beside an
    older install) the first one counts."""
    found = {}
    for module, distributions in LIBRARIES.items():
        text = _version_of_package(module, distributions) or _distribution_version(distributions)
        if text:
            found[module] = text
    return found


def pinned_versions(path: Path) -> dict[str, str]:
    """Import name -> the version that a constraints file (lines `name==version`, as of pip) gives one of the libraries.
    DerbyError where it gives none."""
    found = {}
    for line in read_text(path).splitlines():
        match = _PINNED.match(line.strip())
        if match and (name := _BY_DISTRIBUTION.get(_normal(match[1]))):
            found[name] = match[2]
    if not found:
        raise DerbyError(f"{path}: no line is <library>==<version>, such as vllm==0.25.1; write one for each library")
    return found


def oldest(versions: Iterable[str]) -> str:
    """The least of these versions: numbers count as numbers. "unknown" where any is."""
    several = set(versions)
    if not several or UNKNOWN in several:
        return UNKNOWN
    return min(several, key=lambda text: [(int(part), "") if part.isdigit() else (-1, part) for part in _parts(text)])


def _parts(text: str) -> list[str]:
    return re.findall(r"\d+|[A-Za-z]+", text.partition("+")[0])


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
    """Of the first place that holds it: its metadata there, else a file of its own; None for what is no package."""
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
        is_whole = (folder / "__init__.py").is_file()  # else somebody unpacked a part of it here
        return (_distribution_version(distributions) if is_whole else None) or version_of_builds(folder) or UNKNOWN
    return None
