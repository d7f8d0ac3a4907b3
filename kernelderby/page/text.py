"""Texts and numbers in the form of the page."""

from __future__ import annotations

from typing import TypeVar

from kernelderby.page.model.races import ShownInterval
from kernelderby.report.plain import plain
from kernelderby.statistics.ratio import Ratio

words = plain  # names and messages come from data: one line, without control characters
Number = TypeVar("Number", float, None, float | None)


def rounded(value: Number) -> Number:
    """Six digits: more than any measurement has, and half as long in the file."""
    return None if value is None else float(f"{value:.6g}")


def interval(ratio: Ratio | None) -> ShownInterval | None:
    if ratio is None:
        return None
    return ShownInterval(rounded(ratio.value), rounded(ratio.low), rounded(ratio.high), ratio.interval, ratio.verdict)
