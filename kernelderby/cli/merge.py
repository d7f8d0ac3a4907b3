"""derby merge: rows of machines that never met."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, json_option, written_root_option
from kernelderby.cli.output import say, say_json, say_line, warn
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand)
@click.argument("folders", metavar="DIR...", type=FILE, nargs=-1, required=True)
@written_root_option
@json_option
def command(folders: tuple[Path, ...], root: Path, as_json: bool) -> None:
    """Add the rows of other trace sets (or of their traces folders) to the set.

    Every row is kept once, ordered by time. If two rows of one session contradict each other, the set's row stays,
    and the other goes to FILE.conflicts. A second merge changes nothing.
    """
    from kernelderby.catalog.merge import merge
    from kernelderby.measure.run.neighbours import Neighbours
    from kernelderby.report.frame import picked

    with Neighbours(root):  # a run of the set would move rows of nobody aside
        merged = merge(root, folders)
    warn(merged.warnings)
    if as_json:
        say_json(
            {"files": [picked(each, "added", "known", "conflicts") | {"path": str(each.path)} for each in merged.files]}
        )
        return
    for each in merged.files:
        if each.added or each.conflicts:
            apart = counted(each.conflicts, "row contradicts", "rows contradict")
            aside = f", {apart} the set's ({each.path.name}.conflicts)"
            say_line(f"{each.path}: {counted(each.added, 'row')} added{aside if each.conflicts else ''}")
    added, known = sum(each.added for each in merged.files), sum(each.known for each in merged.files)
    say(f"{counted(added, 'row')} added; the set had {known} already")
