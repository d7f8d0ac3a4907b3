"""Regular expressions out of data, such as a solution's stages: a slow one cannot hang whoever reads the data."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.store.bounds import bound_text, bounds

SECONDS = 1.0  # of CPU time for one name, a quarter to compile; sound patterns take microseconds
LONGEST = 1000  # letters
_taken: dict[str, list[float]] = {}  # file -> the seconds that its patterns took
_REPEATS, _CHOICES = re.compile(r"[*+{]"), re.compile(r"[?|]")
_FEW = 12  # choices: each can double the ways to look for a match


class Pattern:
    """Searched in names. where: file and field, for errors."""

    __slots__ = ("_is_quick", "_search", "_taken", "_where", "pattern")

    def __init__(self, where: str, text: str, taken: list[float] | None = None) -> None:
        """taken: one number, the seconds that all patterns of a kind took; of the file without it. DerbyError where the
        text is no regular expression."""
        if problem := pattern_problem(text):
            raise DerbyError(f"{where}: {text!r:.60} {problem}; mend it")
        self.pattern, self._where = text, where
        self._taken = _taken.setdefault(where.partition(": ")[0], [0.0]) if taken is None else taken
        self._search = re.compile(text).search
        self._is_quick = not _REPEATS.search(text) and len(_CHOICES.findall(text)) <= _FEW

    def search(self, name: str) -> bool:
        """DerbyError where it takes longer than SECONDS: some patterns take ages, each letter more doubling them."""
        if self._is_quick or threading.current_thread() is not threading.main_thread():
            return bool(self._search(name))  # signals reach the main thread alone
        most = bounds().patterns
        if self._taken[0] > most:
            raise DerbyError(
                f"{self._where}: {self.pattern!r:.60} and others take longer than {bound_text('patterns', most)}"
            )
        began = time.process_time()
        try:
            with _limited(f"{self._where}: {self.pattern!r:.60} takes over {SECONDS:g} s on the name {name!r:.60}"):
                return bool(self._search(name))
        finally:
            self._taken[0] += time.process_time() - began


@lru_cache(4096)  # a compiled one is known to `re`, and quick from then on
def pattern_problem(text: str) -> str | None:
    """Why a text is no pattern."""
    if len(text) > LONGEST:
        return f"is longer than {LONGEST} letters"
    began = time.process_time()
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression ({error})"
    if time.process_time() - began > SECONDS / 4:
        return "takes too long to compile; write smaller ranges of letters, or none with (?i)"
    return None


@contextmanager
def _limited(told: str) -> Iterator[None]:
    """The expression engine looks at signals while it searches."""

    def stop(*_: Any) -> None:
        raise DerbyError(f"{told}; write it without repetitions inside repetitions")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
