"""Shared by the profile verbs: FILE arguments and a solution's pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
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
    help="The solution of the trace set whose stages count.",
)
draft_option = partial(click.option, "--draft", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT.toml")
within_option = click.option(
    "--within",
    metavar="REGEX",
    help="NVTX ranges that mark one invocation of the pipeline each (default: those with the word invocation).",
)


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --window, --range, --device, --process, --stream, --repetition, and hands them on as `selection`."""
    words = {"window": None, "inside": "within", "device": None, "process": None, "stream": None, "repetition": None}

    @wraps(function)
    def wrapped(**options: Any) -> Any:
        from kernelderby.profile.filters import make_selection

        chosen = {made or word: options.pop(word) for word, made in words.items()}
        return function(selection=make_selection(**chosen), **options)

    for option in (
        click.option(
            "--repetition", metavar="N[-M]", help="Only these repetitions of the ranges of --range; the first is 1."
        ),
        click.option("--stream", type=int, metavar="N", help="Only this stream."),
        click.option("--process", type=int, metavar="PID", help="Only this process."),
        click.option("--device", type=int, metavar="N", help="Only the GPU of this number."),
        click.option("--range", "inside", metavar="REGEX", help="Only work launched in such an NVTX range."),
        click.option(
            "--window", metavar="FROM:TO", help="Only work that starts then, from the first operation: 1.5s:2s, :300ms."
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def write_draft(path: Path, text: str) -> None:
    """Written whole; DerbyError for a name that does not end in .toml, or a folder that does not exist."""
    from kernelderby.errors import DerbyError
    from kernelderby.store.files import write_whole

    if path.suffix != ".toml":
        raise DerbyError(f"{path}: a draft is a .toml file; end the name so")
    if not path.parent.is_dir():
        raise DerbyError(f"{path}: no such folder; name an existing folder")
    write_whole(path, text)


def open_files(files: Sequence[Path], selection: Any = None) -> list[Any]:
    """Every file as a ProfileFile, with only what the selection takes."""
    from kernelderby.api.profile_file import open_profile_file

    return [open_profile_file(file).select(selection) for file in files]


def pipelines(files: Sequence[Path], root: Path, solution: str, within: str | None, selection: Any = None) -> list[Any]:
    """Every file as a profile.stages.walk.Pipeline of that solution. DerbyError: no stage of it occurs in one."""
    from kernelderby.api.profile_file import staged, stages_of
    from kernelderby.errors import DerbyError

    opened = open_files(files, selection)
    stages = stages_of(solution, root)
    found = [staged(each, solution, stages, within) for each in opened]
    for pipeline in found:
        if not pipeline.occurs:
            raise DerbyError(
                f"{pipeline.profile}: nothing in it fits a stage of {solution}; is it a profile of another solution? "
                "`derby profile kernels` shows what ran"
            )
    return found
