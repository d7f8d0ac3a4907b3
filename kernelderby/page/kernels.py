"""The kernels of a profile: the library of each, and the share of unknown ones."""

from __future__ import annotations

from collections.abc import Sequence

from kernelderby.page.model.recordings import ShownKernel, ShownKernels
from kernelderby.page.text import six, words
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
        six(table.total_ns / 1e3),
        six(table.unknown.share),
        six(table.guessed.share),
        tuple(_kernel(row) for row in first),
        (rest.names, six(rest.share)) if rest else (0, 0.0),
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
        six(row.share),
        six(row.total_ns / 1e3),
        row.instances,
        six(row.average_ns / 1e3),
        six(row.median_ns / 1e3) if row.median_ns is not None else None,
    )


def _totals(totals: Sequence[Total]) -> tuple[tuple[str, float, float, int], ...]:
    return tuple((words(each.key), six(each.share), six(each.total_ns / 1e3), each.instances) for each in totals)
