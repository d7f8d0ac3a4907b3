"""A progress bar with the time left, on stderr, so that stdout stays clean for --json and pipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, steps: int, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that says one step is done, with a line about it. Off a terminal nothing is drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True, highlight=False)
    with Progress(TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), Elapsed(),
                  Remaining(), TextColumn("{task.fields[line]}", markup=False), console=console,
                  disable=quiet or not console.is_terminal, redirect_stdout=sys.stdout.isatty()) as progress:
        task = progress.add_task(title, total=steps, line="")

        def advance(line: str) -> None:
            progress.update(task, advance=1, line=line)

        yield advance
