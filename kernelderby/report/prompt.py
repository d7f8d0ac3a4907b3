"""One operator as a task for a program that writes kernels: contract, shapes, floors, best times, rules."""

from __future__ import annotations

import json
import re

from kernelderby.catalog import Definition, Workload
from kernelderby.hardware import Gpu
from kernelderby.report import markdown
from kernelderby.report.listing import contract_tables, varying
from kernelderby.report.model import NOT_KNOWN, Column, Report, Row, Table, right
from kernelderby.report.numbers import floor_us, microseconds, percent
from kernelderby.roofline.floors import Floors, floors
from kernelderby.roofline.listing import Contract
from kernelderby.roofline.recorded import RecordedTime
from kernelderby.store.counts import counted

_RULES = (
    "Correctness comes first. The output is compared with the reference on unseen inputs, also very small, large and "
    "skewed ones. Every tolerance must hold, and every output element must be written.",
    "The score is the median time of one call, replayed as a CUDA graph, with a cold L2 cache. A call that cannot be "
    "captured has only its eager time.",
    "Contents change before every call; the buffers' addresses repeat. Do not cache results, do not write into inputs, "
    "and keep no work for later or for another process, stream or thread. Each of these is detected and disqualifies.",
    "The solution must be right for every shape that the contract allows, not only for the shapes above.",
    "Write all code yourself, in one self-contained main.py (CUDA sources may lie beside it). Call no library that "
    "computes the operator as a whole.",
)


def operator_prompt(found: Contract, gpu: Gpu) -> str:
    """gpu: the GPU of the floors and best times. The text holds no source of any solution."""
    definition = found.definition
    tables = [*contract_tables(found), _shapes(found, gpu)]
    rules = "\n".join(f"{number}. {rule}" for number, rule in enumerate(_RULES, 1))
    relations = "".join(f"- {markdown.code(each)}\n" for each in definition.constraints)
    ranked = markdown.code(f"derby rank {definition.name}")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", definition.reference) or [""]))
    return f"""# Task: the fastest {markdown.code(definition.name)} on {gpu.names[0]}

Write a kernel that computes the operator below in as little time as possible, for all of its shapes.

## Contract

{markdown.render(Report(definition.name, (definition.description,), tuple(tables[:-1])))}
{f"These relations between axes hold:{chr(10)}{chr(10)}{relations}{chr(10)}" if relations else ""}\
The reference (`run`) and how inputs are made, in plain torch:

{fence}python
{definition.reference.strip()}
{fence}

## Shapes

{markdown.render(Report(gpu.names[0], _hardware(gpu), (tables[-1],)))}
## Rules

{rules}

## What to write

A folder with two files. `solution.toml`:

```toml
{_toml(definition)}
```

`main.py`, whose entry point gets the inputs in order, then the outputs to write into:

```python
{_entry_point(definition)}
```

`derby check NAME` compares it with the reference, `derby bench --solutions NAME` measures it,
`derby explain NAME --workload W` says what bounds it, and {ranked} compares it with the others.
"""


def _toml(definition: Definition) -> str:
    return f"""name = "NAME"  # unique in the set
definition = {json.dumps(definition.name, ensure_ascii=False)}
author = "AUTHOR"
language = "triton"  # or cuda, python, tilelang
entry_point = "main.py::run"
destination_passing_style = true
target_hardware = []
dependencies = []
description = "What it does differently, in a sentence or two."

[requires]
modules = ["triton"]
executables = []"""


def _entry_point(definition: Definition) -> str:
    return f"def run({', '.join([*definition.inputs, *definition.outputs])}):\n    ..."


def _hardware(gpu: Gpu) -> tuple[str, ...]:
    peaks = ", ".join(f"{dtype} {flops / 1e12:.0f}" for dtype, flops in gpu.flops_per_second.items())
    return (f"Peak bandwidth {gpu.memory_bytes_per_second / 1e12:.2f} TB/s; peak TFLOP/s: {peaks}",)


def _shapes(found: Contract, gpu: Gpu) -> Table:
    """Values that are equal in all shapes are in the title."""
    fields = [{**each.axes, **each.scalars} for each in found.workloads]
    shown, told = varying(fields, str)
    best = found.best.get(gpu.id, {})
    rows: list[Row] = []
    for workload, own in zip(found.workloads, fields, strict=True):
        sizes = (str(own.get(name, "")) for name in shown)
        rows.append((workload.uuid[:8], *sizes, *_floor_cells(workload, gpu), *_best_cells(best.get(workload.uuid))))
    titles = (*shown, "memory floor us", "compute floor us", "best us", "S")
    columns = (Column("workload", "left"), *right(*titles), Column("by", "left"))
    caption = (
        "Floors at the GPU's peaks. Best: the fastest time of any solution measured there. S: larger floor over time."
    )
    return Table(counted(len(rows), "shape") + told, columns, rows, caption)


def _floor_cells(workload: Workload, gpu: Gpu) -> Row:
    found: Floors | None = floors(workload.cost, gpu) if workload.cost else None
    return (floor_us(found.memory_us), floor_us(found.compute_us)) if found else (NOT_KNOWN, NOT_KNOWN)


def _best_cells(best: RecordedTime | None) -> Row:
    if best is None:
        return None, None, None
    share = NOT_KNOWN if best.share is None else percent(best.share)
    return microseconds(best.latency_us), share, best.solution or ""
