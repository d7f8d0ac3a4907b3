"""The kernels of a profile: the library of each, and the share of unknown ones."""

from __future__ import annotations

from collections.abc import Sequence

from kernelderby.page.model.recordings import ShownKernel, ShownKernels
from kernelderby.page.text import rounded, words
from kernelderby.profile.kernels.summary import KernelRow, Total
from kernelderby.report.profile.findings import told_finding
from kernelderby.report.profile.kernels import KernelsOf

LISTED = 200  # kernels of one profile; a serving trace has thousands that take hardly any time


def shown_kernels(found: KernelsOf, title: str) -> ShownKernels:
    table, findings = found.table, map(told_finding, found.findings)
    first, rest = table.top(LISTED)
    return ShownKernels(
        words(title),
        words(table.gpu or "GPU not named"),
        words(table.form),
        rounded(table.total_ns / 1e3),
        rounded(table.unknown.share),
        rounded(table.guessed.share),
        tuple(_kernel(row) for row in first),
        (rest.names, rounded(rest.share)) if rest else (0, 0.0),
        {
            "library": _totals(table.by_library),
            "role": _totals(table.by_role),
            "architecture": _totals(table.by_architecture),
            "dtype": _totals(table.by_dtype),
        },
        tuple((each.severity.value, words(f"{each.what}: {each.advice}")) for each in findings),
        tuple(map(words, (*table.warnings, *found.notes))),
    )


def _kernel(row: KernelRow) -> ShownKernel:
    told = row.attribution
    return ShownKernel(
        words(row.name),
        words(row.short_name),
        words(told.library),
        told.is_guess,
        words(told.source_file or ""),
        told.role.value,
        words(told.dtype or ""),
        words(told.architecture or ""),
        rounded(row.share),
        rounded(row.total_ns / 1e3),
        row.instances,
        rounded(row.average_ns / 1e3),
        rounded(row.median_ns / 1e3) if row.median_ns is not None else None,
    )


def _totals(totals: Sequence[Total]) -> tuple[tuple[str, float, float, int], ...]:
    return tuple(
        (words(each.key), rounded(each.share), rounded(each.total_ns / 1e3), each.instances) for each in totals
    )
