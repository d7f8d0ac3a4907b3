"""derby roofline: the floors of every workload on a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from kernelderby.cli import json_option, root_option
from kernelderby.records import DerbyError

_UNITS = {"memory_us": "memory floor, us", "compute_us": "compute floor, us", "flops_per_byte": "flop / byte"}


@click.command()
@click.argument("definition", required=False)
@click.option("--gpu", "gpu_name", default="h200", show_default=True, help="Id or name of a GPU.")
@click.option("--format", "style", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@click.option("--write", "file", type=click.Path(path_type=Path),
              help="Put the Markdown table between <!-- derby roofline --> and <!-- /derby --> in this file.")
@root_option
@json_option
def command(definition: str | None, gpu_name: str, style: str, file: Path | None, root: Path, as_json: bool) -> None:
    """Per workload: what it must do at least, and how fast that could go on a GPU.

    The floors are the vendor's peak bandwidth and dense arithmetic against the counted cost; no kernel reaches them.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.catalog.fields import suggestion
    from kernelderby.hardware import find_gpu, gpus

    catalog = Catalog.open(root)
    gpu = find_gpu(gpu_name)
    if gpu is None:
        raise DerbyError(f"--gpu: kernelderby/hardware/gpus has no {gpu_name!r}; {suggestion(gpu_name, gpus())}")
    names = [catalog.definition(definition).name] if definition else list(catalog.definitions)
    tables = {name: _rows(catalog, name, gpu) for name in names}
    captions = {name: _caption(name, _dtypes(catalog, name), gpu) for name in names}
    markdown = "\n\n".join(_markdown(captions[name], rows) for name, rows in tables.items())
    if file is not None:
        from kernelderby.report.markers import replace_block

        changed = replace_block(file, "roofline", markdown)
        print(f"{file}: {'written' if changed else 'is up to date'}")
    elif as_json:
        print(json.dumps({"gpu": gpu.id, "source": gpu.source, "date": gpu.date, "definitions": tables}))
    elif style == "markdown":
        print(markdown)
    else:
        for name, rows in tables.items():
            _print_table(captions[name], rows)


def _rows(catalog, name: str, gpu) -> list[dict[str, Any]]:
    """One row per workload, by its variable axes: axes and scalars, facts of the cost, floors."""
    from kernelderby.roofline import arithmetic_intensity, floors

    rows = []
    for workload in sorted(catalog.workloads(name), key=lambda workload: list(workload.axes.values())):
        where = f"{catalog.workloads_path(name)}: workload {workload.uuid}: cost:"
        if workload.cost is None:
            raise DerbyError(f"{where} is missing; run derby pack")
        floor = floors(workload.cost, gpu)
        if floor is None:
            raise DerbyError(f"{where} counts {', '.join(workload.cost.flops)}, for which {gpu.id} has no peak; "
                             "give another --gpu")
        integers = {key: value for key, value in workload.scalars.items() if isinstance(value, int)}
        rows.append({**workload.axes, **integers, **workload.cost.facts, "memory_us": floor.memory_us,
                     "compute_us": floor.compute_us, "flops_per_byte": arithmetic_intensity(workload.cost),
                     "regime": floor.regime})
    return rows


def _dtypes(catalog, name: str) -> list[str]:
    """The dtypes that the costs of a definition count flops in."""
    return sorted({dtype for workload in catalog.workloads(name) for dtype in workload.cost.flops})


def _title(field: str) -> str:
    return _UNITS.get(field) or ("weight MB" if field == "weight_bytes" else field.replace("_", " "))


def _cell(field: str, value: Any) -> str:
    """Bytes as decimal MB, times and ratios to three digits or whole, everything else as it is."""
    if field.endswith("_bytes"):
        return f"{value / 1e6:.1f}"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def _caption(name: str, dtypes: list[str], gpu) -> str:
    peaks = "".join(f", {dtype} {gpu.flops_per_second[dtype] / 1e12:g} TFLOP/s dense" for dtype in dtypes)
    return f"{name} on {gpu.names[0]}: {gpu.memory_bytes_per_second / 1e12:g} TB/s{peaks} ({gpu.source}, {gpu.date})"


def _markdown(caption: str, rows: list[dict[str, Any]]) -> str:
    lines = [caption, ""]
    if rows:
        lines += ["| " + " | ".join(map(_title, rows[0])) + " |", "|" + " ---: |" * len(rows[0])]
        lines += ["| " + " | ".join(_cell(*item) for item in row.items()) + " |" for row in rows]
    return "\n".join(lines)


def _print_table(caption: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    print(caption)
    table = Table(box=None)
    for field in rows[0] if rows else ():
        table.add_column(_title(field), justify="right")
    for row in rows:
        table.add_row(*(_cell(*item) for item in row.items()))
    # A pipe gets whole lines: a table cut to 80 columns is of no use to grep.
    Console(width=None if sys.stdout.isatty() else 240).print(table)
