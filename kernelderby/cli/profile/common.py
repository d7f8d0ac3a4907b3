"""What the profile verbs share: FILE arguments, output options, and the way out to a terminal, a file or a picture.

A verb is written as

    @click.command()
    @files_argument
    @output_options("kernels")
    def command(files: tuple[Path, ...], output: Output) -> None:
        ...
        output.emit([report], {"profiles": [...]}, draw=lambda path: plot.kernel_bars(..., path))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.rendering import rendered
from kernelderby.errors import DerbyError

FORMATS = ("text", "markdown", "csv", "json")
_FILE = click.Path(path_type=Path)

files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how the tables go. block: name of the marker block that `--write` replaces."""

    verb: str
    style: str = "text"
    plot: Path | None = None
    target: Path | None = None
    block: str = ""

    def emit(self, reports: Sequence, data: Any, draw: Callable[[Path], None] | None = None) -> None:
        """Prints the reports (report.model.Report), or data as JSON; or writes them as Markdown into --write's block.

        data: plain values or dataclasses. draw(path) makes the picture of --plot, if the verb has one.
        """
        if self.plot is not None and draw is None:
            raise DerbyError(f"--plot: derby profile {self.verb} has no picture; leave it out")
        if self.target is not None:
            self._write_block(rendered(reports, "markdown"))
        else:
            click.echo((_json(data) if self.style == "json" else rendered(reports, self.style)).rstrip("\n"))
        if self.plot is not None:
            draw(self.plot)
            click.echo(f"derby: {self.plot}: written", err=True)

    def _write_block(self, markdown: str) -> None:
        from kernelderby.report.markers import replace_block

        name = f"profile {self.block or self.verb}"
        changed = replace_block(self.target, name, markdown)
        click.echo(f"derby: {self.target}: block {name} {'written' if changed else 'is up to date'}", err=True)


def output_options(verb: str) -> Callable:
    """Adds --format, --json, --plot, --write and --block, and hands them to the command as one Output, `output`."""

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def wrapped(*, style: str, as_json: bool, plot: Path | None, target: Path | None, block: str, **options):
            style = "json" if as_json else style
            return function(output=Output(verb, style, plot, target, block), **options)

        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        return wrapped

    return decorate


_OPTIONS = (
    click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True),
    click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
    click.option("--plot", type=_FILE, metavar="FILE", help="Draw it too: a .png, .svg or .pdf file."),
    click.option("--write", "target", type=_FILE, metavar="FILE",
                 help="Replace a block <!-- derby profile NAME --> ... <!-- /derby --> in this Markdown file."),
    click.option("--block", default="", metavar="NAME", help="NAME of that block (default: the verb)."),
)


def open_profiles(files: Sequence[Path]) -> list:
    """Every file as a profile.spans.Profile. DerbyError for the first that is none."""
    from kernelderby.profile.sources import open_profile

    return [open_profile(file) for file in files]


def _json(data: Any) -> str:
    import json

    return json.dumps(_plain(data), indent=2, allow_nan=False, default=str)


def _plain(data: Any) -> Any:
    """Dataclasses as dicts; JSON has no infinity, which is null there."""
    if is_dataclass(data) and not isinstance(data, type):
        return _plain(asdict(data))
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


solution_option = click.option("--solution", required=True, metavar="NAME",
                               help="Whose stages: a solution of the trace set.")
within_option = click.option("--within", metavar="REGEX",
                             help="NVTX ranges that mark one invocation of the pipeline each (default: those with the "
                                  "word invocation).")


def pipelines(files: Sequence[Path], root: Path, solution: str, within: str | None) -> list:
    """Every file as a profile.stages.Pipeline of that solution."""
    from kernelderby.catalog import Catalog
    from kernelderby.profile.stages.walk import INVOCATION, pipeline_of

    stages = Catalog.open(root).solution(solution).stages
    return [pipeline_of(profile, stages, solution, stated_total_ns=_stated_total_ns(profile.path),
                        within=within or INVOCATION)
            for profile in open_profiles(files)]


def _stated_total_ns(path: Path) -> float | None:
    """pipeline_total_ms of a TOML file beside a published table, whose source states more than it itemises."""
    from kernelderby.fields import Positive, convert, read_toml

    beside = path.with_suffix(".toml")
    if beside == path or not beside.is_file():
        return None
    total = convert(f"{beside}: pipeline_total_ms", read_toml(beside).get("pipeline_total_ms"), Positive | None)
    return None if total is None else total * 1e6


def short_names(paths: Sequence[str]) -> list[str]:
    """Profiles by their file names; by their paths where two would be alike."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else list(paths)
