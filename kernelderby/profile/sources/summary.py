"""Summaries: the output of `nsys stats`, a table copied from the GUI, a table in a Markdown page.

Columns are found by their titles. Reports are found by nsys's names for them, or by columns and rows if a file has only
the table. An ambiguous value is an error. A warning names the reports that are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.cells import (
    MEND,
    SIZE_BYTES,
    TIME_NS,
    CellError,
    Heading,
    Quantity,
    check_dots,
    check_percent,
    columns_of,
    count,
    quantity,
    without_marks,
)
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.sources.tables import Block, blocks, json_blocks
from kernelderby.profile.spans import ApiSum, KernelSum, Profile, Span, SpanKind
from kernelderby.store.counts import counted
from kernelderby.store.files import decoded, unpacked

KERNELS, BY_GRID, GPU, API, OTHER = "kernels", "kernels by grid", "all GPU work", "API calls", "other"
MEMORY_TIME, MEMORY_SIZE = "memory operations by time", "memory operations by size"
REPORTS = {
    **dict.fromkeys(("cuda_gpu_kern_sum", "gpukernsum", "cudagpukernsum"), KERNELS),
    **dict.fromkeys(("cuda_gpu_kern_gb_sum", "gpukerngbsum"), BY_GRID),
    **dict.fromkeys(("cuda_gpu_sum", "gpusum", "cuda_api_gpu_sum", "apigpusum", "cudaapigpusum"), GPU),
    **dict.fromkeys(("cuda_api_sum", "cudaapisum", "apisum"), API),
    **dict.fromkeys(("cuda_gpu_mem_time_sum", "gpumemtimesum"), MEMORY_TIME),
    **dict.fromkeys(("cuda_gpu_mem_size_sum", "gpumemsizesum"), MEMORY_SIZE),
}
# Only nsys has such a key; no event of a trace has it.
JSON_ROW = re.compile(r'(?:[^\n]*\n){0,20}?\s*\[\s*\{[^{}]*"Total (?:Time|MB) ?\(')
_LAYOUTS = {"csv": "CSV", "tsv": "TSV", "plain": "text", "markdown": "Markdown table", "json": "JSON"}
_LARGEST = 256 * 2**20
_TOTAL_ROW = re.compile(r"\b(total|sum)\b|合计|总计", re.IGNORECASE)
_API_CALL = re.compile(r"cu(da)?[A-Z]|nvrtc|cudbg")
_HIP_CALL = re.compile(r"hip[A-Z]|hsa_|__hip")
# Bounded, and within one line, so that a page of blanks or of one repeated sign takes no longer to read.
_GPU_LINE = re.compile(
    r"^[^\w\n]{0,40}GPU[^\w\n]{0,20}[:=][^\w\n]{0,20}([a-z][^\n]{0,199}?)[^\w\n]{0,20}(?:\([^\n]{0,199}\)[^\w\n]{0,20})?$",
    re.IGNORECASE | re.MULTILINE,
)
_MODULES = re.compile(r"^\|.*\|\s*(?:模块|module)\s*\|\s*kernel\s*\|", re.IGNORECASE | re.MULTILINE)
_AVERAGES = re.compile(r"^ *Name\s{2,}.*\bSelf (?:CPU|CUDA|XPU|HIP)\b.*# of Calls", re.MULTILINE)  # torch.profiler's
_GPU_MODEL = re.compile(r"(?<![\w.-])(?:NVIDIA )?([AHBL](?:100|200|300|800|20|40S?|4)|GB200|GB300|GH200)(?![\w-])")
_EXPECTED = "a table with columns Name (or Operation), Instances (or Num Calls) and Total Time, as `nsys stats` prints"
# Allowed difference of total and instances x average, beyond rounding: a correctly read table is closer.
_SLACK = 0.05


class SummaryProfile(Profile):
    def __init__(self, path: Path, form: str, gpu: str | None) -> None:
        super().__init__(path, form, gpu)
        self.kernel_sums: list[KernelSum] = []
        self.calls: list[ApiSum] = []

    def spans(self) -> Iterator[Span]:
        raise DerbyError(
            f"{self.path}: {self.form} has sums only, no events; give the nsys SQLite export "
            "(`nsys export --type sqlite`) or what `derby profile run` wrote"
        )

    def sums(self) -> list[KernelSum]:
        return list(self.kernel_sums)

    def api_sums(self) -> list[ApiSum]:
        return list(self.calls)


@dataclass(slots=True)
class _Row:
    """One line of a table: times in ns, or bytes in a table of sizes. values: by the columns' meanings."""

    line: int
    name: str
    count: int
    total: Quantity
    values: dict[str, Quantity | None]
    category: str = ""


def open_summary(path: Path, packed: bool = False) -> SummaryProfile:
    text = read_text(path, packed)
    found, others = (json_blocks(text), []) if JSON_ROW.match(text) else blocks(path, text)
    tables: dict[str, tuple[Block, list[_Row]]] = {}
    for block in found:
        rows = list(_rows(path, block))
        kind = _kind(block, rows)
        if kind == OTHER:
            others.append(block.report or f"a table of other calls in line {block.line}")
        elif kind in tables:
            lines = f"lines {tables[kind][0].line} and {block.line}"
            raise DerbyError(f"{path}: two tables of {kind}, in {lines}; put one profile into a file")
        else:
            tables[kind] = block, rows
    if not set(tables) - {API}:
        raise DerbyError(f"{path}: {_nothing(tables, others, text)}")
    profile = SummaryProfile(path, f"summary, {_LAYOUTS[found[0].layout]}", _gpu(text, found))
    profile.kernel_sums, profile.calls = _assemble(path, tables, profile.warnings)
    if others:
        profile.warnings.append(f"not read: {', '.join(dict.fromkeys(others))}")
    return profile


def _gpu(text: str, found: list[Block]) -> str | None:
    """The GPU in a line "GPU: ...", otherwise the only model that the text around the tables names."""
    line = _GPU_LINE.search(text)
    if line:
        return line[1].strip()
    rows = {number for block in found for number, _ in block.rows}
    prose = "\n".join(line for number, line in enumerate(text.splitlines(), 1) if number not in rows)
    models = {match[1].upper(): match[0] for match in _GPU_MODEL.finditer(prose)}
    return f"NVIDIA {next(iter(models))}" if len(models) == 1 else None


def read_text(path: Path, packed: bool) -> str:
    data = unpacked(path, packed)
    if len(data) > _LARGEST:
        raise DerbyError(f"{path}: over {_LARGEST >> 20} MiB of text is no summary; give the SQLite export instead")
    return decoded(data, "replace")


def _nothing(tables: dict[str, Any], others: list[str], text: str) -> str:
    what = list(dict.fromkeys([*(["cuda_api_sum"] if API in tables else []), *others]))
    if what:
        return f"no kernels in it, only {', '.join(what)}; add `--report cuda_gpu_kern_sum` to `nsys stats`"
    if _MODULES.search(text):
        return "a table of a model's modules, no kernel summary; use `derby profile layers`"
    if _AVERAGES.search(text):
        return (
            "torch.profiler's table of averages, where operators and kernels stand together and names are cut off; "
            "write the trace itself with `profiler.export_chrome_trace(...)`"
        )
    return f"is no profile that derby knows; it needs {_EXPECTED}, or an nsys SQLite export, or a torch.profiler trace"


def _rows(path: Path, block: Block) -> Iterator[_Row]:
    columns = columns_of(block.header)
    if any(column.meaning == "total" and column.unit in SIZE_BYTES for column in columns):
        units, default = SIZE_BYTES, None
    else:  # nsys of 2021 has "Total Time" without a unit, in ns; in a hand-written page this would be a guess
        units, default = TIME_NS, None if block.layout == "markdown" else "ns"
    for line, cells in block.rows:
        try:
            for column, cell in zip(columns, cells, strict=True):
                if block.semicolons and column.meaning not in ("", "name", "category"):
                    check_dots(cell)
            row = _row(line, columns, cells, units, default)
            if row is not None:
                _check(row)
                yield row
        except CellError as error:
            raise DerbyError(f"{path}:{line}: {error}") from None


def _row(
    line: int, columns: list[Heading], cells: list[str], units: dict[str, int], default: str | None
) -> _Row | None:
    """The row of a line; None for a line of totals."""
    name, number, category = "", None, ""
    values: dict[str, Quantity | None] = {}
    for column, cell in zip(columns, cells, strict=True):
        if column.meaning == "name":
            name = without_marks(cell)
        elif column.meaning == "category":
            category = without_marks(cell)
        elif column.meaning == "count":
            number = count(cell)
        elif column.meaning == "percent":
            check_percent(cell)
        elif column.meaning:
            values[column.meaning] = quantity(cell, column.unit, units, default)
    if number is None:
        if not any(values.values()) or _TOTAL_ROW.search(name):
            return None
        raise CellError(f"no number of instances for {name!r}")
    total = values.get("total")
    if total is None:
        average = values.get("average")
        if average is None:
            raise CellError(f"neither total nor average for {name!r}")
        total = Quantity(average.value * number, average.step * number)
    return _Row(line, name or "(unnamed kernel)", number, total, values, category)


def _check(row: _Row) -> None:
    """CellError if total and instances x average disagree: separators or units were misread, or the table is wrong."""
    total, average = row.total, row.values.get("average")
    if average is None:
        return
    product = row.count * average.value
    rounding = (total.step + row.count * average.step) / 2
    if abs(total.value - product) > rounding + _SLACK * max(total.value, product):
        raise CellError(
            f"the total of {row.name!r} ({total.value:g} ns or bytes) is not {row.count} x its average "
            f"({average.value:g}); {MEND}"
        )


def _kind(block: Block, rows: list[_Row]) -> str:
    if block.report in REPORTS:
        return REPORTS[block.report]
    columns = columns_of(block.header)
    if block.report and block.layout != "markdown":
        return OTHER
    if any(column.meaning == "total" and column.unit in SIZE_BYTES for column in columns):
        return MEMORY_SIZE
    if any(column.meaning == "category" for column in columns):
        return GPU
    if any(column.title.lower().startswith("gridx") for column in columns):
        return BY_GRID
    if any(column.title.startswith("TotalDuration") for column in columns):  # rocprof's, of kernels or of calls
        return OTHER if all(_HIP_CALL.match(row.name) for row in rows) else KERNELS
    calls = next(column.title.lower() for column in columns if column.meaning == "count") in ("num calls", "calls")
    if calls and block.layout != "markdown":
        return API if any(_API_CALL.match(row.name) for row in rows) else OTHER
    operations = [operation(row.name)[0] != SpanKind.KERNEL for row in rows]
    return MEMORY_TIME if operations and all(operations) else KERNELS


def _assemble(
    path: Path, tables: dict[str, tuple[Block, list[_Row]]], warnings: list[str]
) -> tuple[list[KernelSum], list[ApiSum]]:
    """The sums of the kernel and memory tables, with sizes added to the times, and the calls. If a table is missing, a
    table with the same work replaces it: kernels by grid for kernels, all GPU work for everything."""

    def rows(*kinds: str) -> list[_Row]:
        return next((tables[kind][1] for kind in kinds if kind in tables), [])

    mixed = rows(GPU)
    calls = rows(API) or [row for row in mixed if "API" in row.category.upper()]
    work = [row for row in mixed if "API" not in row.category.upper()]
    kernels = rows(KERNELS, BY_GRID) or [row for row in work if operation(row.name)[0] == SpanKind.KERNEL]
    memory = rows(MEMORY_TIME) or [row for row in work if operation(row.name)[0] != SpanKind.KERNEL]
    merged: dict[tuple[SpanKind, str], KernelSum] = {}
    if KERNELS in tables:  # by grid size, one name has several rows on purpose
        names = len({row.name for row in kernels})
        if names < len(kernels):
            warnings.append(
                f"{counted(len(kernels), 'kernel has', 'kernels have')} {names} names: the names were cut off, and "
                "rows of one name are told apart by their line; export with `nsys stats --format csv`, which prints "
                "them whole"
            )
    for row in (*kernels, *memory):
        each = _sum(*operation(row.name), row)
        known = merged.get((each.kind, each.name))
        if known and KERNELS in tables and each.kind is SpanKind.KERNEL:  # different kernels with cut-off names
            each, known = replace(each, name=f"{each.name} (line {row.line})"), None
        merged[each.kind, each.name] = _join(known, each) if known else each
    _add_sizes(rows(MEMORY_SIZE), merged, warnings)
    if not merged:
        raise DerbyError(f"{path}: the tables in it have no rows; profile code that uses the GPU")
    sums = sorted(merged.values(), key=lambda each: (-each.total_ns, each.instances, each.name))
    apis = [ApiSum(row.name, row.count, row.total.value) for row in calls]
    return sums, sorted(apis, key=lambda each: -each.total_ns)


def _sum(kind: SpanKind, name: str, row: _Row) -> KernelSum:
    found = (row.values.get(meaning) for meaning in ("median", "minimum", "maximum", "deviation"))
    return KernelSum(kind, name, row.count, row.total.value, *(each.value if each else None for each in found))


def _join(one: KernelSum, other: KernelSum) -> KernelSum:
    """Joins two rows of one name (by grid size, or names that the GUI cut). Median and deviation are then unknown."""
    return KernelSum(
        one.kind,
        one.name,
        one.instances + other.instances,
        one.total_ns + other.total_ns,
        min_ns=None if one.min_ns is None or other.min_ns is None else min(one.min_ns, other.min_ns),
        max_ns=None if one.max_ns is None or other.max_ns is None else max(one.max_ns, other.max_ns),
    )


def _add_sizes(rows: list[_Row], merged: dict[tuple[SpanKind, str], KernelSum], warnings: list[str]) -> None:
    for row in rows:
        kind, name = operation(row.name)
        known = merged.get((kind, name))
        if known is None:
            warnings.append(f"{name}: only its size is in the file, not its time; add `--report cuda_gpu_mem_time_sum`")
            continue
        merged[kind, name] = replace(known, bytes=row.total.value)
