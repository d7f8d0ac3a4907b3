"""The progress of a run: its messages, and a bar with the time left, on stderr, so that stdout stays clean for --json
and pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelderby.rows.measurement import Measurement

_EVERY_SECONDS = 30  # interval of lines without a terminal
_FEW = 5  # steps, and share of all: fewer tell little, since processes start and compilers run first
_FEW_OF_ALL = 0.1


class Observer:
    """Gets the progress of a run; the command overrides it."""

    def step(self, what: str) -> None:
        """A step towards the next row is done."""

    def row(self, row: Measurement) -> None:
        """A row was written: one of Plan.pairs."""

    def note(self, line: str) -> None:
        """A line for the user."""


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
        passed = time.monotonic() - self.start
        found = left_seconds(self.finished, self.steps, passed, self.seconds)
        rest = None if self.most is None else self.most - passed
        if rest is not None and (found is None or found > rest):
            return f"at most {duration(rest)} left" if rest > 0 else "the last one"
        return "" if found is None else f"about {duration(found)} left"


def left_seconds(finished: int, steps: int, passed: float, estimate: float) -> float | None:
    """The remaining seconds: at first by the estimate, then more and more by the duration of the finished steps. None
    without an estimate while few steps are finished. estimate: seconds of all steps, 0 for none."""
    few = max(_FEW, _FEW_OF_ALL * steps)
    by_pace = passed / finished * (steps - finished) if finished else 0.0
    if not estimate:
        return by_pace if finished >= min(few, steps) and steps else None
    share = finished / (finished + few)
    by_estimate = estimate * (1 - finished / steps) if finished else estimate - passed
    return max(0.0, share * by_pace + (1 - share) * by_estimate)


def duration(seconds: float) -> str:
    """Such as "40 s", "12 min", "1 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
