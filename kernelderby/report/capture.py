"""A capture as tables: operators, shapes with the saving of a faster kernel, and work that could not be mapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelderby.capture.capture import Capture, CapturedShape, Unmapped
from kernelderby.capture.gain import Gain, Gains
from kernelderby.profile.names import short_name
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame, picked
from kernelderby.report.model import Column, Report, Row, Table, right
from kernelderby.report.numbers import floor_us, microseconds, milliseconds, percent
from kernelderby.store.counts import counted

TOP = 20  # rows of a table of shapes in text
_LEAST = 0.001  # share of the GPU time from which unmapped work gets its own row
_DERIVED = {"len_cu_seqlens", "num_blocks", "max_blocks_per_seq", "block_size", "gate_up_size", "num_halves"}


@dataclass(frozen=True, slots=True)
class Captured:
    """gains: None if not requested. notes: further lines, such as about a written file."""

    capture: Capture
    gains: Gains | None
    notes: tuple[str, ...] = ()


def capture_answer(found: Captured, lines: Sequence[dict[str, Any]], top: int | None = None) -> Answer[Captured]:
    """Frames: shapes, unmapped. lines: the lines of the workloads file, one for each shape that can be raced."""
    return Answer(
        found,
        lambda: _data(found, lines),
        lambda: [_report(found, top or TOP)],
        lambda: (
            frame("shapes", (_row(each, found) for each in found.capture.shapes)),
            frame("unmapped", (_unmapped_row(each, found) for each in found.capture.unmapped)),
        ),
    )


def sizes_told(shape: CapturedShape) -> dict[str, Any]:
    """The sizes that identify the shape, without axes that follow from others and without floats such as eps."""
    definition = shape.definition
    axes = {
        name: size
        for name, size in shape.sizes.axes.items()
        if definition.axes[name] is None and name not in _DERIVED and not name.endswith("_blocks")
    }
    whole = {name: value for name, value in shape.sizes.scalars.items() if type(value) is int}
    return axes | whole | {name: value for name, value in shape.sizes.generator.items() if type(value) is not float}


def _gain_of(shape: CapturedShape, found: Captured) -> Gain | None:
    return next((each for each in found.gains.gains if each.shape is shape), None) if found.gains else None


def _row(shape: CapturedShape, found: Captured) -> dict[str, Any]:
    row: dict[str, Any] = {
        "definition": shape.definition.name,
        "uuid": shape.uuid,
        "sizes": _written(sizes_told(shape)),
        "operators": " ".join(shape.operators),
        "calls": round(shape.calls),
        "time_us": shape.time_ns / 1e3,
        "share": shape.time_ns / found.capture.total_ns if found.capture.total_ns else None,
        "inferred_us": shape.inferred_ns / 1e3,
        "note": shape.note or None,
    }
    gain = _gain_of(shape, found)
    if gain is not None:
        best = gain.best
        row |= {
            "us_a_call": gain.here_us,
            "floor_us": gain.floor_us,
            "best_us": best and best.time_us,
            "best_solution": best and best.solution,
            "best_is_exact": best and best.exact,
            "best_axes": _written(best.axes) if best else None,
            "saved_us": gain.saved_ns / 1e3,
        }
    return row


def _unmapped_row(each: Unmapped, found: Captured) -> dict[str, Any]:
    return {
        **picked(each, "operator", "shape", "reason", "launches"),
        "time_us": each.time_ns / 1e3,
        "share": each.time_ns / found.capture.total_ns if found.capture.total_ns else None,
        "kernel": _longest(each),
    }


def _longest(each: Unmapped) -> str:
    """The kernel that takes the most time."""
    return max(each.kernels, key=lambda name: each.kernels[name])


def _data(found: Captured, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    capture, gains = found.capture, found.gains
    return {
        "files": [str(path) for path in capture.paths],
        "gpu": capture.gpu,
        **{
            f"{part}_us": getattr(capture, f"{part}_ns") / 1e3
            for part in ("total", "mapped", "shaped", "graph", "joined", "inferred")
        },
        "saved_us": gains.saved_ns / 1e3 if gains else None,
        "compared_with": gains.gpu.names[0] if gains and gains.gpu else None,
        "shapes": [_row(each, found) for each in capture.shapes],
        "unmapped": [_unmapped_row(each, found) for each in capture.unmapped],
        "workloads": list(lines),
        "warnings": _warnings(found),
    }


def _warnings(found: Captured) -> list[str]:
    return [*capture_warnings(found.capture), *_gain_warnings(found), *found.notes]


def capture_warnings(capture: Capture) -> list[str]:
    """Each line once."""
    warnings = list(capture.warnings)
    fit = "replay of a CUDA graph fits", "replays of CUDA graphs fit"
    for each in capture.replays:
        if each.ambiguous:
            several = "several captures of other sizes: left unmapped"
            warnings.append(f"{each.path}: {counted(each.ambiguous, *fit)} {several}")
        if each.unknown and each.has_captures:
            warnings.append(f"{each.path}: {counted(each.unknown, *fit)} no capture in these files")
        elif each.unknown:
            warnings.append(
                f"{each.path}: {counted(each.unknown, 'replay')} of CUDA graphs: their shapes are in the trace of the "
                "capture; profile the server's start too, and name both files"
            )
    if len(capture.gpus) > 1:
        warnings.append(f"the profiles are of several GPUs: {', '.join(capture.gpus)}")
    return list(dict.fromkeys(warnings))


def _gain_warnings(found: Captured) -> list[str]:
    gains = found.gains
    if gains is None:
        return []
    if gains.gpu is None:
        named = f"{gains.gpu_name} has no file in kernelderby/hardware/gpus"
        why = named if gains.gpu_name else "the profile names no GPU"
        return [f"{why}: without floors and recorded times; give --gpu"]
    name, warnings = gains.gpu.names[0], []
    if gains.is_of_other_gpu:
        of = f"the profile is of {found.capture.gpu}, floors and recorded times are of {name}"
        warnings.append(f"{of}: no machine gains this")
    if not gains.has_rows:
        warnings.append(f"no recorded rows of {name}: floors alone; measure there with `derby bench`")
    return warnings


def _report(found: Captured, top: int) -> Report:
    capture = found.capture
    tables = [_operators(found)] if capture.shapes else []
    ordered = [each.shape for each in found.gains.gains] if found.gains else list(capture.shapes)
    if ordered:
        tables += [_times(ordered[:top], found), _sizes(ordered[:top], found)]
    if capture.unmapped:
        tables.append(_unmapped(found, top))
    notes = [*_warnings(found), *_notes(found)]
    if len(ordered) > top:
        smaller = counted(len(ordered) - top, "smaller shape is", "smaller shapes are")
        notes.append(f"{smaller} in --json; --top N shows more")
    title = f"Operators of {', '.join(path.name for path in capture.paths)}"
    return Report(title, _facts(found), tuple(tables), tuple(notes))


def _facts(found: Captured) -> tuple[str, ...]:
    capture = found.capture
    total = capture.total_ns
    if not total:
        return (f"{counted(len(capture.shapes), 'shape')}, without times",)
    lines = [
        f"{capture.gpu or 'GPU not named'} · GPU time {milliseconds(total)} ms: "
        f"{percent(capture.shaped_ns / total)} with shapes, "
        f"{percent(capture.mapped_ns / total)} mapped onto operators of this set"
    ]
    if capture.graph_ns:
        lines.append(
            f"in CUDA graphs {percent(capture.graph_ns / total)}, of it "
            f"{percent(capture.joined_ns / capture.graph_ns)} joined with a recorded capture"
        )
    gains = found.gains
    if gains and gains.gpu:
        lines.append(
            f"the fastest recorded on {gains.gpu.names[0]} would save {milliseconds(gains.saved_ns)} ms, "
            f"{percent(gains.saved_ns / total)}"
        )
    return tuple(lines)


def _operators(found: Captured) -> Table:
    """One row an operator, largest time first."""
    total, rows = found.capture.total_ns, list[tuple[float, Row]]()
    for name in dict.fromkeys(each.definition.name for each in found.capture.shapes):
        own = [each for each in found.capture.shapes if each.definition.name == name]
        time, calls = sum(each.time_ns for each in own), round(sum(each.calls for each in own))
        times = (milliseconds(time), percent(time / total)) if total else (None, None)
        gains = found.gains.gains if found.gains else ()
        saved = sum(each.saved_ns for each in gains if each.shape.definition.name == name)
        gain = percent(saved / total) if saved and total else None
        rows.append((time, (name, len(own), calls, *times, *([gain] if found.gains else []))))
    rows.sort(key=lambda each: -each[0])
    titles = ["shapes", "calls", "ms", "share", *(["gain"] if found.gains else [])]
    return Table("Operators", (Column("operator", "left"), *right(*titles)), (row for _, row in rows))


def _times(shapes: Sequence[CapturedShape], found: Captured) -> Table:
    total, rows = found.capture.total_ns, list[Row]()
    for number, shape in enumerate(shapes, 1):
        here = microseconds(shape.time_ns / 1e3 / shape.calls) if shape.calls and shape.time_ns else None
        share = percent(shape.time_ns / total) if total else None
        calls = round(shape.calls) if shape.calls else None
        if not found.gains:
            rows.append((number, shape.definition.name, calls, here, share))
            continue
        gain = _gain_of(shape, found)
        best = gain.best if gain else None
        floor = floor_us(gain.floor_us) if gain and gain.floor_us is not None else None
        told = f"{'' if best.exact else '~'}{microseconds(best.time_us)}" if best else None
        saved = percent(gain.saved_ns / total) if gain and gain.saved_ns and total else None
        rows.append((number, shape.definition.name, calls, here, floor, told, share, saved))
    titles = ("calls", "us a call", "floor us", "best us", "share", "gain")
    shown = titles if found.gains else ("calls", "us a call", "share")
    caption = ""
    if found.gains and any(each.best and not each.best.exact for each in found.gains.gains):
        caption = "~ from a neighbour: its time, multiplied by how the floors of the two shapes compare."
    return Table("Shapes", (Column("#"), Column("operator", "left"), *right(*shown)), rows, caption, key_columns=2)


def _sizes(shapes: Sequence[CapturedShape], found: Captured) -> Table:
    rows = []
    for number, shape in enumerate(shapes, 1):
        told = f"{_written(sizes_told(shape))} · {', '.join(shape.operators) or '-'}"
        told += f" ({shape.note})" if shape.note else ""
        if (gain := _gain_of(shape, found)) and (best := gain.best):
            told += f" · {best.solution}{'' if best.exact else ' at ' + _axes(best.axes)}"
        rows.append((number, told))
    title = "sizes · operator in the trace" + (" · fastest recorded" if found.gains else "")
    return Table("Sizes", (Column("#"), Column(title, "left")), rows, key_columns=2)


def _written(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def _axes(axes: Mapping[str, int]) -> str:
    return _written({name: size for name, size in axes.items() if name not in _DERIVED})


def _unmapped(found: Captured, top: int) -> Table:
    total, rows = found.capture.total_ns, []
    shown = [each for each in found.capture.unmapped[:top] if not total or each.time_ns >= _LEAST * total]
    for each in shown:
        what = f"{each.operator} {each.shape}".strip()
        share = percent(each.time_ns / total) if total else "-"
        rows.append((share, f"{what}: {each.reason} · {short_name(_longest(each))[:60]}"))
    rest = found.capture.unmapped[len(shown) :]
    if rest:
        left_over = sum(each.time_ns for each in rest) / total if total else 0.0
        rows.append((percent(left_over), f"{len(rest)} more, in --json"))
    return Table("Not mapped", (Column("share"), Column("operator: why not · kernel", "left")), rows, key_columns=2)


def _notes(found: Captured) -> list[str]:
    capture, notes = found.capture, []
    if capture.inferred_ns and capture.total_ns:
        notes.append(
            f"{percent(capture.inferred_ns / capture.total_ns)} of the GPU time has no launch in the file; its "
            "operator was inferred from the same kernel with the same grid, or between the same kernels"
        )
    if found.gains and any(each.best for each in found.gains.gains):
        notes.append(
            "recorded times start with a cold L2 and cover the whole call; the profile's are sums of kernels, with any "
            "contents of the cache"
        )
    return notes
