"""A progress bar with the time left, on stderr, so that stdout stays clean for --json and pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_SECONDS = 30  # off a terminal a line this often


@contextmanager
def bar(title: str, steps: int, quiet: bool = False, seconds: float = 0.0) -> Iterator[Callable[..., None]]:
    """Gives advance(line, done=1): a line about what goes on, and how many steps that finished. Off a terminal a line
    now and then says how far it is and how long it may still take. seconds: the estimate to begin with."""
    if quiet or not sys.stderr.isatty():
        yield _Lines(title, steps, seconds, quiet)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True, highlight=False)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        Elapsed(),
        Remaining(),
        TextColumn("{task.fields[line]}", markup=False),
        console=console,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        task = progress.add_task(title, total=steps, line="")
        yield lambda line, done=1: progress.update(task, advance=done, line=line)


class _Lines:
    """How far it is, in a line of stderr now and then."""

    def __init__(self, title: str, steps: int, seconds: float, quiet: bool) -> None:
        self.title, self.steps, self.seconds, self.quiet = title, steps, seconds, quiet
        self.start = self.told = time.monotonic()
        self.finished = 0

    def __call__(self, line: str, done: int = 1) -> None:
        self.finished += done
        if not self.quiet and time.monotonic() - self.told > _EVERY_SECONDS:
            self.told = time.monotonic()
            left = left_seconds(self.finished, self.steps, self.told - self.start, self.seconds)
            print(
                f"{self.title}: {self.finished} of {self.steps}, about {duration(left)} left",
                file=sys.stderr,
                flush=True,
            )


def left_seconds(finished: int, steps: int, passed: float, estimate: float) -> float:
    """What remains: by the estimate at first, more and more by what the finished steps took."""
    done = finished / steps if steps else 1.0
    by_pace = passed / finished * (steps - finished) if finished else estimate
    return max(0.0, done * by_pace + (1 - done) * max(estimate - passed, by_pace if finished else 0.0))


def duration(seconds: float) -> str:
    """Such as "40 s", "12 min", "1 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
