"""The packages that `derby export` writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelderby import __version__
from kernelderby.deploy.contents import NAME, contents
from kernelderby.deploy.libraries import Build, build_libraries
from kernelderby.deploy.wheel import wheel_bytes
from kernelderby.deploy.winners import AllWinners, without
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu
from kernelderby.store.counts import counted
from kernelderby.store.files import write_whole

ARCHITECTURES = {"h100": "90a", "h200": "90a"}  # GPU id -> what nvcc builds for
ENTRY_POINTS = (
    f"[sglang.srt.plugins]\n{NAME} = {NAME}.sglang_plugin:register\n\n"
    f"[vllm.general_plugins]\n{NAME} = {NAME}.vllm_plugin:register\n"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """path: of the wheel, or of the folder. libraries: CUDA libraries in it. not_built: solution -> why it is not in
    it."""

    path: Path
    bytes: int
    found: AllWinners
    libraries: int
    not_built: dict[str, str]


def export_wheel(found: AllWinners, folder: Path, build: Build, told: Callable[[str], None]) -> Exported:
    """Writes DIR/kernelderby_winners-<version>+<gpu>-py3-none-<platform>.whl. build: libraries of solutions.
    told: of each solution that nvcc builds. DerbyError where nothing is left to bring."""
    gpu = find_gpu(found.gpus[0])
    architecture = ARCHITECTURES.get(gpu.id) if gpu else None
    solutions = [each for operator in found.operators for each in operator.solutions]
    if architecture is None:
        raise DerbyError(f"--gpu: {found.gpus[0]} has no nvcc architecture here; there are {', '.join(ARCHITECTURES)}")
    libraries, not_built = build_libraries(solutions, architecture, build, told)
    kept = without(found, not_built)
    files = {f"{NAME}/{path}": data for path, data in {**contents(kept), **libraries}.items()}
    version = f"{__version__}+{gpu.id if gpu else ''}"
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(version, kept).encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    tag = "py3-none-manylinux_2_28_x86_64" if libraries else "py3-none-any"
    data = wheel_bytes(files, info, tag)
    path = folder / f"{NAME}-{version}-{tag}.whl"
    write_whole(path, data)
    return Exported(path, len(data), kept, len(libraries), not_built)


def _metadata(version: str, found: AllWinners) -> str:
    return (
        f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: Fastest measured kernels of {counted(len(found.operators), 'operator')} of LLM serving on "
        f"{found.gpus[0]}.\n"
        "License: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch>=2.6\n"
    )
