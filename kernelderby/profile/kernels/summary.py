"""The kernel summary of a profile: every kernel with the facts from its name, and totals by library, role,
architecture."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kernelderby.hardware.families import compute_capability_of
from kernelderby.profile.kernels.attribution import UNKNOWN, Attribution, Role, attribute
from kernelderby.profile.names import short_name
from kernelderby.profile.spans import KernelSum, Profile, Span, SpanKind, sum_spans
from kernelderby.store.counts import counted

NOT_TOLD = "not told"  # the total of kernels whose name shows no architecture or element type
# In our own recordings (docs/collecting.md) ranges tell the harness's work from the solution's kernels.
_HARNESS = "harness"
_RANGES = re.compile(r"^harness: ")
_SOLUTION = re.compile(r"^solution:(?P<name>\S+)")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one name. share: of the time of all kernels; for a copy or memset, of all copies and memsets.

    short_name is unique in its table. Statistics that the profile lacks are None. Only copies have bytes.
    """

    name: str
    short_name: str
    kind: SpanKind
    share: float
    total_ns: float
    instances: int
    average_ns: float
    median_ns: float | None
    min_ns: float | None
    max_ns: float | None
    stddev_ns: float | None
    bytes: float | None
    attribution: Attribution

    @property
    def library(self) -> str:
        return self.attribution.library

    @property
    def role(self) -> Role:
        return self.attribution.role


@dataclass(frozen=True, slots=True)
class Total:
    """The time of several kernels together. names: number of different kernels."""

    key: str
    share: float
    total_ns: float
    instances: int
    names: int


@dataclass(frozen=True, slots=True)
class KernelTable:
    """rows: kernels, largest first; memory: copies and memsets, largest first. Totals cover the kernels; by_library,
    by_role, by_dtype and by_architecture each add up to total_ns."""

    path: Path
    form: str
    gpu: str | None
    compute_capability: str | None
    rows: tuple[KernelRow, ...]
    memory: tuple[KernelRow, ...]
    total_ns: float
    memory_ns: float
    by_library: tuple[Total, ...]
    by_role: tuple[Total, ...]
    by_dtype: tuple[Total, ...]
    by_architecture: tuple[Total, ...]
    warnings: tuple[str, ...]

    @property
    def unknown(self) -> Total:
        """The kernels that no rule knows."""
        return self.total_of(UNKNOWN, lambda row: row.library == UNKNOWN)

    @property
    def unknown_role(self) -> Total:
        """The kernels whose role is unknown."""
        return self.total_of("role unknown", lambda row: row.role is Role.UNKNOWN)

    @property
    def guessed(self) -> Total:
        """The kernels whose library is a guess: other libraries have kernels of that name, or its shape decided."""
        return self.total_of("guessed", lambda row: row.attribution.is_guess)

    def total_of(self, key: str, belongs: Callable[[KernelRow], bool]) -> Total:
        return _total(key, [row for row in self.rows if belongs(row)])

    def top(self, count: int | None) -> tuple[tuple[KernelRow, ...], Total | None]:
        """The largest `count` kernels and the sum of the rest, None when nothing is left (count None: all)."""
        first = self.rows if count is None else self.rows[:count]
        rest = self.rows[len(first) :]
        return first, _total(counted(len(rest), "more kernel"), rest) if rest else None


def summarise(profile: Profile, gpu: str | None = None) -> KernelTable:
    """The summary of a profile. gpu: the GPU's name, if the profile has none or a wrong one."""
    sums = _owned_sums(profile) or [("", each) for each in profile.sums()]
    rows = _rows((owner, each) for owner, each in sums if each.kind is SpanKind.KERNEL)
    memory = _rows((owner, each) for owner, each in sums if each.kind is not SpanKind.KERNEL)
    if _is_amd(gpu or profile.gpu, rows):
        rows, memory = _on_amd(rows), _on_amd(memory)
    return KernelTable(
        path=profile.path,
        form=profile.form,
        gpu=gpu or profile.gpu,
        compute_capability=_capability(gpu, profile),
        rows=rows,
        memory=memory,
        total_ns=sum(row.total_ns for row in rows),
        memory_ns=sum(row.total_ns for row in memory),
        by_library=_totals(rows, lambda row: row.library),
        by_role=_totals(rows, lambda row: row.role.value),
        by_dtype=_totals(rows, lambda row: row.attribution.dtype or NOT_TOLD),
        by_architecture=_totals(rows, lambda row: row.attribution.architecture or NOT_TOLD),
        warnings=tuple(profile.warnings),
    )


def _capability(gpu: str | None, profile: Profile) -> str | None:
    """The compute capability of the named GPU; otherwise the profile's, from its field or from its GPU's name."""
    if gpu:
        return compute_capability_of(gpu)
    return profile.compute_capability or (compute_capability_of(profile.gpu) if profile.gpu else None)


_AMD_GPU = re.compile(r"\bAMD\b|\bMI\d{2,3}|Radeon|gfx9")
_AMD_LIBRARIES = {
    *("rocBLAS/Tensile", "hipBLASLt", "FlyDSL", "Composable Kernel", "MIOpen"),
    *("AITER", "HIP runtime", "rocPRIM", "RCCL", "AOTriton"),
}
_SAME_NAMES = {"NCCL": "RCCL", "CUDA": "HIP runtime", "CUB": "hipCUB"}


def _is_amd(gpu: str | None, rows: Iterable[KernelRow]) -> bool:
    return bool(gpu and _AMD_GPU.search(gpu)) or any(row.library in _AMD_LIBRARIES for row in rows)


def _on_amd(rows: Iterable[KernelRow]) -> tuple[KernelRow, ...]:
    """ROCm's ports keep the names of the original kernels, so the GPU decides."""
    return tuple(
        replace(row, attribution=replace(row.attribution, library=_SAME_NAMES.get(row.library, row.library)))
        for row in rows
    )


def _rows(sums: Iterable[tuple[str, KernelSum]]) -> tuple[KernelRow, ...]:
    """One row per sum with its owner, largest first; equal totals by name, so that the source's order does not
    matter."""
    ordered = sorted(sums, key=lambda each: (-each[1].total_ns, each[1].name, each[0]))
    whole = sum(each.total_ns for _, each in ordered)
    return _told_apart([_row(each, each.total_ns / whole if whole else 0.0, owner) for owner, each in ordered])


def _row(each: KernelSum, share: float, owner: str) -> KernelRow:
    return KernelRow(
        name=each.name,
        short_name=short_name(each.name) if each.kind is SpanKind.KERNEL else each.name,
        kind=each.kind,
        share=share,
        total_ns=each.total_ns,
        instances=each.instances,
        average_ns=each.average_ns,
        median_ns=each.median_ns,
        min_ns=each.min_ns,
        max_ns=each.max_ns,
        stddev_ns=each.stddev_ns,
        bytes=each.bytes,
        attribution=_with_owner(attribute(each.name, each.kind), owner),
    )


def _told_apart(rows: list[KernelRow]) -> tuple[KernelRow, ...]:
    """Numbers short names that several kernels share: gemvx::kernel<...> #1, #2, largest first."""
    counts = Counter(row.short_name for row in rows)
    seen: Counter[str] = Counter()
    out = []
    for row in rows:
        if counts[row.short_name] > 1:
            seen[row.short_name] += 1
            row = replace(row, short_name=f"{row.short_name} #{seen[row.short_name]}")
        out.append(row)
    return tuple(out)


def _totals(rows: tuple[KernelRow, ...], key: Callable[[KernelRow], str]) -> tuple[Total, ...]:
    groups: dict[str, list[KernelRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    totals = [_total(name, members) for name, members in groups.items()]
    return tuple(sorted(totals, key=lambda total: (-total.total_ns, total.key)))


def _total(key: str, rows: Iterable[KernelRow]) -> Total:
    rows = list(rows)
    return Total(
        key,
        sum(row.share for row in rows),
        sum(row.total_ns for row in rows),
        sum(row.instances for row in rows),
        len(rows),
    )


def _owned_sums(profile: Profile) -> list[tuple[str, KernelSum]] | None:
    """Each sum with its owner: "harness", "solution NAME", or "" outside both. None for any other profile. One kernel
    name may have several owners, such as a fill that flushes L2 and a fill in a solution."""
    if not profile.has_events or not profile.range_instances(_RANGES):
        return None
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in profile.spans():
        spans[_owner(span)].append(span)
    found = [(owner, each) for owner, own in spans.items() for each in sum_spans(own)]
    return sorted(found, key=lambda each: (-each[1].total_ns, each[1].name))


def _with_owner(attribution: Attribution, owner: str) -> Attribution:
    """Sets the library by the owner: the harness's kernels get "harness"; a solution's kernel with an unknown or
    guessed library gets the solution."""
    if owner == _HARNESS:
        return replace(attribution, library=_HARNESS, is_guess=False)
    if owner and (attribution.library == UNKNOWN or attribution.is_guess):
        return replace(attribution, library=owner, is_guess=False)
    return attribution


def _owner(span: Span) -> str:
    for name in reversed(span.ranges):
        if _RANGES.match(name):
            return _HARNESS
        if match := _SOLUTION.match(name):
            return f"solution {match['name']}"
    return ""
