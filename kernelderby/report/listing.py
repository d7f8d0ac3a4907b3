"""A Listing as one table; a Contract as tables of its axes, inputs, outputs, tolerances, solutions and workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelderby.catalog import Definition, Requires, TensorSpec, Tolerance, Workload
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import BLANK, Column, Report, Table, TableCell
from kernelderby.report.numbers import amount, percent
from kernelderby.roofline.floors import arithmetic_intensity
from kernelderby.roofline.listing import Contract, ListedOperator, Listing
from kernelderby.roofline.recorded import Reached
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
            {
                "name": each.name,
                "op_type": each.op_type,
                "dtypes": each.dtypes,
                "shapes": each.shapes,
                "other_shapes": each.others,
                "importance_percent": each.importance,
                "solutions": each.solutions,
                "best": {gpu: {"s": share.measured, "shapes": share.shapes} for gpu, share in each.shares.items()},
            }
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
        "tolerances": [asdict(each) for each in definition.tolerances],
        "solutions": [
            {
                "name": each.name,
                "author": each.author,
                "description": each.description,
                "aliases": each.aliases,
                "requires": asdict(each.requires),
            }
            for each in found.solutions
        ],
        "gpus": found.gpus,
        "workloads": [_workload_data(found, each) for each in found.workloads],
    }


def _workload_data(found: Contract, workload: Workload) -> dict[str, Any]:
    return {
        "uuid": workload.uuid,
        **{name: getattr(workload, name) for name in ("shape_id", "origin", "framework", "call_count")},
        "axes": workload.axes,
        "scalars": workload.scalars,
        "cost": workload.cost and asdict(workload.cost),
        "best": {gpu: _best_data(own[workload.uuid]) for gpu, own in found.best.items() if workload.uuid in own},
    }


def _best_data(reached: Reached) -> dict[str, Any]:
    return {name: getattr(reached, name) for name in ("solution", "latency_us", "share", "outdated")}


def _contract_frames(found: Contract, root: Path) -> tuple[Frame, ...]:
    data = _contract_data(found, root)
    named = [
        frame(part, ({"name": name} | fields for name, fields in data[part].items()))
        for part in ("axes", "inputs", "outputs")
    ]
    return (
        frame("workloads", data["workloads"]),
        frame("solutions", data["solutions"]),
        *named,
        frame("tolerances", data["tolerances"]),
    )


def listing_report(found: Listing) -> Report:
    shapes = sum(operator.shapes for operator in found.operators)
    others = sum(sum(operator.others.values()) for operator in found.operators)
    count = len(found.operators)
    operators = f"{count} of {counted(found.of_operators, 'operator')}"
    operators = operators if count < found.of_operators else counted(count, "operator")
    columns = (
        Column("operator", "left"),
        Column("op_type", "left", is_optional=True),
        Column("dtype", "left", is_optional=True),
        Column("shapes"),
        Column("importance"),
        Column("solutions"),
        *(Column(f"best S {gpu}") for gpu in found.gpus),
    )
    captions = []
    if any(operator.importance is not None for operator in found.operators):
        captions.append("Importance: share of GPU time in production, as published.")
    if found.gpus:
        captions.append(
            "S: floor over the fastest solution's time, median over the shapes (timed/all, where not all); rows of the "
            "newest protocol."
        )
    rows = tuple(_operator_row(each, found.gpus) for each in found.operators)
    if others:
        captions.append("After a +: shapes of other origins, which do not count in S (--origin).")
    return Report(
        f"{operators}, {counted(shapes, 'shape')}" + (f" + {others} of other origins" * bool(others)),
        (),
        (Table("Operators", columns, rows, " ".join(captions)),),
    )


def _operator_row(operator: ListedOperator, gpus: Sequence[str]) -> tuple[TableCell, ...]:
    cells = [
        TableCell(operator.name),
        TableCell(operator.op_type),
        TableCell(", ".join(operator.dtypes)),
        TableCell(_shape_count(operator)),
        BLANK if operator.importance is None else TableCell(f"{operator.importance:.1f}%"),
        TableCell(str(operator.solutions), "" if operator.solutions else "bad"),
    ]
    for gpu in gpus:
        share = operator.shares.get(gpu)
        if share is None:
            cells.append(BLANK)
        else:
            part = "" if share.shapes == share.of_shapes else f" ({share.shapes}/{share.of_shapes})"
            cells.append(TableCell(percent(share.measured) + part) if share.measured is not None else BLANK)
    return tuple(cells)


def _shape_count(operator: ListedOperator) -> str:
    others = sum(operator.others.values())
    return f"{operator.shapes}+{others}" if others else str(operator.shapes)


def contract_report(found: Contract, root: Path) -> Report:
    definition = found.definition
    facts = [definition.op_type, ", ".join(found.dtypes), str(_inside(definition, root))]
    if found.importance is not None:
        facts.append(f"{found.importance:.1f}% of GPU time in production")
    tables = contract_tables(found)
    tables += [_solution_table(found)] if found.solutions else []
    tables += [_workload_table(found)] if found.workloads else []
    return Report(
        definition.name, tuple(line for line in (" · ".join(facts), definition.description) if line), tuple(tables)
    )


def contract_tables(found: Contract) -> list[Table]:
    """Axes, inputs, outputs and tolerances."""
    tables = [_axes_table(found), _tensor_table(found, "inputs"), _tensor_table(found, "outputs")]
    return tables + ([_tolerance_table(found.definition.tolerances)] if found.definition.tolerances else [])


def _inside(definition: Definition, root: Path) -> Path:
    path = definition.source_path or definition.path
    return path.relative_to(root)


def _prose(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose last column is text: it is wrapped, not split off, since every column is a key column."""
    return Table(title, tuple(columns), tuple(tuple(map(TableCell, row)) for row in rows), key_columns=len(columns))


def _axes_table(found: Contract) -> Table:
    described = found.descriptions["axes"]
    return _prose(
        "Axes",
        [Column("axis", "left"), Column("size"), Column("description", "left")],
        [(name, "var" if size is None else str(size), described[name]) for name, size in found.definition.axes.items()],
    )


def _tensor_table(found: Contract, part: str) -> Table:
    tensors: dict[str, TensorSpec] = getattr(found.definition, part)
    described = found.descriptions[part]
    columns = [
        Column(part.removesuffix("s"), "left"),
        Column("shape", "left"),
        Column("dtype", "left"),
        Column("description", "left"),
    ]
    return _prose(
        part.capitalize(),
        columns,
        [
            (name, "scalar" if spec.shape is None else f"[{', '.join(spec.shape)}]", spec.dtype, described[name])
            for name, spec in tensors.items()
        ],
    )


def _tolerance_table(tolerances: Sequence[Tolerance]) -> Table:
    columns = [
        Column("tolerance", "left"),
        Column("outputs", "left"),
        Column("atol"),
        Column("rtol"),
        Column("must match"),
        Column("reason", "left"),
    ]
    table = _prose(
        "Tolerances",
        columns,
        [
            (
                each.name,
                ", ".join(each.outputs) or "all",
                f"{each.atol:g}",
                f"{each.rtol:g}",
                f"{100 * each.required_matched_ratio:g}%" + _bounds(each),
                each.reason,
            )
            for each in tolerances
        ],
    )
    return Table(
        table.title,
        table.columns,
        table.rows,
        key_columns=table.key_columns,
        caption="An element fails when its absolute error exceeds atol and its relative error exceeds rtol.",
    )


def _bounds(tolerance: Tolerance) -> str:
    bounds = {"row": tolerance.row_error, "scale": tolerance.scale_error}
    return "".join(f", {name} {bound:g}" for name, bound in bounds.items() if bound is not None)


def _solution_table(found: Contract) -> Table:
    columns = [
        Column("solution", "left"),
        Column("author", "left"),
        Column("needs", "left"),
        Column("description", "left"),
    ]
    return _prose(
        "Solutions",
        columns,
        [
            (
                each.name,
                each.author,
                _needs(each.requires),
                each.description + (f" Also called {', '.join(each.aliases)}." if each.aliases else ""),
            )
            for each in found.solutions
        ],
    )


def _needs(requires: Requires) -> str:
    """Modules, executables, compute capability; without any, whether a CPU will do."""
    parts = [*requires.modules, *requires.executables]
    low, high = requires.minimum_compute_capability, requires.maximum_compute_capability
    if low or high:
        parts.append(f"sm {low}" if low == high else f"sm {low or 'any'} to {high or 'newest'}")
    return ", ".join(parts) or ("CPU or GPU" if requires.cpu else "GPU")


# Workloads ------------------------------------------------------------------------------------------------------------


def _workload_table(found: Contract) -> Table:
    workloads = found.workloads
    several = len({workload.origin for workload in workloads}) > 1
    fields = [({"origin": workload.origin} if several else {}) | _fields(workload) for workload in workloads]
    names = list(dict.fromkeys(name for each in fields for name in each))
    common = [
        name for name in names if len(fields) > 1 and all(each.get(name) == fields[0].get(name) for each in fields)
    ]
    shown = [name for name in names if name not in common]
    has_id = any(workload.shape_id is not None for workload in workloads)
    columns = [
        Column("shape" if has_id else "workload", "right" if has_id else "left"),
        *(Column(name, "left" if name in ("origin", "framework") else "right") for name in shown),
        Column("GFLOP"),
        Column("MB"),
        Column("flop / byte"),
    ]
    for gpu in found.gpus:
        columns += [Column(f"best on {gpu}", "left"), Column(f"S {gpu}")]
    rows = tuple(
        (
            TableCell(_label(workload, has_id)),
            *(TableCell(_value(each.get(name))) for name in shown),
            *_cost_cells(workload),
            *_best_cells(found, workload),
        )
        for workload, each in zip(workloads, fields, strict=True)
    )
    return Table(
        counted(len(workloads), "workload") + (f", all with {_listed(fields[0], common)}" if common else ""),
        tuple(columns),
        rows,
        _workload_caption(found),
    )


def _fields(workload: Workload) -> dict[str, Any]:
    """Sizes and scalars, and where the shape was seen."""
    seen = {"framework": workload.framework, "calls": workload.call_count}
    return {**workload.axes, **workload.scalars, **{name: value for name, value in seen.items() if value is not None}}


def _listed(fields: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {_value(fields[name])}" for name in names)


def _label(workload: Workload, has_id: bool) -> str:
    return ("" if workload.shape_id is None else str(workload.shape_id)) if has_id else workload.uuid[:8]


def _cost_cells(workload: Workload) -> tuple[TableCell, ...]:
    cost = workload.cost
    if cost is None:
        return BLANK, BLANK, BLANK
    moved = cost.bytes_read + cost.bytes_written
    return tuple(
        TableCell(amount(value)) for value in (sum(cost.flops.values()) / 1e9, moved / 1e6, arithmetic_intensity(cost))
    )


def _best_cells(found: Contract, workload: Workload) -> list[TableCell]:
    cells = []
    for gpu in found.gpus:
        best: Reached | None = found.best[gpu].get(workload.uuid)
        if best is None:
            cells += [BLANK, BLANK]
        else:
            share = BLANK if best.share is None else TableCell(percent(best.share))
            cells += [TableCell((best.solution or "") + (OUTDATED if best.outdated else "")), share]
    return cells


def _workload_caption(found: Contract) -> str:
    if not found.gpus:
        return ""
    outdated = any(best.outdated for own in found.best.values() for best in own.values())
    return "S: floor over the fastest solution's time." + (f" {OUTDATED} outdated sources." if outdated else "")


def _value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
