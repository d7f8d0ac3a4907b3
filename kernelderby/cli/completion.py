"""Names of the set for the shell: eval "$(_DERBY_COMPLETE=bash_source derby)", or zsh_source, fish_source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelderby.errors import DerbyError
from kernelderby.locate import find_set

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Parameter -> what it takes. Names come from the folders: reading the set would keep the reader waiting.
_KINDS = {
    **dict.fromkeys(("operator", "operators", "definitions"), ("operator",)),
    **dict.fromkeys(("solution", "solutions", "base", "candidate", "baseline"), ("solution",)),
    "names": ("operator", "solution"),
    "gpu": ("gpu",),
    "gpus": ("gpu",),
}


class Known(click.types.StringParamType):
    """A name, or several with commas, of which the last one is completed."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds

    def shell_complete(self, context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        given = context.params.get("root") or (context.parent.params.get("root") if context.parent else None)
        try:
            root = Path(given or find_set())
        except DerbyError:
            return []
        names = sorted({name for kind in self.kinds for name in _names(root, kind) if name.startswith(last)})
        return [CompletionItem(f"{before}{comma}{name}") for name in names]


def complete_names(params: list[click.Parameter]) -> None:
    """Gives the parameters that take names of the set a type that knows them."""
    for param in params:
        if param.name in _KINDS and param.type is click.STRING:
            param.type = Known(_KINDS[param.name])


def _names(root: Path, kind: str) -> Iterator[str]:
    if kind == "operator":
        yield from (path.stem for path in root.glob("definitions/*/*.json"))
    elif kind == "solution":
        yield from (path.stem for path in root.glob("solutions/*/*/*/*.json"))
        yield from (path.parent.name for path in root.glob("solutions/*/*/*/*/solution.toml"))
    else:
        yield from (path.stem for path in (Path(__file__).parents[1] / "hardware/gpus").glob("*.toml"))
