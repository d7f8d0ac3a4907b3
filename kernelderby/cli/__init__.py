"""The command `derby`: one module per verb, imported when that verb runs, so that `derby --help` stays quick."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from kernelderby import __version__
from kernelderby.cli.options import root_option
from kernelderby.cli.signals import Signalled, finish, unwind_on_signals
from kernelderby.cli.streams import make_streams_safe
from kernelderby.errors import DerbyError
from kernelderby.store.locate import install_words

# Name -> the line that `derby --help` shows. Each verb is kernelderby/cli/<name>.py with a click command `command`.
VERBS = {
    "doctor": "Which solutions this machine can run, and what the others lack.",
    "pack": "Write the JSON and blobs that flashinfer-bench loads.",
    "list": "The operators: shapes, importance, solutions, best S.",
    "show": "One operator: its contract, solutions and workloads.",
    "prompt": "One operator as a task for a program that writes kernels.",
    "new": "Write a new operator or solution that passes the check.",
    "shapes": "Workloads from a model's config.json; the set of models.",
    "check": "Compare solutions with the reference, on a GPU or a CPU.",
    "bench": "Measure solutions on this GPU and record the rows.",
    "gate": "For CI: is a candidate slower than a base, on this GPU?",
    "tune": "Find a solution's fastest configurations on this GPU.",
    "verify": "Prove that rows of sealed sessions are whole and unchanged.",
    "rank": "Compare solutions, or authors over all operators, from rows.",
    "explain": "What limits a solution on a workload, and what to try next.",
    "field": "The libraries in the race: version, dates, what is missing.",
    "roofline": "The minimum time of every shape, and how near kernels come.",
    "profile": "Where the time goes: kernels, stages, layers, comparison.",
    "capture": "Workloads from a server's profile; what faster kernels save.",
    "report": "Everything on one HTML page, or Markdown for a pull request.",
    "certify": "Keep rows after a change that left the machine code as it was.",
    "merge": "Add the rows of other sets to this one.",
    "mcp": "A server for programs that write kernels (MCP).",
    "export": "Copy the set into a dataset, or its fastest into a package.",
    "serve-bench": "Tokens per second: our fastest kernels beside libraries.",
}


_OF_MEASURING = ("torch", "safetensors", "triton")  # pyproject's extra `measure`


class UnknownVerb(DerbyError):
    """A wrong use of the command: one line, and exit code 2."""


class LazyGroup(click.Group):
    """A group that knows its verbs' names and help lines without importing them; each is a module of the package."""

    def __init__(self, *arguments: Any, verbs: dict[str, str], package: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.verbs, self.package = verbs, package

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.verbs]  # list() is kernelderby.cli.list here, once that verb was imported

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.verbs:
            return None
        command: click.Command = importlib.import_module(f"{self.package}.{name.replace('-', '_')}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*self.verbs.items()])

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if name not in self.verbs:
            near = get_close_matches(name, self.verbs, n=3)
            known = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(self.verbs)}"
            raise UnknownVerb(f"no command {name!r}; {known}")
        return super().resolve_command(context, arguments)


@click.group(cls=LazyGroup, verbs=VERBS, package=__name__, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="derby")
@root_option
def derby(root: Path) -> None:
    """Competing GPU kernels for one operator: checked, measured, ranked and compared with the hardware's limit."""


def main() -> None:
    """Entry point: a DerbyError is one line on stderr and exit code 1; a wrong option is click's message and 2."""
    make_streams_safe()
    unwind_on_signals()
    gc.set_threshold(5_000_000, 50, 50)  # rows by the hundred thousand live to the end: nothing is found among them
    try:
        for word in sys.argv[1:]:
            if re.search(r"\d{100}", word):  # int() refuses the longest, float() those of more than 308 digits
                raise DerbyError(f"{word[:40]}...: holds a number of 100 digits or more; write a smaller one")
        derby(prog_name="derby")
    except Signalled as ended:
        ended.tell()
        raise
    except SystemExit:
        finish()
        raise
    except (DerbyError, OSError, MemoryError, ImportError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in _OF_MEASURING:
            raise
        from kernelderby.cli.output import warn

        warn([*getattr(error, "__notes__", ()), _told(error)])
        finish()
        sys.exit(2 if isinstance(error, UnknownVerb) else 1)


def _told(error: Exception) -> str:
    """In one line, with the mend."""
    if isinstance(error, OSError):  # of a file or folder that nobody foresaw to be like that
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
        told = error.strerror or str(error)
        unnamed = f"{told}; look at where the output goes, and at the current directory"
        return f"{where}: {told}; mend that place, or name another" if where else unnamed
    if isinstance(error, MemoryError):
        return "there is not enough memory for what the files hold; name fewer of them, or end other programs"
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{error.name} is not installed, which measuring and checking need (rank, report, roofline and profile do "
            f"not); {install_words('measure')}"
        )
    if isinstance(error, ImportError):
        name = error.name or "a library"
        return f"{name}: cannot be loaded ({error}); end other programs if memory is short, or install it again"
    return str(error)
