"""A bar with the time left, on stderr, so that stdout stays clean for --json and pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_SECONDS = 30  # interval of lines without a terminal


@contextmanager
def bar(
    title: str, steps: int, quiet: bool = False, seconds: float = 0.0, most: float | None = None
) -> Iterator[Callable[..., None]]:
    """Gives advance(line, done=1), called with a line about the current work and the number of finished steps. Without
    a terminal it sometimes prints a line with the progress and the remaining time. steps: 0 if unknown; then the line
    shows the current work. seconds: duration by earlier runs, 0 if unknown. most: it ends after this number of
    seconds."""
    far = _Far(title, steps, seconds, most)
    if quiet or not sys.stderr.isatty():
        yield lambda line, done=1: far.advance(done, quiet, line)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    console = Console(stderr=True, highlight=False)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        Elapsed(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[line]}", markup=False),
        console=console,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        task = progress.add_task(title, total=steps or None, line="", left="")

        def advance(line: str, done: int = 1) -> None:
            far.advance(done, True)
            progress.update(task, advance=done, line=line, left=far.left())

        yield advance


class _Far:
    """The progress."""

    def __init__(self, title: str, steps: int, seconds: float, most: float | None) -> None:
        self.title, self.steps, self.seconds, self.most = title, steps, seconds, most
        self.start = self.told = time.monotonic()
        self.finished = 0

    def advance(self, done: int, quiet: bool, line: str = "") -> None:
        self.finished += done
        if not quiet and time.monotonic() - self.told > _EVERY_SECONDS:
            self.told = time.monotonic()
            at = f"{self.finished} of {self.steps}" if self.steps else line
            words = filter(None, (f"{self.title}: {at}", self.left()))
            print(", ".join(words), file=sys.stderr, flush=True)

    def left(self) -> str:
        """The remaining time in words; empty if unknown."""
        from kernelderby.measure.run.progress import left_seconds

        passed = time.monotonic() - self.start
        found = left_seconds(self.finished, self.steps, passed, self.seconds)
        rest = None if self.most is None else self.most - passed
        if rest is not None and (found is None or found > rest):
            return f"at most {duration(rest)} left" if rest > 0 else "the last one"
        return "" if found is None else f"about {duration(found)} left"


def duration(seconds: float) -> str:
    """Such as "40 s", "12 min", "1 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
