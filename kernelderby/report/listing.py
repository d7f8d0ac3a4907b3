"""A Listing as one table; a Contract as tables of its axes, inputs, outputs, tolerances, solutions and workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import structs

from kernelderby.catalog import Requires, TensorSpec, Tolerance, Workload
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame, picked
from kernelderby.report.model import Column, Report, Row, Table, TableCell, left, right
from kernelderby.report.numbers import amount, percent
from kernelderby.roofline.floors import arithmetic_intensity
from kernelderby.roofline.listing import Contract, ListedOperator, Listing
from kernelderby.roofline.recorded import RecordedTime
from kernelderby.store.counts import counted

OUTDATED = "†"


def listing_answer(found: Listing, warnings: Sequence[str] = ()) -> Answer[Listing]:
    """Frame: operators."""
    return Answer(
        found,
        lambda: _listing_data(found),
        lambda: [listing_report(found)],
        lambda: (frame("operators", _listing_data(found)["operators"]),),
        tuple(warnings),
    )


def _listing_data(found: Listing) -> dict[str, Any]:
    return {
        "gpus": found.gpus,
        "of_operators": found.of_operators,
        "operators": [
            picked(each, "name", "op_type", "dtypes", "shapes")
            | {"other_shapes": each.others, "importance_percent": each.importance, "solutions": each.solutions}
            | {"best": {gpu: {"s": share.measured, "shapes": share.shapes} for gpu, share in each.shares.items()}}
            for each in found.operators
        ],
    }


def contract_answer(found: Contract, root: Path, warnings: Sequence[str] = ()) -> Answer[Contract]:
    """Frames: workloads, solutions, axes, inputs, outputs, tolerances."""
    return Answer(
        found,
        lambda: _contract_data(found, root),
        lambda: [contract_report(found, root)],
        lambda: _contract_frames(found, root),
        tuple(warnings),
    )


def _contract_data(found: Contract, root: Path) -> dict[str, Any]:
    definition = found.definition
    return {
        "name": definition.name,
        "op_type": definition.op_type,
        "dtypes": found.dtypes,
        "description": definition.description,
        "path": definition.path.relative_to(root).as_posix(),
        "importance_percent": found.importance,
        "axes": {
            name: {"size": size, "description": found.descriptions["axes"][name]}
            for name, size in definition.axes.items()
        },
        **{
            part: {
                name: {**asdict(spec), "description": found.descriptions[part][name]}
                for name, spec in getattr(definition, part).items()
            }
            for part in ("inputs", "outputs")
        },
        "tolerances": [structs.asdict(each) for each in definition.tolerances],
        "solutions": [
            picked(each, "name", "author", "description", "aliases") | {"requires": structs.asdict(each.requires)}
            for each in found.solutions
        ],
        "gpus": found.gpus,
        "workloads": [_workload_data(found, each) for each in found.workloads],
    }


def _workload_data(found: Contract, workload: Workload) -> dict[str, Any]:
    return {
        **picked(workload, "uuid", "shape_id", "origin", "framework", "call_count", "axes", "scalars"),
        "cost": workload.cost and structs.asdict(workload.cost),
        "best": {
            gpu: picked(own[workload.uuid], "solution", "latency_us", "share", "outdated")
            for gpu, own in found.best.items()
            if workload.uuid in own
        },
    }


def _contract_frames(found: Contract, root: Path) -> tuple[Frame, ...]:
    data = _contract_data(found, root)
    parts = {name: data[name] for name in ("workloads", "solutions")}
    for name in ("axes", "inputs", "outputs"):
        parts[name] = [{"name": each} | own for each, own in data[name].items()]
    parts["tolerances"] = data["tolerances"]
    return tuple(frame(name, rows) for name, rows in parts.items())


def listing_report(found: Listing) -> Report:
    shapes = sum(operator.shapes for operator in found.operators)
    others = sum(sum(operator.others.values()) for operator in found.operators)
    count = len(found.operators)
    operators = (f"{count} of " if count < found.of_operators else "") + counted(found.of_operators, "operator")
    columns = (
        Column("operator", "left"),
        Column("op_type", "left", is_optional=True),
        Column("dtype", "left", is_optional=True),
        *right("shapes", "importance", "solutions", *(f"best S {gpu}" for gpu in found.gpus)),
    )
    captions = []
    if not found.of_operators:
        captions.append("`derby new operator NAME x:bf16[T,D]` writes one.")
    if any(operator.importance is not None for operator in found.operators):
        captions.append("Importance: share of GPU time in production, as published.")
    if found.gpus:
        captions.append(
            "S: floor over the fastest solution's time, median over the shapes (timed/all, where not all); rows of the "
            "newest protocol."
        )
    rows = (_operator_row(each, found.gpus) for each in found.operators)
    if others:
        captions.append("After a +: shapes of other origins, which do not count in S (--origin).")
    return Report(
        f"{operators}, {counted(shapes, 'shape')}" + (f" + {others} of other origins" * bool(others)),
        (),
        (Table("Operators", columns, rows, " ".join(captions)),),
    )


def _operator_row(operator: ListedOperator, gpus: Sequence[str]) -> Row:
    others = sum(operator.others.values())
    return (
        operator.name,
        operator.op_type,
        ", ".join(operator.dtypes),
        f"{operator.shapes}+{others}" if others else operator.shapes,
        "" if operator.importance is None else f"{operator.importance:.1f}%",
        TableCell(str(operator.solutions), "" if operator.solutions else "bad"),
        *(_share(operator.shares.get(gpu)) for gpu in gpus),
    )


def _share(share: Any) -> str:
    """share: an OperatorShare, None without rows on that GPU."""
    if share is None or share.measured is None:
        return ""
    return percent(share.measured) + ("" if share.shapes == share.of_shapes else f" ({share.shapes}/{share.of_shapes})")


def contract_report(found: Contract, root: Path) -> Report:
    definition = found.definition
    place = (definition.source_path or definition.path).relative_to(root)
    facts = [definition.op_type, ", ".join(found.dtypes), str(place)]
    if found.importance is not None:
        facts.append(f"{found.importance:.1f}% of GPU time in production")
    tables = contract_tables(found)
    tables += [_solution_table(found)] if found.solutions else []
    tables += [_workload_table(found)] if found.workloads else []
    lines = filter(None, (" · ".join(facts), definition.description))
    return Report(definition.name, tuple(lines), tuple(tables))


def contract_tables(found: Contract) -> list[Table]:
    """Axes, inputs, outputs and tolerances."""
    tables = [_axes_table(found), _tensor_table(found, "inputs"), _tensor_table(found, "outputs")]
    return tables + ([_tolerance_table(found.definition.tolerances)] if found.definition.tolerances else [])


# The last column of these tables is text. It wraps and is never split off, since every column is a key column.


def _axes_table(found: Contract) -> Table:
    described = found.descriptions["axes"]
    columns = (Column("axis", "left"), Column("size"), Column("description", "left"))
    rows = ((name, size or "var", described[name]) for name, size in found.definition.axes.items())
    return Table("Axes", columns, rows, key_columns=3)


def _tensor_table(found: Contract, part: str) -> Table:
    tensors: dict[str, TensorSpec] = getattr(found.definition, part)
    described = found.descriptions[part]
    rows = (
        (name, "scalar" if spec.shape is None else f"[{', '.join(spec.shape)}]", spec.dtype, described[name])
        for name, spec in tensors.items()
    )
    columns = left(part.removesuffix("s"), "shape", "dtype", "description")
    return Table(part.capitalize(), columns, rows, key_columns=4)


def _tolerance_table(tolerances: Sequence[Tolerance]) -> Table:
    rows = []
    for each in tolerances:
        must_match = f"{100 * each.required_matched_ratio:g}%" + _bounds(each)
        outputs = ", ".join(each.outputs) or "all"
        rows.append((each.name, outputs, f"{each.atol:g}", f"{each.rtol:g}", must_match, each.reason))
    columns = (*left("tolerance", "outputs"), *right("atol", "rtol", "must match"), Column("reason", "left"))
    caption = "An element fails when its absolute error exceeds atol and its relative error exceeds rtol."
    return Table("Tolerances", columns, rows, caption, key_columns=6)


def _bounds(tolerance: Tolerance) -> str:
    bounds = {"row": tolerance.row_error, "scale": tolerance.scale_error}
    return "".join(f", {name} {bound:g}" for name, bound in bounds.items() if bound is not None)


def _solution_table(found: Contract) -> Table:
    rows = []
    for each in found.solutions:
        aliases = f" Also called {', '.join(each.aliases)}." if each.aliases else ""
        rows.append((each.name, each.author, _needs(each.requires), each.description + aliases))
    return Table("Solutions", left("solution", "author", "needs", "description"), rows, key_columns=4)


def _needs(requires: Requires) -> str:
    """Modules, executables and compute capability; without any of these, whether a CPU suffices."""
    parts = [*requires.modules, *requires.executables]
    low, high = requires.minimum_compute_capability, requires.maximum_compute_capability
    if low or high:
        parts.append(f"sm {low}" if low == high else f"sm {low or 'any'} to {high or 'newest'}")
    return ", ".join(parts) or ("CPU or GPU" if requires.cpu else "GPU")


def varying(fields: Sequence[dict[str, Any]], text: Callable[[Any], str]) -> tuple[list[str], str]:
    """The names that differ between shapes, and a text for a title with the other names and their values (by
    text())."""
    names = list(dict.fromkeys(name for each in fields for name in each))
    common = [
        name for name in names if len(fields) > 1 and all(each.get(name) == fields[0].get(name) for each in fields)
    ]
    told = ", ".join(f"{name} {text(fields[0][name])}" for name in common)
    return [name for name in names if name not in common], f", all with {told}" if told else ""


def _workload_table(found: Contract) -> Table:
    workloads = found.workloads
    several = len({workload.origin for workload in workloads}) > 1
    fields = [({"origin": workload.origin} if several else {}) | _fields(workload) for workload in workloads]
    shown, told = varying(fields, _value)
    has_id = any(workload.shape_id is not None for workload in workloads)
    columns = [
        Column("shape" if has_id else "workload", "right" if has_id else "left"),
        *(Column(name, "left" if name in ("origin", "framework") else "right") for name in shown),
        *right("GFLOP", "MB", "flop / byte"),
    ]
    for gpu in found.gpus:
        columns += [Column(f"best on {gpu}", "left"), Column(f"S {gpu}")]
    rows: list[Row] = []
    for workload, each in zip(workloads, fields, strict=True):
        label = workload.uuid[:8] if workload.shape_id is None else str(workload.shape_id)
        sizes = (_value(each.get(name)) for name in shown)
        rows.append((label, *sizes, *_cost_cells(workload), *_best_cells(found, workload)))
    caption = "S: floor over the fastest solution's time." if found.gpus else ""
    if any(best.outdated for own in found.best.values() for best in own.values()):
        caption += f" {OUTDATED} outdated sources."
    return Table(counted(len(workloads), "workload") + told, columns, rows, caption)


def _fields(workload: Workload) -> dict[str, Any]:
    """Sizes, scalars, and the framework in which the shape was seen."""
    seen = {"framework": workload.framework, "calls": workload.call_count}
    return {**workload.axes, **workload.scalars, **{name: value for name, value in seen.items() if value is not None}}


def _cost_cells(workload: Workload) -> Row:
    cost = workload.cost
    if cost is None:
        return ("", "", "")
    moved = cost.bytes_read + cost.bytes_written
    return [*map(amount, (sum(cost.flops.values()) / 1e9, moved / 1e6, arithmetic_intensity(cost)))]


def _best_cells(found: Contract, workload: Workload) -> Iterator[str]:
    for gpu in found.gpus:
        best: RecordedTime | None = found.best[gpu].get(workload.uuid)
        yield f"{best.solution or ''}{OUTDATED if best.outdated else ''}" if best else ""
        yield percent(best.share) if best and best.share is not None else ""


def _value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
