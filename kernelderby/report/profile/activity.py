"""The activity of the GPUs of one profile or of several ranks, as tables side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.profile.activity import CAUSES, Activity, GpuActivity
from kernelderby.profile.names import short_name
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Column, Report, Row, Table, cell_of, left, right
from kernelderby.report.numbers import milliseconds, us_of_ns
from kernelderby.report.profile.ranks import labels, profile_names
from kernelderby.store.counts import counted

MOST = 20  # ranges, calls and launch configurations that get a row


def activity_answer(found: Sequence[Activity], most: int = MOST) -> Answer[tuple[Activity, ...]]:
    """Frames: gpus, ranges, api, shapes. most: maximum rows of the last three in text and Markdown."""
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
    several = len(found) > 1
    tables = [_gpu_table(found, names), _idle_table(found, names)]
    notes = _spread(found, names)
    for each, name in zip(found, names, strict=True):
        said = f" of {name}" if several else ""
        own = (_path_table, _range_table, _api_table, _shape_table)
        path, *rest = (make(each, most, said) for make in own)
        tables += [table for table in (path, _memory_table(each, said), *rest) if table.rows]
        notes += [f"{name}: {warning}" if several else warning for warning in each.warnings]
    facts = tuple(
        f"{name if name == file else f'{name} ({file})'}: {each.gpu or 'GPU not named'} · {each.form}"
        for each, name, file in zip(found, names, files, strict=True)
    )
    title = f"Activity of {counted(len(found), 'profile') if several else found[0].path}"
    return Report(title, facts, tuple(tables), tuple(dict.fromkeys(notes)))


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
    rows: list[Row] = []
    for name, gpu in _gpus(found, names):
        overlapped = _share(gpu.overlap_ns, gpu.communication_ns)
        communication = (milliseconds(gpu.communication_ns), overlapped, milliseconds(gpu.exposed_ns))
        rows.append(
            (
                name,
                gpu.operations,
                milliseconds(gpu.wall_ns),
                milliseconds(gpu.busy_ns),
                _share(gpu.busy_ns, gpu.wall_ns),
                milliseconds(gpu.computing_ns),
                *(communication if gpu.communication_ns else (None,) * 3),
                cell_of(gpu.launch_median_ns, us_of_ns),
                cell_of(gpu.launch_95_ns, us_of_ns),
                cell_of(gpu.queue_median, "{:g}".format),
                gpu.queue_largest,
            )
        )
    caption = (
        "busy, computing, communication: unions over streams; exposed: communication beside which nothing was "
        "computed; launch: from the call to the start; queue: launched and not yet started, at each launch"
    )
    return Table("GPUs", (Column("GPU", "left"), *right(*titles)), rows, caption=caption)


def _idle_table(found: Sequence[Activity], names: Sequence[str]) -> Table:
    columns = (Column("GPU", "left"), *right("idle ms", "gaps", *(f"{cause} ms" for cause in CAUSES)))
    rows: list[Row] = []
    for name, gpu in _gpus(found, names):
        idle = sum(gpu.idle_ns.values())
        causes = (
            f"{milliseconds(gpu.idle_ns[cause])} ({_share(gpu.idle_ns[cause], idle)})" if gpu.gaps[cause] else None
            for cause in CAUSES
        )
        rows.append((name, milliseconds(idle), sum(gpu.gaps.values()), *causes))
    caption = (
        "host late: launched after the gap began; synchronisation: and a call waited for the GPU then; dependency, "
        "communication: launched before, and waiting for other work or for a peer; unknown: no launch in the profile"
    )
    return Table("Idle, by cause", columns, rows, caption=caption)


def _range_table(each: Activity, most: int, said: str) -> Table:
    rows = (
        (
            row.name,
            row.instances or None,
            milliseconds(row.host_ns) if row.instances else None,
            us_of_ns(row.host_ns / row.instances) if row.instances else None,
            row.operations,
            milliseconds(row.gpu_ns),
        )
        for row in each.ranges[:most]
    )
    columns = (Column("range", "left"), *right("instances", "host ms", "host us each", "GPU operations", "GPU ms"))
    caption = "GPU: durations of what was launched in the range, in ranges inside it too"
    return Table(f"Ranges{said}{_left(len(each.ranges), most)}", columns, rows, caption)


def _api_table(each: Activity, most: int, said: str) -> Table:
    whole = sum(call.total_ns for call in each.api)
    rows = []
    for call in each.api[:most]:
        total, average = milliseconds(call.total_ns), us_of_ns(call.total_ns / max(call.calls, 1))
        rows.append((call.name, _share(call.total_ns, whole), total, call.calls, average))
    columns = (Column("call", "left"), *right("% of API time", "total ms", "calls", "us each"))
    return Table(f"CUDA API{said}{_left(len(each.api), most)}", columns, rows)


def _shape_table(each: Activity, most: int, said: str) -> Table:
    titles = ("grid", "block", "registers", "shared bytes", "instances", "total ms", "us each")
    rows = (
        (
            short_name(shape.name),
            "x".join(map(str, shape.grid)),
            "x".join(map(str, shape.block)),
            shape.registers,
            shape.shared_bytes,
            shape.instances,
            milliseconds(shape.total_ns),
            us_of_ns(shape.total_ns / shape.instances),
        )
        for shape in each.shapes[:most]
    )
    columns = (Column("kernel", "left"), *right(*titles))
    return Table(f"Launch configurations{said}{_left(len(each.shapes), most)}", columns, rows)


def _spread(found: Sequence[Activity], names: Sequence[str]) -> list[str]:
    """For several GPUs: their spread, and the slowest one."""
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
    """The critical path, if some work is hidden."""
    whole = sum(row.path_ns for row in each.critical)
    shown = each.critical if any(row.hidden_ns for row in each.critical) else ()
    rows = tuple(
        (
            row.name,
            row.gpu,
            row.instances,
            milliseconds(row.path_ns),
            _share(row.path_ns, whole),
            milliseconds(row.hidden_ns) if row.hidden_ns else None,
        )
        for row in shown[:most]
    )
    columns = (*left("operation", "GPU"), *right("count", "on the path ms", "% of it", "hidden ms"))
    caption = (
        "the likeliest chain from the last operation back to the first, across streams; hidden: beside it, so that a "
        "faster one would save nothing"
    )
    return Table(f"Critical path{said}{_left(len(shown), most)}", columns, rows, caption)


def _memory_table(each: Activity, said: str) -> Table:
    rows = tuple(
        (
            row.device,
            f"{row.peak_bytes / 2**20:.1f}",
            milliseconds(row.peak_at_ns),
            f"{row.last_bytes / 2**20:.1f}",
            None if row.reserved_bytes is None else f"{row.reserved_bytes / 2**20:.1f}",
        )
        for row in each.memory
    )
    columns = (Column("GPU", "left"), *right("most MiB", "at ms", "last MiB", "reserved MiB"))
    return Table(f"Memory{said}", columns, rows, "of the framework's allocator; at: from the first operation")


def _left(count: int, most: int) -> str:
    return f", the largest {most} of {count}" if count > most else ""


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
