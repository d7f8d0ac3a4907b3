"""derby profile kernels: every kernel of a profile with its library, role and architecture, and what that tells."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.profile.common import Output, files_argument, open_profiles, output_options
from kernelderby.errors import DerbyError

TOP = 30  # kernels that get a row; a served model has 50 to 200, of which the last hundred are 1 % of the time


@click.command(short_help="Every kernel with its library, role and architecture, and what that tells.")
@files_argument
@click.option("--gpu", metavar="NAME|ID", help='The GPU, such as "NVIDIA H200" or h200 (default: as the profile says).')
@click.option("--top", type=click.IntRange(min=1), metavar="N",
              help=f"Rows for the N largest kernels, the rest summed (default: {TOP}; all in CSV and JSON).")
@output_options("kernels")
def command(files: tuple[Path, ...], gpu: str | None, top: int | None, output: Output) -> None:
    """Where the kernel time of a profile goes, and what to do about it.

    For every kernel: library, source file, role, element type and the architecture that its name betrays; totals by
    each; findings with their numbers. A name that no rule knows stays `unknown` and is counted.
    """
    from kernelderby.profile.kernels.summary import summarise
    from kernelderby.report.profile.kernels import kernels_report

    gpu = _gpu(gpu)
    profiles = open_profiles(files)
    reports, data, tables = [], [], []
    for profile in profiles:
        table = summarise(profile, gpu)
        found, notes = _findings(profile, table)
        is_text = output.style in ("text", "markdown")
        shown = top or (TOP if is_text else None)
        reports.append(kernels_report(table, found, top=shown, full_names=output.style == "csv", notes=notes))
        data.append({"table": table, "findings": found, "notes": notes})
        tables.append(table)
    output.emit(reports, {"profiles": [_plain(entry) for entry in data]}, draw=lambda path: _draw(tables, path, top))


def _gpu(name: str | None) -> str | None:
    from kernelderby.hardware import find_gpu, gpus

    if name is None:
        return None
    known = find_gpu(name)
    if known is None:
        raise DerbyError(f"--gpu {name}: not known; there are {', '.join(gpus())}")
    return known.names[0]


def _findings(profile, table) -> tuple[list, list[str]]:
    """The findings, and what could not be looked for."""
    from kernelderby.hardware import find_gpu
    from kernelderby.profile.kernels.findings import findings
    from kernelderby.profile.timeline import TimelineBuilder

    notes = []
    if table.gpu is None:
        notes.append("the profile names no GPU: kernels for an older architecture cannot be told; give --gpu")
    elif find_gpu(table.gpu) is None:
        notes.append(f"{table.gpu}: not among the known GPUs, so kernels for an older architecture cannot be told")
    builder = TimelineBuilder()
    if profile.has_events:
        for span in profile.spans():
            builder.take(span)
    else:
        notes.append("sums only, no events: launch gaps cannot be told")
    return findings(table, profile.api_sums(), builder.timelines()), notes


def _plain(entry: dict) -> dict:
    """With the properties that dataclasses.asdict leaves out."""
    from dataclasses import asdict

    table = entry["table"]
    return {
        **{key: str(value) if isinstance(value, Path) else value for key, value in asdict(table).items()},
        "unknown": asdict(table.unknown),
        "guessed": asdict(table.guessed),
        "findings": [asdict(each) for each in entry["findings"]],
        "notes": entry["notes"],
    }


def _draw(tables: list, path: Path, top: int | None) -> None:
    """Bars of one profile's kernels; of several, stacked roles."""
    from kernelderby.report import plot

    if len(tables) > 1:
        roles = {table.path.name: {total.key: total.total_ns / 1e6 for total in table.by_role} for table in tables}
        plot.stacked_bars(roles, path, title="Kernel time by role", unit="ms", as_share=True, rest=("unknown",))
        return
    table = tables[0]
    first, rest = table.top(top or 20)
    values = {row.short_name: row.total_ns / 1e6 for row in first}
    groups = {row.short_name: row.library for row in first}
    if rest:
        values[rest.key] = rest.total_ns / 1e6
        groups[rest.key] = "the rest"
    plot.bars(values, path, title=f"Kernels of {table.path.name}", unit="ms", total=table.total_ns / 1e6, groups=groups)
