"""What the GPUs of one profile or of several ranks did, as tables side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.profile.activity import CAUSES, Activity, GpuActivity
from kernelderby.profile.names import short_name
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, milliseconds
from kernelderby.report.profile.ranks import labels, profile_names
from kernelderby.store.counts import counted

MOST = 20  # ranges, calls and launch configurations that get a row


def activity_answer(found: Sequence[Activity], most: int = MOST) -> Answer[tuple[Activity, ...]]:
    """Frames: gpus, ranges, api, shapes. most: rows of the last three in text and Markdown."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"profiles": [_data(each) for each in found]},
        lambda: [activity_report(found, most)],
        lambda: _frames(found),
    )


def _data(each: Activity) -> dict[str, Any]:
    data = asdict(each)
    for row, gpu in zip(data["gpus"], each.gpus, strict=True):
        row["exposed_ns"] = gpu.exposed_ns
    for row, part in zip(data["critical"], each.critical, strict=True):
        row["hidden_ns"] = part.hidden_ns
    return data


def _frames(found: Sequence[Activity]) -> tuple[Frame, ...]:
    def rows(field: str) -> list[dict[str, Any]]:
        return [{"profile": each.path} | row for each in found for row in _data(each)[field]]

    return tuple(frame(field, rows(field)) for field in ("gpus", "ranges", "api", "shapes", "critical", "memory"))


def activity_report(found: Sequence[Activity], most: int = MOST) -> Report:
    files = profile_names([each.path for each in found])
    names = labels(files)
    tables = [_gpu_table(found, names), _idle_table(found, names)]
    for each, name in zip(found, names, strict=True):
        said = f" of {name}" if len(found) > 1 else ""
        tables += [
            table
            for table in (
                _path_table(each, most, said),
                _memory_table(each, said),
                _range_table(each, most, said),
                _api_table(each, most, said),
                _shape_table(each, most, said),
            )
            if table.rows
        ]
    notes = [*_spread(found, names)]
    for each, name in zip(found, names, strict=True):
        said = f"{name}: " if len(found) > 1 else ""
        notes += [said + warning for warning in each.warnings]
    title = f"Activity of {found[0].path}" if len(found) == 1 else f"Activity of {counted(len(found), 'profile')}"
    facts = tuple(
        f"{name if name == file else f'{name} ({file})'}: {each.gpu or 'GPU not named'} · {each.form}"
        for each, name, file in zip(found, names, files, strict=True)
    )
    return Report(title=title, facts=facts, tables=tuple(tables), notes=tuple(dict.fromkeys(notes)))


def _gpus(found: Sequence[Activity], names: Sequence[str]) -> list[tuple[str, GpuActivity]]:
    return [
        (f"{name}, GPU {gpu.label}" if len(found) > 1 else f"GPU {gpu.label}", gpu)
        for each, name in zip(found, names, strict=True)
        for gpu in each.gpus
    ]


def _gpu_table(found: Sequence[Activity], names: Sequence[str]) -> Table:
    titles = (
        *("operations", "wall ms", "busy ms", "% busy", "computing ms", "communication ms", "of it overlapped"),
        *("exposed ms", "launch us", "launch 95 % us", "queue", "queue most"),
    )
    rows = []
    for name, gpu in _gpus(found, names):
        rows.append(
            (
                TableCell(name),
                TableCell(str(gpu.operations)),
                TableCell(milliseconds(gpu.wall_ns)),
                TableCell(milliseconds(gpu.busy_ns)),
                TableCell(_share(gpu.busy_ns, gpu.wall_ns)),
                TableCell(milliseconds(gpu.computing_ns)),
                TableCell(milliseconds(gpu.communication_ns)) if gpu.communication_ns else NOTHING,
                TableCell(_share(gpu.overlap_ns, gpu.communication_ns)) if gpu.communication_ns else NOTHING,
                TableCell(milliseconds(gpu.exposed_ns)) if gpu.communication_ns else NOTHING,
                _us(gpu.launch_median_ns),
                _us(gpu.launch_95_ns),
                NOTHING if gpu.queue_median is None else TableCell(f"{gpu.queue_median:g}"),
                NOTHING if gpu.queue_largest is None else TableCell(str(gpu.queue_largest)),
            )
        )
    caption = (
        "busy, computing, communication: unions over streams; exposed: communication beside which nothing was "
        "computed; launch: from the call to the start; queue: launched and not yet started, at each launch"
    )
    return Table("GPUs", (Column("GPU", "left"), *map(Column, titles)), tuple(rows), caption=caption)


def _idle_table(found: Sequence[Activity], names: Sequence[str]) -> Table:
    columns = (Column("GPU", "left"), Column("idle ms"), Column("gaps"), *(Column(f"{cause} ms") for cause in CAUSES))
    rows = []
    for name, gpu in _gpus(found, names):
        idle = sum(gpu.idle_ns.values())
        rows.append(
            (
                TableCell(name),
                TableCell(milliseconds(idle)),
                TableCell(str(sum(gpu.gaps.values()))),
                *(
                    TableCell(f"{milliseconds(gpu.idle_ns[cause])} ({_share(gpu.idle_ns[cause], idle)})")
                    if gpu.gaps[cause]
                    else NOTHING
                    for cause in CAUSES
                ),
            )
        )
    caption = (
        "host late: launched after the gap began; synchronisation: and a call waited for the GPU then; dependency, "
        "communication: launched before, and waiting for other work or for a peer; unknown: no launch in the profile"
    )
    return Table("Idle, by cause", columns, tuple(rows), caption=caption)


def _range_table(each: Activity, most: int, said: str) -> Table:
    titles = ("instances", "host ms", "host us each", "GPU operations", "GPU ms")
    rows = tuple(
        (
            TableCell(row.name),
            TableCell(str(row.instances)) if row.instances else NOTHING,
            TableCell(milliseconds(row.host_ns)) if row.instances else NOTHING,
            TableCell(microseconds(row.host_ns / row.instances / 1e3)) if row.instances else NOTHING,
            TableCell(str(row.operations)),
            TableCell(milliseconds(row.gpu_ns)),
        )
        for row in each.ranges[:most]
    )
    caption = "GPU: durations of what was launched in the range, in ranges inside it too"
    return Table(
        f"Ranges{said}{_left(len(each.ranges), most)}", (Column("range", "left"), *map(Column, titles)), rows, caption
    )


def _api_table(each: Activity, most: int, said: str) -> Table:
    whole = sum(call.total_ns for call in each.api)
    rows = tuple(
        (
            TableCell(call.name),
            TableCell(_share(call.total_ns, whole)),
            TableCell(milliseconds(call.total_ns)),
            TableCell(str(call.calls)),
            TableCell(microseconds(call.total_ns / max(call.calls, 1) / 1e3)),
        )
        for call in each.api[:most]
    )
    columns = (Column("call", "left"), *map(Column, ("% of API time", "total ms", "calls", "us each")))
    return Table(f"CUDA API{said}{_left(len(each.api), most)}", columns, rows)


def _shape_table(each: Activity, most: int, said: str) -> Table:
    titles = ("grid", "block", "registers", "shared bytes", "instances", "total ms", "us each")
    rows = tuple(
        (
            TableCell(short_name(shape.name)),
            TableCell("x".join(map(str, shape.grid))),
            TableCell("x".join(map(str, shape.block))),
            NOTHING if shape.registers is None else TableCell(str(shape.registers)),
            NOTHING if shape.shared_bytes is None else TableCell(str(shape.shared_bytes)),
            TableCell(str(shape.instances)),
            TableCell(milliseconds(shape.total_ns)),
            TableCell(microseconds(shape.total_ns / shape.instances / 1e3)),
        )
        for shape in each.shapes[:most]
    )
    columns = (Column("kernel", "left"), *map(Column, titles))
    return Table(f"Launch configurations{said}{_left(len(each.shapes), most)}", columns, rows)


def _spread(found: Sequence[Activity], names: Sequence[str]) -> list[str]:
    """Where several GPUs worked: how far apart they are, and which was the slowest."""
    gpus = _gpus(found, names)
    if len(gpus) < 2:
        return []
    notes = []
    for what, field in (("busy", "busy_ns"), ("computing", "computing_ns"), ("communication", "communication_ns")):
        times = [(getattr(gpu, field), name) for name, gpu in gpus]
        (least, _), (most, slowest) = min(times), max(times)
        if most:
            notes.append(
                f"{what}: {milliseconds(least)} to {milliseconds(most)} ms, {(most - least) / most:.1%} apart; "
                f"most on {slowest}"
            )
    return notes


def _path_table(each: Activity, most: int, said: str) -> Table:
    """Only where something is hidden."""
    whole = sum(row.path_ns for row in each.critical)
    shown = each.critical if any(row.hidden_ns for row in each.critical) else ()
    rows = tuple(
        (
            TableCell(row.name),
            TableCell(row.gpu),
            TableCell(str(row.instances)),
            TableCell(milliseconds(row.path_ns)),
            TableCell(_share(row.path_ns, whole)),
            TableCell(milliseconds(row.hidden_ns)) if row.hidden_ns else NOTHING,
        )
        for row in shown[:most]
    )
    columns = (
        Column("operation", "left"),
        Column("GPU", "left"),
        *map(Column, ("count", "on the path ms", "% of it", "hidden ms")),
    )
    caption = (
        "the likeliest chain from the last operation back to the first, across streams; hidden: beside it, so that a "
        "faster one would save nothing"
    )
    return Table(f"Critical path{said}{_left(len(shown), most)}", columns, rows, caption)


def _memory_table(each: Activity, said: str) -> Table:
    rows = tuple(
        (
            TableCell(str(row.device)),
            TableCell(f"{row.peak_bytes / 2**20:.1f}"),
            TableCell(milliseconds(row.peak_at_ns)),
            TableCell(f"{row.last_bytes / 2**20:.1f}"),
            NOTHING if row.reserved_bytes is None else TableCell(f"{row.reserved_bytes / 2**20:.1f}"),
        )
        for row in each.memory
    )
    columns = (Column("GPU", "left"), *map(Column, ("most MiB", "at ms", "last MiB", "reserved MiB")))
    return Table(f"Memory{said}", columns, rows, "of the framework's allocator; at: from the first operation")


def _left(count: int, most: int) -> str:
    return f", the largest {most} of {count}" if count > most else ""


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _us(nanoseconds: float | None) -> TableCell:
    return NOTHING if nanoseconds is None else TableCell(microseconds(nanoseconds / 1e3))
