"""The packages that `derby export` writes.

A wheel with CUDA libraries, built here for one architecture by the solutions' own loader. Their C functions are called
through ctypes, so they do not depend on torch's version. And a repository that Hugging Face's `kernels` loads:

    <folder>/build/torch-cuda/{metadata.json, __init__.py, ...}    and torch-cpu, where plain torch runs

CUDA solutions are left out of the repository, since libraries of one architecture need kernel-builder.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelderby import __version__
from kernelderby.catalog import Solution
from kernelderby.deploy.contents import NAME, contents
from kernelderby.deploy.winners import AllWinners, without_solutions
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu
from kernelderby.store.counts import counted
from kernelderby.store.files import write_whole

ARCHITECTURES = {"h100": "90a", "h200": "90a"}  # GPU id -> nvcc's architecture
MACHINES = {62: "x86_64", 183: "aarch64"}  # ELF's numbers
MINIMUM_GLIBC = 17  # 2.17: manylinux has no older version
ENTRY_POINTS = (
    f"[sglang.srt.plugins]\n{NAME} = {NAME}.sglang_plugin:register\n\n"
    f"[vllm.general_plugins]\n{NAME} = {NAME}.vllm_plugin:register\n"
)


BACKENDS = ("cuda", "cpu")
_MOMENT = (2026, 1, 1, 0, 0, 0)  # of the files in a wheel
# Solutions, an architecture ("90a"), told -> solution -> its libraries' files by name, or why there are none.
Build = Callable[[Sequence[Solution], str, Callable[[str], None]], Mapping[str, dict[str, bytes] | str]]


@dataclass(frozen=True, slots=True)
class Exported:
    """path: the wheel, or the folder. libraries: number of CUDA libraries in it. not_built: solution -> why it is
    missing. beside: wheels of earlier exports in the same folder."""

    path: Path
    bytes: int
    found: AllWinners
    libraries: int
    not_built: dict[str, str]
    beside: tuple[Path, ...] = ()


def export_wheel(
    found: AllWinners, folder: Path, build: Build, told: Callable[[str], None], texts: Mapping[str, bytes]
) -> Exported:
    """Writes DIR/kernelderby_winners-<version>+<gpu>.<last day of the rows>.<digest>-py3-none-<platform>.whl, so that a
    package of other rows or kernels has another version, and pip replaces the former one. build: builds the libraries
    of solutions. told: called for each solution that nvcc builds. texts: licences. DerbyError if no solution is left
    for the package."""
    gpu = find_gpu(found.gpus[0])
    architecture = ARCHITECTURES.get(gpu.id) if gpu else None
    solutions = [each for operator in found.operators for each in operator.solutions]
    if architecture is None:
        raise DerbyError(f"--gpu: {found.gpus[0]} has no nvcc architecture here; there are {', '.join(ARCHITECTURES)}")
    libraries, not_built = build_libraries(solutions, architecture, build, told)
    kept = without_solutions(found, not_built)
    files = {f"{NAME}/{path}": data for path, data in {**contents(kept), **libraries}.items()}
    version = f"{__version__}+{gpu.id if gpu else ''}.{kept.measured[1].replace('-', '')}.{_digest(files)}"
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(version, kept, sorted(texts)).encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    files |= {f"{info}/licenses/{name}": text for name, text in texts.items()}
    tag = f"py3-none-{platform_of(libraries.values())}"
    data = wheel_bytes(files, info, tag)
    path = folder / f"{NAME}-{version}-{tag}.whl"
    write_whole(path, data)
    beside = tuple(each for each in sorted(folder.glob(f"{NAME}-*.whl")) if each != path)
    return Exported(path, len(data), kept, len(libraries), not_built, beside)


def platform_of(libraries: Iterable[bytes]) -> str:
    """The platform tag of a wheel with these ELF libraries: their machine, and the newest glibc that one of them
    needs."""
    machines, minors = set(), [MINIMUM_GLIBC]
    for data in libraries:
        machine = MACHINES.get(int.from_bytes(data[18:20], "little")) if data.startswith(b"\x7fELF") else None
        if machine is None:
            raise DerbyError(f"a built library is no ELF file of {' or '.join(MACHINES.values())}")
        machines.add(machine)
        minors += [int(minor) for minor in re.findall(rb"\bGLIBC_2\.(\d{1,3})\b", data)]
    return f"manylinux_2_{max(minors)}_{machines.pop()}" if machines else "any"


def _digest(files: Mapping[str, bytes]) -> str:
    seen = hashlib.sha256()
    for path, data in sorted(files.items()):
        seen.update(f"{path}\0{len(data)}\0".encode() + data)
    return seen.hexdigest()[:8]


def _metadata(version: str, found: AllWinners, texts: Sequence[str]) -> str:
    return (
        f"Metadata-Version: 2.4\nName: {NAME.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: Fastest measured kernels of {counted(len(found.operators), 'operator')} of LLM serving on "
        f"{found.gpus[0]}.\n"
        "License-Expression: Apache-2.0\n"
        + "".join(f"License-File: {name}\n" for name in texts)
        + "Requires-Python: >=3.10\nRequires-Dist: torch>=2.6\n"
    )


def build_libraries(
    solutions: Sequence[Solution], architecture: str, build: Build, told: Callable[[str], None]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Path inside the package -> bytes; and solution -> the reason, in one line, if it could not be built."""
    files: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    for solution, found in build([each for each in solutions if each.has_cuda], architecture, told).items():
        if isinstance(found, str):
            failed[solution] = found
        else:
            files |= {f"solutions/{solution}/{name}_sm{architecture}.so": data for name, data in found.items()}
    return dict(sorted(files.items())), failed


def wheel_bytes(files: Mapping[str, bytes], folder: str, tag: str) -> bytes:
    """files: path in the wheel -> bytes. folder: the .dist-info one. tag: such as py3-none-any."""
    about = f"Wheel-Version: 1.0\nGenerator: kernelderby\nRoot-Is-Purelib: false\nTag: {tag}\n"
    every = {**files, f"{folder}/WHEEL": about.encode()}
    lines = [f"{path},sha256={_base64_digest(data)},{len(data)}" for path, data in sorted(every.items())]
    every[f"{folder}/RECORD"] = "\n".join([*lines, f"{folder}/RECORD,,", ""]).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, data in every.items():
            entry = zipfile.ZipInfo(path, _MOMENT)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return stream.getvalue()


def _base64_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def refused(solution: Solution) -> str | None:
    """Why the solution cannot be in such a repository; None if it can."""
    return "it is CUDA C++" if solution.has_cuda else None


def export_hub(found: AllWinners, folder: Path, texts: Mapping[str, bytes]) -> Exported:
    """Writes the folder. Files of an earlier export are replaced, others stay. texts: licences."""
    solutions = [each for operator in found.operators for each in operator.solutions]
    kept = without_solutions(found, {each.name: reason for each in solutions if (reason := refused(each))})
    files = contents(kept)
    digest = hashlib.sha256(b"\0".join(files[path] for path in sorted(files))).hexdigest()[:8]
    for backend in BACKENDS:
        metadata = {
            "name": NAME.replace("_", "-"),
            "id": f"_{NAME}_{backend}_{digest}",  # the name of the module, which is also the operators' namespace
            "version": int(__version__.partition(".")[0]),
            "license": "apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        every = {**files, "metadata.json": (json.dumps(metadata, indent=2) + "\n").encode()}
        for path, data in every.items():
            write_whole(folder / "build" / f"torch-{backend}" / path, data)
    for name, text in texts.items():
        write_whole(folder / name, text)
    return Exported(folder, sum(map(len, files.values())), kept, 0, {})
