"""The one way out: --format, --json, --table, --write, --plot, colour and width, for every verb that prints a table.

    @click.command(cls=DerbyCommand)
    @output_options("rank", tables=("solutions", "workloads"))
    def command(..., output: Output) -> None:
        ...
        output.emit(answer)

Tables and JSON go to stdout; warnings and what was written to stderr, one line each.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelderby.cli.options import FILE, strict_option
from kernelderby.errors import DerbyError

if TYPE_CHECKING:
    from kernelderby.report.answer import Answer

FORMATS = ("text", "markdown", "csv", "json")


@dataclass(frozen=True, slots=True)
class Output:
    """style: one of FORMATS. is_chosen: it was asked for, so that it is printed beside --write. table: of the CSV."""

    verb: str
    context: click.Context
    style: str = "text"
    is_chosen: bool = False
    table: str | None = None
    plot: Path | None = None
    target: Path | None = None
    block: str = ""
    strict: bool = False

    @property
    def is_json(self) -> bool:
        return self.style == "json"

    def emit(self, answer: Answer[Any]) -> None:
        """Prints the answer (report.answer.Answer), writes it into --write's block, draws --plot."""
        if self.plot is not None:
            from kernelderby.report.plot import expect_picture

            if answer.draw is None:
                raise DerbyError(f"--plot: derby {self.verb} has no picture; leave it out")
            expect_picture(self.plot)
        if self.strict:
            expect_whole(answer.left_out)
        warn(answer.warnings)
        if self.target is not None:
            from kernelderby.cli.blocks import write_block

            warn([write_block(self.context, self.verb, self.target, self.block, answer.to_markdown(), answer.left_out)])
        if self.target is None or self.is_chosen:
            say(self._rendered(answer))
        if self.plot is not None and answer.draw is not None:
            answer.draw(self.plot)
            warn([f"{self.plot}: written"])

    def _rendered(self, answer: Answer[Any]) -> str:
        if self.style == "json":
            return answer.to_json()
        if self.style == "csv":
            return answer.to_csv(table=self.table)
        if self.style == "markdown":
            return answer.to_markdown()
        return answer.to_text(text_width(), has_color(sys.stdout))


def output_options(
    verb: str, tables: Sequence[str], *, plot: bool = False, write: bool = True, of_set: bool = False
) -> Callable[..., Any]:
    """Adds the options and hands them to the command as one Output, `output`. tables: names of the answer's frames.
    of_set: the verb reads a whole set, so that it has --strict."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapped(*, style: str, as_json: bool, table: str | None, **options: Any) -> Any:
            context = click.get_current_context()
            taken = {name: options.pop(name) for name in ("plot", "target", "block", "strict") if name in options}
            is_chosen = as_json or context.get_parameter_source("style") is not click.core.ParameterSource.DEFAULT
            style = "json" if as_json else style
            if table is not None and style != "csv":
                raise click.UsageError("--table goes with --format csv: the other formats have all tables")
            return function(output=Output(verb, context, style, is_chosen, table, **taken), **options)

        for option in reversed(_options(tables, plot, write, of_set)):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _options(tables: Sequence[str], plot: bool, write: bool, of_set: bool) -> list[Callable[..., Any]]:
    options = [
        click.option("--format", "style", type=click.Choice(FORMATS), default="text", show_default=True),
        click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
        click.option("--table", type=click.Choice(tables), help="The table for --format csv (default: the first)."),
    ]
    if of_set:
        options.append(strict_option)
    if plot:
        picture = "Also draw a picture: a .png, .svg or .pdf file."
        options.append(click.option("--plot", type=FILE, metavar="FILE", help=picture))
    if write:  # for who keeps the docs: CONTRIBUTING.md
        page = "Put the Markdown between <!-- derby COMMAND --> (this command) and <!-- /derby --> in this file."
        block = "With --write: the block <!-- derby profile NAME --> of the file, whatever its command."
        options += [
            click.option("--write", "target", hidden=True, type=FILE, metavar="FILE", help=page),
            click.option("--block", hidden=True, default="", metavar="NAME", help=block),
        ]
    return options


def expect_whole(left_out: Sequence[str]) -> None:
    """--strict. DerbyError where anything of the set was left out."""
    if left_out:
        error = DerbyError(f"--strict: {len(left_out)} of the set left out; mend or remove what is named above")
        for problem in left_out:
            error.add_note(problem)
        raise error


def say(text: str) -> None:
    """To stdout, ending in one line break. Not by click.echo, which writes UTF-8 where stdout is ASCII."""
    print(text.rstrip("\n"), flush=True)


def say_line(text: str) -> None:
    """One line, without control characters: for names and messages from data."""
    from kernelderby.report.plain import one_line

    say(one_line(text))


def say_json(data: Any) -> None:
    from kernelderby.report.answer import to_json

    say(to_json(data))


def warn(lines: Iterable[str]) -> None:
    """To stderr, one line each, without control characters."""
    from kernelderby.report.plain import one_line

    for line in lines:
        print(f"derby: {one_line(str(line))}", file=sys.stderr, flush=True)


def has_color(stream: Any) -> bool:
    """Colour is for a terminal that has not declined it (no-color.org)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def text_width() -> int:
    """$COLUMNS, else the terminal's columns, else 80."""
    from kernelderby.report.answer import PIPE_WIDTH

    return max(40, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)
