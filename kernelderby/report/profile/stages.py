"""A Pipeline as tables: the pipeline's share table, and the other work of the profile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from kernelderby.profile.names import short_name
from kernelderby.profile.stages.outside import UNATTRIBUTED
from kernelderby.profile.stages.walk import BETWEEN, OutsideRow, Pipeline, StageKernel, StageRow
from kernelderby.profile.timeline import Timeline
from kernelderby.report.model import Column, Emphasis, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import microseconds, milliseconds
from kernelderby.report.profile.notes import invocations_from, stage_notes, told_warnings
from kernelderby.store.counts import counted, shortened

MOST_KERNELS = 8  # kernels of one stage; the rest shares a line
LONGEST = 48  # characters of a kernel's name: the table then fits 120 columns
FLAG = " !"
_SIDE = r"(?:cute::)?C<(?:\(int\))?(\d+)>"
_TILE = re.compile(rf"tuple<{_SIDE}, ?{_SIDE}, ?{_SIDE} ?>")


def stages_report(pipeline: Pipeline) -> Report:
    tables = [_stage_table(pipeline)]
    if any(row.total_ns for row in pipeline.outside):
        tables.append(_outside_table(pipeline))
    return Report(
        title=f"{pipeline.solution}: {pipeline.profile}",
        facts=facts(pipeline),
        tables=tuple(tables),
        notes=_notes(pipeline),
    )


def facts(pipeline: Pipeline) -> tuple[str, ...]:
    """GPU, source, invocations; wall, busy and gaps of each GPU; host time."""
    count = "no invocation found"
    if pipeline.invocations:
        count = f"{counted(pipeline.invocations, 'invocation')} ({invocations_from(pipeline.invocations_from)})"
    lines = [f"{pipeline.gpu or 'GPU not named'} · {pipeline.form} · {count}"]
    if pipeline.invocations and pipeline.span_ns:
        kernels_us = pipeline.pipeline_ns / pipeline.invocations / 1e3
        span_us = pipeline.span_ns / pipeline.invocations / 1e3
        busy_us = (pipeline.added_ns or 0) / pipeline.invocations / 1e3
        lines.append(
            f"an invocation, on average: {microseconds(span_us)} us from first start to last end, a kernel "
            f"running in {microseconds(busy_us)} us of them ({busy_us / max(span_us, 1e-9):.1%})"
        )
        if pipeline.overlaps:
            lines.append(
                f"kernels overlap: {microseconds(kernels_us)} us of durations in those "
                f"{microseconds(busy_us)} us; added: shared time counts once, for the first to start"
            )
    lines += [_timeline(timeline) for timeline in pipeline.timelines]
    if pipeline.api_ns:
        lines.append(
            f"CUDA API on the host: {milliseconds(pipeline.api_ns)} ms, "
            f"{pipeline.synchronise_ns / pipeline.api_ns:.1%} of it synchronisation"
        )
    return tuple(lines)


def _timeline(timeline: Timeline) -> str:
    wall, busy = milliseconds(timeline.wall_ns), milliseconds(timeline.busy_ns)
    share = timeline.busy_ns / max(timeline.wall_ns, 1)
    text = f"GPU {timeline.label or timeline.device}: {wall} ms from first to last, busy {busy} ms ({share:.1%})"
    if timeline.gaps:
        text += (
            f", {counted(timeline.gaps, 'gap')} of {milliseconds(timeline.gap_total_ns)} ms in all, median "
            f"{microseconds(timeline.gap_median_ns / 1e3)} us, largest {milliseconds(timeline.gap_largest_ns)} ms"
        )
    return text


def _stage_table(pipeline: Pipeline) -> Table:
    columns = [
        *left("stage", "kernel"),
        *right("instances", "total ms", "us each", "us an invocation", "% of pipeline"),
    ]
    if pipeline.overlaps:
        columns += right("us added", "% added")
    largest = max(map(pipeline.time_ns, pipeline.stages), default=0)
    rows: list[Row] = [line for row in pipeline.stages for line in _stage_lines(pipeline, row, largest)]
    each = pipeline.pipeline_ns / pipeline.invocations / 1e3 if pipeline.invocations else None
    rows.append(
        (
            "pipeline",
            "",
            sum(row.instances for row in pipeline.stages),
            milliseconds(pipeline.pipeline_ns),
            "",
            cell_of(each, microseconds),
            "100.0" if pipeline.pipeline_ns else "0.0",
            *_added(pipeline, pipeline.added_ns, ""),
        )
    )
    return Table("Pipeline", columns, rows, "· a part of the row above it; ! see the notes; * the largest")


def _stage_lines(pipeline: Pipeline, row: StageRow, largest: float) -> list[Row]:
    """The stage, followed by its kernels if it has several."""
    emphasis: Emphasis = "best" if pipeline.time_ns(row) == largest and largest else ""
    only = len(row.kernels) == 1
    labels = kernel_labels(row.kernels)
    what = labels[row.kernels[0].name] if only else _cut(row.title)
    numbers = _numbers(pipeline, row.instances, row.total_ns, emphasis if not pipeline.overlaps else "")
    name_cell = TableCell(row.name + (FLAG if row.notes else ""), "bad" if row.notes else "")
    lines: list[Row] = [(name_cell, what, *numbers, *_added(pipeline, row.added_ns, emphasis))]
    if only:
        return lines

    def beneath(what: str, kernels: Sequence[StageKernel]) -> Row:
        instances, total = sum(each.instances for each in kernels), sum(each.total_ns for each in kernels)
        numbers = _numbers(pipeline, instances, total, "muted")
        return ("", TableCell(f"· {what}", "muted"), *numbers, *_added(pipeline, None, ""))

    shown = row.kernels if len(row.kernels) <= MOST_KERNELS + 1 else row.kernels[:MOST_KERNELS]
    lines += [beneath(labels[kernel.name], [kernel]) for kernel in shown]
    rest = row.kernels[len(shown) :]
    return [*lines, beneath(f"{len(rest)} more", rest)] if rest else lines


def _numbers(pipeline: Pipeline, instances: int, total_ns: float, emphasis: Emphasis) -> Row:
    each = microseconds(total_ns / instances / 1e3) if instances else "-"
    per = microseconds(total_ns / pipeline.invocations / 1e3) if pipeline.invocations else "-"
    share = f"{100 * total_ns / pipeline.pipeline_ns:.1f}" if pipeline.pipeline_ns else "-"
    quiet: Emphasis = "muted" if emphasis == "muted" else ""
    numbers = (str(instances or "-"), milliseconds(total_ns), each, per)
    return (*(TableCell(number, quiet) for number in numbers), TableCell(share, emphasis))


def _added(pipeline: Pipeline, added_ns: float | None, emphasis: Emphasis) -> Row:
    """The two columns that only a pipeline with overlapping kernels has."""
    if not pipeline.overlaps:
        return ()
    if added_ns is None or not pipeline.invocations or not pipeline.added_ns:
        return ("", "")
    return (
        microseconds(added_ns / pipeline.invocations / 1e3),
        TableCell(f"{100 * added_ns / pipeline.added_ns:.1f}", emphasis),
    )


def _outside_table(pipeline: Pipeline) -> Table:
    columns = (Column("everything else", "left"), *right("instances", "total ms", "% of all GPU time", "MB"))
    count = sum(row.instances for row in pipeline.stages)
    share = f"{100 * pipeline.pipeline_ns / (pipeline.total_ns or 1):.1f}"
    everything = count + sum(row.instances for row in pipeline.outside)
    rows: list[Row] = [
        ("pipeline", count, milliseconds(pipeline.pipeline_ns), share, None),
        *(_outside_line(pipeline, row) for row in pipeline.outside),
        ("all GPU work", everything, milliseconds(pipeline.total_ns), "100.0", None),
    ]
    caption = "sums of durations; work that ran at the same time counts for each"
    return Table("The whole profile", columns, rows, caption)


def _outside_line(pipeline: Pipeline, row: OutsideRow) -> Row:
    share = 100 * row.total_ns / pipeline.total_ns if pipeline.total_ns else 0
    emphasis: Emphasis = "bad" if row.kind == UNATTRIBUTED and share >= 1 else ""
    size = f"{row.bytes / 1e6:.1f}" if row.bytes else None
    kind, share_cell = TableCell(row.kind, emphasis), TableCell(f"{share:.1f}", emphasis)
    return (kind, row.instances, milliseconds(row.total_ns), share_cell, size)


def _notes(pipeline: Pipeline) -> tuple[str, ...]:
    notes = [f"{row.name}: {note}" for row in pipeline.stages for note in stage_notes(row)]
    if any(row.name == BETWEEN for row in pipeline.stages):
        notes.append(f"{BETWEEN}: kernels inside invocations that no stage lists")
    return (*notes, *told_warnings(pipeline.warnings))


def kernel_labels(kernels: tuple[StageKernel, ...]) -> dict[str, str]:
    """Name -> short name. Equal short names get the tile in the template, or a number."""
    short = {each.name: each.name if each.name.startswith("[") else short_name(each.name) for each in kernels}
    alike = Counter(short.values())
    labels = {name: _cut(text, _tile(name) if alike[text] > 1 else "") for name, text in short.items()}
    alike, seen = Counter(labels.values()), Counter[str]()
    for name, text in labels.items():
        seen[text] += 1
        labels[name] = f"{text} #{seen[text]}" if alike[text] > 1 else text
    return labels


def _cut(text: str, end: str = "") -> str:
    return f"{shortened(text, LONGEST - len(end) - bool(end))} {end}".strip()


def _tile(name: str) -> str:
    """The first shape in a CUTLASS name that can be a tile, such as 128x32x128. Clusters, up to 4 x 4, precede it."""
    shapes = [tuple(map(int, shape)) for shape in _TILE.findall(name)]
    return next(("x".join(map(str, shape)) for shape in shapes if max(shape) > 16), "")
