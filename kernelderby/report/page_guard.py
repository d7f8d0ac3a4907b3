"""Protects pages: a page is never replaced by one with less content because a part of the set could not be read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.report.markdown import LEFT_OUT

_FIGURE = re.compile(r"\d[\d.,]*")


def expect_no_shorter(page: Path, before: str, after: str, left_out: Sequence[str]) -> None:
    """DerbyError if something was left out and a Markdown page, a block or a picture would show fewer numbers. Also if
    it would change without showing more numbers, although its present content was written without that problem."""
    (old, _, known), (new, _, named) = before.partition(LEFT_OUT), after.partition(LEFT_OUT)
    counts = [len(_FIGURE.findall(text)) for text in (old, new)]
    is_newly_broken = named.strip() != known.strip() and old.strip() not in ("", new.strip())
    if left_out and (counts[1] < counts[0] or (is_newly_broken and counts[1] == counts[0])):
        _refuse(page, f"it shows {counts[0]:,} numbers, and {counts[1]:,} other ones would be left", left_out)


def expect_no_less(page: Path, before: Mapping[str, int], after: Mapping[str, int], left_out: Sequence[str]) -> None:
    """DerbyError if something was left out and any count of the page's contents would decrease."""
    for what, count in before.items():
        if left_out and after.get(what, 0) < count:
            _refuse(page, f"it holds {count:,} {what}, and {after.get(what, 0):,} would be left", left_out)


def _refuse(page: Path, less: str, left_out: Sequence[str]) -> None:
    others = f" and {len(left_out) - 1} more" if left_out[1:] else ""
    first = left_out[0].removesuffix("; left out")
    raise DerbyError(f"{page}: not written: {less} without {first}{others}; mend that, or empty the page first")
