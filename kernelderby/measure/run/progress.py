"""The progress of a run: what it tells, and a bar with the time left, on stderr, so that stdout stays clean for --json
and pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelderby.rows.measurement import Measurement

_EVERY_SECONDS = 30  # off a terminal a line this often
_FEW = 5  # steps, and a share of all: fewer say little, since processes start and compilers run before the first ones
_FEW_OF_ALL = 0.1


class Observer:
    """Told how far a run is; the command overrides it."""

    def step(self, what: str) -> None:
        """Something is done, on the way to the next row."""

    def row(self, row: Measurement) -> None:
        """A row was written: one of Plan.pairs."""

    def note(self, line: str) -> None:
        """Something worth a line."""


@contextmanager
def bar(
    title: str, steps: int, quiet: bool = False, seconds: float = 0.0, most: float | None = None
) -> Iterator[Callable[..., None]]:
    """Gives advance(line, done=1): a line about what goes on, and how many steps that finished. Off a terminal a line
    now and then says how far it is and how long it may still take. steps: 0 where nobody can count them; then the line
    says what goes on. seconds: what it takes by earlier runs, 0: nobody knows. most: it ends after so many."""
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
    """How far it is."""

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
        """In words; none where nobody knows."""
        passed = time.monotonic() - self.start
        found = left_seconds(self.finished, self.steps, passed, self.seconds)
        rest = None if self.most is None else self.most - passed
        if rest is not None and (found is None or found > rest):
            return f"at most {duration(rest)} left" if rest > 0 else "the last one"
        return "" if found is None else f"about {duration(found)} left"


def left_seconds(finished: int, steps: int, passed: float, estimate: float) -> float | None:
    """What remains: by the estimate at first, more and more by what the finished steps took. None without an estimate
    as long as few are finished. estimate: seconds of all steps, 0 for none."""
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
