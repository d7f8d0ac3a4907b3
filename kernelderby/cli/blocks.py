"""--write: the block of a page that belongs to this command, and its marker."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted

if TYPE_CHECKING:
    from kernelderby.report.markers import PageBlock

# Where an answer goes and what it is read from; all other options belong to the command that a marker holds.
_OUTSIDE = {"root": True, "format": True, "json": False, "table": True, "plot": True, "write": True, "block": True}
_OUTSIDE |= {"bounds": True, "strict": False}
_NAMED = 3  # markers in one message
_PARAMETERS = ("root", "style", "as_json", "table", "plot", "target", "block", "strict")


def write_block(
    context: click.Context, verb: str, page: Path, block: str, markdown: str, left_out: Sequence[str] = ()
) -> str:
    """Fills the block whose marker holds this command; one that holds only the verb gets the command's words. Gives a
    line that says what was done.

    block: name of a block `<!-- derby profile NAME -->`, then that one whatever the command. DerbyError when no marker
    is this command's: a table must not change its meaning in silence. left_out: of the set, since it is broken.
    """
    from kernelderby.report.markers import replace_block

    name = f"profile {block}" if block else verb
    own = f"{verb} {_own_words(context)}".strip()

    def choose(found: list[PageBlock]) -> tuple[PageBlock, str]:
        if block:
            only = _only(page, name, found)
            return only, only.words
        same = [each for each in found if _is_same(context, each.words.removeprefix(verb))]
        if same:
            return _only(page, name, same), same[0].words
        bare = [each for each in found if each.words == verb]
        if bare and len(found) == len(bare) and own.isprintable() and "-->" not in own:
            return _only(page, name, bare), own
        held = "; ".join(f"<!-- derby {each.words} -->" for each in found[:_NAMED])
        held += f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise DerbyError(
            f"{page}: {held}: is not this command, `derby {own}`; give the marker's options, or change the marker"
        )

    changed = replace_block(page, name, markdown, choose, left_out)
    return f"{page}: block {name} {'written' if changed else 'is up to date'}"


def _only(page: Path, name: str, found: list[PageBlock]) -> PageBlock:
    if len(found) != 1:
        raise DerbyError(f"{page}: <!-- derby {name} -->: stands {counted(len(found), 'time')}; write it once")
    return found[0]


def _is_same(context: click.Context, words: str) -> bool:
    """Whether the words of a marker ask for what this command asks for."""
    try:
        arguments = [path for word in shlex.split(words) for path in (sorted(glob(word)) or [word])]
        other = context.command.make_context(context.info_name, arguments, parent=context.parent)
    except (ValueError, click.ClickException, DerbyError):
        return False
    return _question(other.params) == _question(context.params)


def _question(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: _comparable(value) for name, value in parameters.items() if name not in _PARAMETERS}


def _comparable(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    return value.absolute() if isinstance(value, Path) else value


def _own_words(context: click.Context) -> str:
    """The command's words without those that say where the answer goes."""
    words, kept = list(context.meta["kernelderby.words"]), []
    while words:
        word = words.pop(0)
        option, _, value = word.partition("=")
        if option.startswith("--") and option[2:] in _OUTSIDE:
            if _OUTSIDE[option[2:]] and not value and words:
                words.pop(0)
        else:
            kept.append(word)
    return shlex.join(kept)
