"""In our own recordings (docs/collecting.md) ranges tell the harness's work from the solution's kernels."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from kernelderby.profile.kernels.attribution import UNKNOWN, Attribution
from kernelderby.profile.spans import KernelSum, Profile, Span, sum_spans

HARNESS = "harness"
_RANGES = re.compile(r"^harness: ")
_SOLUTION = re.compile(r"^solution:(?P<name>\S+)")


def owned_sums(profile: Profile) -> list[tuple[str, KernelSum]] | None:
    """Each sum with its owner: "harness", "solution NAME", or "" outside both. None for any other profile. One kernel
    name may have several owners, such as a fill that flushes L2 and a fill in a solution."""
    if not profile.has_events or not profile.range_instances(_RANGES):
        return None
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in profile.spans():
        spans[_owner(span)].append(span)
    found = [(owner, each) for owner, own in spans.items() for each in sum_spans(own)]
    return sorted(found, key=lambda each: (-each[1].total_ns, each[1].name))


def with_owner(attribution: Attribution, owner: str) -> Attribution:
    """Sets the library by the owner: the harness's kernels get "harness"; a solution's kernel with an unknown or
    guessed library gets the solution."""
    if owner == HARNESS:
        return replace(attribution, library=HARNESS, is_guess=False)
    if owner and (attribution.library == UNKNOWN or attribution.is_guess):
        return replace(attribution, library=owner, is_guess=False)
    return attribution


def _owner(span: Span) -> str:
    for name in reversed(span.ranges):
        if _RANGES.match(name):
            return HARNESS
        if match := _SOLUTION.match(name):
            return f"solution {match['name']}"
    return ""
