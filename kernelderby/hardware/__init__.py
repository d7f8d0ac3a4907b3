"""Peaks of GPUs, from gpus/*.toml: dense, in SI units, with source and date. An unknown GPU is None, never a guess."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kernelderby.store.fields import Capability, Count, Name, Positive, convert, read_toml

TRAFFIC_KINDS = ("read", "copy", "fill", "mixed")  # mixed: two reads, one write


class Ceilings(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured rates of one GPU of this kind, per second: bytes of the best kind of traffic, and flops by dtype. date:
    the day of the measurement. The following are empty if not measured. traffic_bytes_per_second: bytes read and
    written, by TRAFFIC_KINDS. empty_kernel_us: the time of a nearly empty kernel, "eager" (launched by the host) and
    "graph" (replayed)."""

    memory_bytes_per_second: Positive
    flops_per_second: dict[Name, Positive]
    source: Name
    date: Name
    traffic_bytes_per_second: dict[Name, Positive] = {}
    empty_kernel_us: dict[Name, Positive] = {}

    def __post_init__(self) -> None:
        for name, known in (("traffic_bytes_per_second", TRAFFIC_KINDS), ("empty_kernel_us", ("eager", "graph"))):
            if unknown := set(getattr(self, name)) - set(known):
                raise ValueError(f"{name}: {min(unknown)}: none of {', '.join(known)}; mend it")


class Gpu(Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU. names: its names in the driver and in torch. flops_per_second: dense, by flashinfer-bench's dtype names.
    Values without a source are absent; l2_bytes and compute_capability are then None. date: the month in which the
    figures were taken from the source."""

    id: str
    names: tuple[Name, ...]
    compute_capability: Capability | None
    memory_bytes_per_second: Positive
    flops_per_second: dict[Name, Positive]
    l2_bytes: Count | None
    source: Name
    date: Name
    measured: Ceilings | None = None

    def at_ceilings(self) -> Gpu | None:
        """The same GPU with the measured ceilings as peaks. A dtype that was not measured keeps the vendor's peak. None
        without any measurement."""
        if self.measured is None:
            return None
        return replace(
            self,
            memory_bytes_per_second=self.measured.memory_bytes_per_second,
            flops_per_second={**self.flops_per_second, **self.measured.flops_per_second},
        )


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU that has a file, by id (the file's name)."""
    return {path.stem: read_gpu(path) for path in sorted((Path(__file__).parent / "gpus").glob("*.toml"))}


def read_gpu(path: Path) -> Gpu:
    """The GPU of one file. DerbyError for a field that is missing, misspelt or invalid."""
    unknown = {"compute_capability": None, "l2_bytes": None}
    return convert(path, {**unknown, **read_toml(path), "id": path.stem}, Gpu)


@lru_cache(1024)
def find_gpu(name: str) -> Gpu | None:
    """The GPU of an id ("h200") or of the driver's whole name ("NVIDIA H200"), any case. Other variants of a model
    (PCIe, NVL, MIG slices) have other peaks and other names, so a name that only looks alike is None."""
    wanted = name.strip().casefold()
    for gpu in gpus().values():
        if wanted == gpu.id or wanted in (known.casefold() for known in gpu.names):
            return gpu
    return None


def gpu_id(name: str) -> str:
    """The name of the folder of a GPU: its id if known, otherwise the driver's name in lower case with dashes."""
    gpu = find_gpu(name)
    if gpu:
        return gpu.id
    return re.sub(r"[^a-z0-9]+", "-", name.casefold().removeprefix("nvidia ")).strip("-") or "unknown"
