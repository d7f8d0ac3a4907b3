"""Names of the set, from its folders: completed by the shell, and refused before anything slow is imported.

eval "$(_DERBY_COMPLETE=bash_source derby)", or zsh_source, fish_source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelderby.errors import DerbyError
from kernelderby.store.locate import find_set
from kernelderby.store.names import OPERATOR, SOLUTION, is_strange, names_in

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Parameter -> what it takes. Names come from the folders: reading the set would keep the reader waiting.
_KINDS = {
    **dict.fromkeys(("operator", "operators", "definitions"), (OPERATOR,)),
    **dict.fromkeys(("solution", "solutions", "base", "candidate", "baseline"), (SOLUTION,)),
    "names": (OPERATOR, SOLUTION),
    "file": (),
    "gpu": ("gpu",),
    "gpus": ("gpu",),
}


class NameParameter(click.types.StringParamType):
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
        if not names and param.name in ("file", "names"):  # a FILE.py: the shell knows these
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(f"{before}{comma}{name}") for name in names]


def complete_names(params: list[click.Parameter]) -> None:
    """Gives the parameters that take names of the set a type that knows them."""
    for param in params:
        if param.name in _KINDS and param.type is click.STRING:
            param.type = NameParameter(_KINDS[param.name])


def expect_names(given: Mapping[str, Any], root: Path) -> None:
    """given: what a verb's parameters got. DerbyError for a plain name that nothing in the set has; what is another
    kind of thing is the verb's to say."""
    for parameter, kinds in _KINDS.items():
        values = given.get(parameter) or ()
        for value in [values] if isinstance(values, str) else values:
            if kinds and "gpu" not in kinds and is_strange(root, value):
                from kernelderby.store.explain import suggestion

                where = "" if root == Path() else f"{root}: "  # the current directory goes without saying
                words = " or ".join(kinds)
                known = {name for kind in kinds for name in names_in(root, kind)}
                known = known or {f"{each}_reference" for each in names_in(root, OPERATOR)}
                near = suggestion(value, known)
                if near.endswith(" more"):  # none is near, and there are too many to read
                    near = "`derby list` names the operators, `derby show OPERATOR` its solutions"
                raise DerbyError(f"{where}no {words} {value!r:.80}; {near}")


def _names(root: Path, kind: str) -> Iterator[str]:
    gpus = (path.stem for path in (Path(__file__).parents[1] / "hardware/gpus").glob("*.toml"))
    return gpus if kind == "gpu" else names_in(root, kind)
