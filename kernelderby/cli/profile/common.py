"""What the profile verbs share: FILE arguments and a solution's pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE

files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
solution_option = click.option(
    "--solution",
    "--solutions",
    "solution",
    required=True,
    metavar="NAME",
    help="Whose stages: one solution of the trace set.",
)
within_option = click.option(
    "--within",
    metavar="REGEX",
    help="NVTX ranges that mark one invocation of the pipeline each (default: those with the word invocation).",
)


def pipelines(files: Sequence[Path], root: Path, solution: str, within: str | None) -> list[Any]:
    """Every file as a profile.stages.walk.Pipeline of that solution."""
    from kernelderby.api.profile_file import open_profile_file

    return [open_profile_file(file).pipeline(solution, root, within=within) for file in files]


def short_names(paths: Sequence[str]) -> list[str]:
    """Profiles by their file names; by their paths where two would be alike."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else list(paths)
