"""An Explanation as a sentence and tables: the time part by part, the next experiments, kernels, stages."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from kernelderby.catalog.selection import workload_label
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.profile.counters import FULL
from kernelderby.rank.bounds import Experiment, Explanation, TimeParts
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame
from kernelderby.report.model import Column, Report, Row, Table, cell_of, left, right
from kernelderby.report.numbers import floor_us, microseconds, percent, short_percent

_LIMITS = {"launch": "a launch", "compute": "arithmetic", "memory": "memory traffic"}


def explanation_answer(found: Explanation, warnings: tuple[str, ...] = ()) -> Answer[Explanation]:
    """Frames: experiments, kernels, stages."""
    data = _data(found)
    frames = tuple(Frame(name, data[name]) for name in ("experiments", "kernels", "stages"))
    return Answer(found, lambda: data, lambda: [_report(found)], lambda: frames, tuple(warnings))


def _data(found: Explanation) -> dict[str, Any]:
    return {
        "solution": found.solution.name,
        "definition": found.solution.definition,
        "workload": found.workload.uuid,
        "axes": found.workload.axes,
        "gpu": found.gpu.names[0],
        "verdict": _verdict(found),
        "s": found.share,
        "floors_us": found.floors and asdict(found.floors),
        "floors_at_ceilings_us": found.ceilings and asdict(found.ceilings),
        "empty_kernel_us": found.empty_us,
        "reachable_us": found.reachable_us,
        "time_us": found.parts and asdict(found.parts),
        "rival": found.rival and asdict(found.rival),
        "busiest_unit": found.unit and {"unit": found.unit[0], "percent": found.unit[1]},
        "experiments": [
            {"what": _what(found, each), "saves_us": each.saves_us, "of_eager": each.of_eager}
            for each in found.experiments
        ],
        "kernels": [_kernel_data(each) for each in found.demands],
        "stages": _stages(found),
        "notes": found.notes,
    }


def _kernel_data(demand: KernelDemand) -> dict[str, Any]:
    return {**asdict(demand), "occupancy": demand.occupancy and asdict(demand.occupancy), "waves": demand.waves}


def _stages(found: Explanation) -> list[dict[str, Any]]:
    if found.pipeline is None or not (cost := found.pipeline.cost_ns):
        return []
    calls = found.pipeline.invocations or 1
    return [
        {"stage": row.name, "title": row.title, "us": time / calls / 1e3, "share": time / cost}
        for row in found.pipeline.stages
        if (time := found.pipeline.time_ns(row))
    ]


def _verdict(found: Explanation) -> str:
    parts, reachable, bound = found.parts, found.reachable_us, found.bound
    if parts is None or bound == "not measured":
        return "not measured on this GPU: `derby bench` first; what follows is known without a time"
    if reachable is None or bound == "no floor":
        return "its floor is unknown: the operator's cost is not counted, or the GPU's peaks are not known"
    limit = _LIMITS[found.limit]
    if bound == "near":
        return f"near its floor: {reachable / parts.total:.0%} of the time is what {limit} takes at best"
    if bound == "unknown":
        return f"{_us(parts.total - reachable)} above the minimum of {limit}; the row does not show the cause"
    if bound == "gaps":
        return f"bound by gaps: for {_us(parts.gaps)} of {_us(parts.total)} no kernel runs"
    told = f"bound by its kernels: they run {_us(found.slow_kernels_us)} longer than {limit} takes at best"
    if found.unit is None:
        return told
    name, used = found.unit
    if used >= FULL:
        return f"{told}, and keep {name} at {used:.0f}% of its peak: do less work there"
    return f"{told}, and no unit is full ({name} {used:.0f}%): latency, so more work in flight"


def _us(time: float | None) -> str:
    """Three digits, or all before the point: 57.2, 1181."""
    assert time is not None
    return f"{time:.0f} us" if time >= 1000 else f"{time:.3g} us"


def _what(found: Explanation, experiment: Experiment) -> str:
    match experiment.change:
        case "gaps":
            return "no gaps between kernels: fuse them, or launch the next one early (PDL)"
        case "kernels":
            return _faster_kernels(found)
        case "rival":
            return _as_the_rival(found)
        case "host":
            return "less work on the host, for callers without CUDA graphs"
        case "stage":
            assert experiment.stage is not None
            stage, share = experiment.stage, experiment.share
            return f"stage {stage.name} ({stage.title}, {share:.0%} of the pipeline) in half the time"


def _faster_kernels(found: Explanation) -> str:
    told = f"kernels at the rate that {_LIMITS[found.limit]} reaches elsewhere"
    if found.starved is None:
        return told
    demand, lack = found.starved
    if lack == "grid":
        return f"{told}; {demand.kernel} fills {demand.waves:.0%} of the GPU: split it into more blocks"
    held = demand.occupancy
    return f"{told}; {demand.kernel} holds {held.share:.0%} of the warps, limited by {held.limit}" if held else told


def _as_the_rival(found: Explanation) -> str:
    own, rival = found.parts, found.rival
    assert own is not None and rival is not None
    if own.busy is None or rival.busy is None or own.gaps is None or rival.gaps is None:
        return f"as {rival.solution} does: its row does not show where it gains"
    kernels, gaps = own.busy - rival.busy, own.gaps - rival.gaps
    where = "its kernels run" if kernels >= gaps else "its gaps last"
    return f"as {rival.solution} does: {where} {_us(max(kernels, gaps))} less"


def _report(found: Explanation) -> Report:
    tables = [_time_table(found)]
    tables += [_experiment_table(found)] if found.experiments else []
    tables += [_kernel_table(found)] if found.demands else []
    tables += [_stage_table(found)] if found.pipeline else []
    facts = (f"{workload_label(found.workload)} · {found.gpu.names[0]}", _verdict(found))
    return Report(f"{found.solution.name}: what bounds it", facts, tuple(tables), found.notes)


def _time_table(found: Explanation) -> Table:
    rival = found.rival
    lines: list[tuple[str, float | None, float | None]] = []
    if found.floors:
        lines += [("all bytes at peak bandwidth", found.floors.memory_us, None)]
        lines += [("all arithmetic at its peak", found.floors.compute_us, None)]
    lines += [("an empty kernel", found.empty_us, None), ("reachable on this GPU", found.reachable_us, None)]
    told = f" as a CUDA graph{f', S {percent(found.share)}' if found.share else ''}"
    kind = found.parts.kind if found.parts else rival.kind if rival else "graph"
    names = {"total": f"its time{told}" if kind == "graph" else "its time, launched by the host"}
    names |= {"busy": "a kernel runs", "gaps": "no kernel runs", "eager": "launched by the host"}
    names |= {"host": "the host enqueues"}
    for field, name in names.items():
        own = getattr(found.parts, field) if found.parts else None
        lines.append((name, own, getattr(rival, field) if rival else None))
    columns = (Column("us", "left"), *right(found.solution.name, *([rival.solution] if rival else [])))
    rows: list[Row] = [(name, *map(_time, (own, other) if rival else (own,))) for name, own, other in lines]
    return Table("Where the time goes", columns, rows, _compared(found.parts, rival))


def _compared(own: TimeParts | None, rival: TimeParts | None) -> str:
    if own is None or rival is None:
        return ""
    ratio = own.total / rival.total
    if ratio > 1:
        return f"{rival.solution}: the closest faster solution, by {ratio:.2f}."
    return f"Nothing measured is faster. {rival.solution}: the next one, {1 / ratio:.2f} times as long."


def _time(value: float | None) -> str | None:
    return None if value is None else floor_us(value) if value < 1 else microseconds(value)


def _experiment_table(found: Explanation) -> Table:
    rows = (
        (microseconds(each.saves_us) + (" eager" if each.of_eager else ""), _what(found, each))
        for each in found.experiments
    )
    columns = (Column("saves at most us"), Column("experiment", "left"))
    return Table("What to try next", columns, rows, "Savings overlap: they do not add up.", key_columns=2)


def _kernel_table(found: Explanation) -> Table:
    """Kernels of a library that ask for the same stand in one row."""
    columns = (
        Column("kernel", "left"),
        *right("registers", "shared KB", "threads", "occupancy"),
        Column("limit", "left"),
        Column("grid", "left", is_optional=True),
        Column("waves"),
    )
    rows: list[Row] = []
    for demand, count in Counter(found.demands).items():
        held = demand.occupancy
        rows.append(
            (
                demand.kernel + (f" x{count}" if count > 1 else ""),
                demand.registers,
                f"{demand.shared_bytes / 1024:.3g}" + ("" if demand.has_all_shared else "+"),
                demand.threads,
                *((short_percent(held.share), held.limit) if held else (None, None)),
                None if demand.grid is None else " x ".join(map(str, demand.grid)),
                cell_of(demand.waves, "{:.2g}".format),
            )
        )
    caption = "Compiled for sm_90. Occupancy: resident warps of 64. Waves: blocks over those that 132 SMs hold at once."
    if not all(each.has_all_shared for each in found.demands):
        caption += " +: and what the host asks for at launch, which lowers the occupancy."
    return Table("Kernels", columns, rows, caption)


def _stage_table(found: Explanation) -> Table:
    rows = (
        (each["stage"], each["title"], microseconds(each["us"]), short_percent(each["share"]))
        for each in _stages(found)
    )
    return Table("Stages, as recorded", (*left("stage", "what it does"), *right("us", "share")), rows)
