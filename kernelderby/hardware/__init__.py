"""Peaks of GPUs, from gpus/*.toml: dense, in SI units, with source and date. An unknown GPU is None, never a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from msgspec import Struct

from kernelderby.fields import Capability, Count, Name, Positive, read_toml


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What plain library calls reached on one GPU of the kind: a copy's bytes, large square GEMMs' flops, per second.
    date: the day of the measurement."""

    memory_bytes_per_second: float
    flops_per_second: dict[str, float]
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. names: what the driver and torch call it. flops_per_second: by flashinfer-bench's dtype names, dense;
    what no source gives is absent, l2_bytes and compute_capability None. date: the month in which the figures were
    taken from the source."""

    id: str
    names: tuple[str, ...]
    compute_capability: str | None
    memory_bytes_per_second: float
    flops_per_second: dict[str, float]
    l2_bytes: int | None
    source: str
    date: str
    measured: Ceilings | None = None

    def at_ceilings(self) -> Gpu | None:
        """The same GPU with the measured ceilings for peaks; the vendor's peak stays for a dtype that was not measured.
        None where nothing was measured."""
        if self.measured is None:
            return None
        return replace(self, memory_bytes_per_second=self.measured.memory_bytes_per_second,
                       flops_per_second={**self.flops_per_second, **self.measured.flops_per_second})


class _Rates(Struct, kw_only=True):
    memory_bytes_per_second: Positive
    flops_per_second: dict[Name, Positive]
    source: Name
    date: Name


class _File(_Rates, forbid_unknown_fields=True):
    """gpus/<id>.toml."""

    names: tuple[Name, ...]
    compute_capability: Capability | None = None
    l2_bytes: Count | None = None
    measured: _Rates | None = None


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU that has a file, by id (the file's name)."""
    found = {}
    for path in sorted((Path(__file__).parent / "gpus").glob("*.toml")):
        read = read_toml(path, _File)
        measured = read.measured and Ceilings(read.measured.memory_bytes_per_second, read.measured.flops_per_second,
                                              read.measured.source, read.measured.date)
        found[path.stem] = Gpu(path.stem, read.names, read.compute_capability, read.memory_bytes_per_second,
                               read.flops_per_second, read.l2_bytes, read.source, read.date, measured)
    return found


def find_gpu(name: str) -> Gpu | None:
    """The GPU of an id ("h200") or of the driver's whole name ("NVIDIA H200"), any case. Other variants of a model
    (PCIe, NVL, MIG slices) have other peaks and other names, so a name that only looks alike is None."""
    wanted = name.strip().casefold()
    for gpu in gpus().values():
        if wanted == gpu.id or wanted in (known.casefold() for known in gpu.names):
            return gpu
    return None


def gpu_id(name: str) -> str:
    """A folder's name for any GPU: the id where it is known, otherwise the driver's name in lower case and dashes."""
    gpu = find_gpu(name)
    if gpu:
        return gpu.id
    return re.sub(r"[^a-z0-9]+", "-", name.casefold().removeprefix("nvidia ")).strip("-") or "unknown"
