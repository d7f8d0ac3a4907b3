"""derby new solution: a folder that checks right before anybody edits it."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import click

from kernelderby.authoring.solution import LANGUAGES
from kernelderby.cli.options import DerbyCommand, json_option, written_root_option
from kernelderby.cli.output import say, say_json


@click.command(cls=DerbyCommand)
@click.argument("name")
@click.option("--for", "operator", required=True, metavar="OPERATOR", help="What it computes.")
@click.option("--language", type=click.Choice([*LANGUAGES]), default="triton", show_default=True)
@click.option("--author", help="The folder under solutions/ (default: your user name).")
@json_option
@written_root_option
def command(name: str, operator: str, language: str, author: str | None, as_json: bool, root: Path) -> None:
    """Write the solution NAME of OPERATOR. It is right from the start: the reference computes, and a kernel in the
    language copies its result. Replace the reference step by step.

    \b
    derby new solution my_rms_norm --for rms_norm --language triton
    derby check my_rms_norm
    """
    from kernelderby.api.authoring import new_solution

    author = author or re.sub(r"\W", "_", _user())
    written = new_solution(root, name, operator, language, author)
    if as_json:
        return say_json(written.to_json())
    for path in written.files:
        say(f"wrote {path}")
    say(f"next: derby check {name}; edit {written.files[-1]}; derby bench --definitions {operator}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ModuleNotFoundError):  # a container without users
        return "me"
