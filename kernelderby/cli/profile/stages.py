"""derby profile stages: a solution's pipeline, stage by stage, and everything beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import (
    files_argument,
    open_files,
    pipelines,
    selection_options,
    within_option,
    write_draft,
)


@click.command(cls=DerbyCommand, short_help="A solution's pipeline, stage by stage, and everything beside it.")
@files_argument
@click.option(
    "--solution",
    "--solutions",
    "solution",
    metavar="NAME",
    help="The solution of the trace set whose stages count.",
)
@click.option(
    "--stages",
    "stages_file",
    type=FILE,
    metavar="FILE.toml",
    help="[[stages]] of any pipeline, as in solution.toml, instead of --solution.",
)
@click.option(
    "--draft",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OUT.toml",
    help="Write stages from the first FILE's period, to correct, and use them.",
)
@within_option
@click.option("--overview", is_flag=True, help="Only the table that compares the FILEs.")
@selection_options
@output_options("profile stages", tables=("stages", "kernels", "outside"), plot=True)
@root_option
def command(
    files: tuple[Path, ...],
    solution: str | None,
    stages_file: Path | None,
    draft: Path | None,
    within: str | None,
    overview: bool,
    selection: Any,
    root: Path,
    output: Output,
) -> None:
    """Where a pipeline's time goes: stages of the solution, invocations, and all other work.

    Its NVTX range decides the stage of a kernel, else its name. Where stages share a kernel, its place in the
    invocation decides. The picture: one bar per FILE, with the share of each stage.
    """
    from kernelderby.errors import DerbyError
    from kernelderby.report.profile.pipelines import stages_answer

    if sum(each is not None for each in (solution, stages_file, draft)) != 1:
        raise DerbyError("give one of --solution NAME, --stages FILE.toml and --draft OUT.toml")
    if draft:
        write_draft(draft, open_files(files[:1], selection)[0].draft().stages_text())
    named = solution or str(stages_file or draft)
    shown = solution or Path(named).stem
    found = pipelines(files, root, named, within, selection)
    titles = _titles([pipeline.profile for pipeline in found], shown) if overview or len(found) > 1 else None
    output.emit(stages_answer(found, titles, only_overview=overview), draw=lambda path: _draw(found, shown, path))


def _titles(paths: list[str], solution: str) -> list[str]:
    """Of what `derby profile run` wrote the axes ("seq_len901" of triton_compact_seq_len901_cd5fd1a5.sqlite), of other
    files the names; columns are narrow."""
    stems = [Path(path).name.partition(".")[0].removeprefix(f"{solution}_") for path in paths]
    for titles in ([re.sub(r"_[0-9a-f]{8}$", "", stem) for stem in stems], stems):
        if len(set(titles)) == len(titles):
            return titles
    return list(paths)


def _draw(found: list[Any], solution: str, path: Path) -> None:
    from kernelderby.profile.stages.walk import BETWEEN, NOT_ITEMISED
    from kernelderby.report.plot import stacked_bars

    per_invocation = all(pipeline.invocations for pipeline in found)
    names = _titles([pipeline.profile for pipeline in found], solution)
    bars = {
        name: {
            row.name: pipeline.time_ns(row) / 1e3 / (pipeline.invocations if per_invocation else 1e3)
            for row in pipeline.stages
            if row.total_ns
        }
        for name, pipeline in zip(names, found, strict=True)
    }
    gpus = ", ".join(sorted({pipeline.gpu or "GPU not named" for pipeline in found}))
    stacked_bars(
        bars,
        path,
        title=f"{solution}: where the pipeline's kernel time goes ({gpus})",
        as_share=True,
        unit="us an invocation" if per_invocation else "ms in all",
        rest=(BETWEEN, NOT_ITEMISED),
        meanings={row.name: row.title for pipeline in found for row in pipeline.stages},
    )
