"""Our own recordings (docs/collecting.md) say by ranges what is the harness's, and which solution a kernel is of."""

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
    """Each sum with its owner: "harness", "solution NAME", or "" outside of both; None for a profile that is no such
    recording. One kernel name may have several owners, as the fill that flushes L2 and one in a solution."""
    if not profile.has_events or not profile.range_instances(_RANGES):
        return None
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in profile.spans():
        spans[_owner(span)].append(span)
    found = [(owner, each) for owner, own in spans.items() for each in sum_spans(own)]
    return sorted(found, key=lambda each: (-each[1].total_ns, each[1].name))


def owned(attribution: Attribution, owner: str) -> Attribution:
    """The harness's kernels are the harness's; a name that nobody knows, or that is guessed, is the solution's own."""
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
