"""derby profile stages: a solution's pipeline, stage by stage, and everything beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import (
    draft_option,
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
    "--solution", "--solutions", "solution", metavar="NAME", help="The solution of the trace set whose stages count."
)
@click.option(
    "--stages",
    "stages_file",
    type=FILE,
    metavar="FILE.toml",
    help="[[stages]] of any pipeline, as in solution.toml, instead of --solution.",
)
@draft_option(help="Write stages from the first FILE's period, to correct, and use them.")
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

    The NVTX range or the name of a kernel decides its stage. If stages share a kernel, its place in the invocation
    decides. --plot draws one bar per FILE, with the share of each stage.
    """
    from kernelderby.errors import DerbyError
    from kernelderby.report.profile.pipelines import stages_answer

    if sum(each is not None for each in (solution, stages_file, draft)) != 1:
        raise DerbyError("give one of --solution NAME, --stages FILE.toml and --draft OUT.toml")
    if stages_file and stages_file.suffix != ".toml":
        raise DerbyError(f"--stages {stages_file}: is no .toml; write [[stages]] as in solution.toml into one")
    if draft:
        write_draft(draft, open_files(files[:1], selection)[0].draft().stages_text())
    named = solution or str(stages_file or draft)
    found = pipelines(files, root, named, within, selection)
    output.emit(stages_answer(found, side_by_side=overview or len(found) > 1, only_overview=overview))
