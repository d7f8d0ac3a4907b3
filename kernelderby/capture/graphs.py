"""CUDA graphs: assigns the operators of a graph's capture to the kernels of its replays.

During a capture, operators run on the host and start no kernel. During a replay, kernels run without operators. The
n-th kernel of a replay is the n-th launch of its capture. On ROCm the names prove this, because its traces name the
kernel at its launch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from msgspec import Struct

from kernelderby.profile.operators import CapturedGraph, CapturedLaunch, LaunchOrigin, OperatorCall
from kernelderby.profile.spans import Span, SpanKind

_LEAST = 0.6  # this share of a replay's kernels must be launches of the capture, in the same order
_NUMBERS = re.compile(r"\d+")
_Chains = dict[int, tuple[OperatorCall, ...]]


class UnmappedReplays(Struct, frozen=True):
    """Replays of CUDA graphs in one profile. ambiguous: those that fit captures of different shapes; unknown: those
    that fit no capture."""

    path: Path
    ambiguous: int
    unknown: int
    has_captures: bool


def replayed(
    path: Path, both: Sequence[tuple[Span, LaunchOrigin]], graphs: Sequence[CapturedGraph]
) -> tuple[_Chains, UnmappedReplays]:
    """Place in `both` -> the operators of its launch during the capture; and the replays without one. path: of the
    profile."""
    replays: dict[int, list[int]] = defaultdict(list)
    for place, (_, issued) in enumerate(both):
        if issued.graph is not None:
            replays[issued.graph].append(place)
    chains: _Chains = {}
    unknown = ambiguous = 0
    remembered: dict[object, tuple[CapturedGraph, list[int | None]] | str] = {}
    for places in replays.values():
        if any(both[place][1].chain for place in places):  # the file itself tells where each kernel was captured
            continue
        spans = [both[place][0] for place in places]
        grids = [both[place][1].grid for place in places]
        steps = tuple(spans[0].ranges)
        key = tuple(span.name for span in spans), tuple(grids), steps
        if key not in remembered:
            remembered[key] = _fitting(spans, grids, steps, graphs)
        match = remembered[key]
        if isinstance(match, str):
            unknown += match == "none"
            ambiguous += match == "several"
            continue
        graph, pairs = match
        for place, launch in zip(places, pairs, strict=True):
            if launch is not None:
                chains[place] = graph.launches[launch].chain
    return chains, UnmappedReplays(path, ambiguous, unknown, bool(graphs))


def _fitting(
    spans: Sequence[Span],
    grids: Sequence[tuple[int, ...] | None],
    steps: Sequence[str],
    graphs: Sequence[CapturedGraph],
) -> tuple[CapturedGraph, list[int | None]] | str:
    """The best capture, and for each kernel its launch there. "none" if no capture fits, "several" if captures of
    different shapes fit."""
    found: list[tuple[float, CapturedGraph, list[int | None]]] = []
    for closely in (True, False):
        for graph in graphs if not found else ():
            pairs = _pairs(spans, graph.launches, closely)
            share = sum(pair is not None for pair in pairs) / len(pairs)
            if share >= _LEAST:
                agree = _same_grids(grids, graph.launches, pairs)
                found.append((share + agree + _same_numbers(steps, graph.ranges), graph, pairs))
    if not found:
        return "none"
    best = max(score for score, _, _ in found)
    first = [(graph, pairs) for score, graph, pairs in found if score > best - 1e-9]
    shapes = {tuple(_shapes(graph.launches[pair]) for pair in pairs if pair is not None) for graph, pairs in first}
    return first[0] if len(shapes) == 1 else "several"


def _shapes(launch: CapturedLaunch) -> tuple[object, ...]:
    return tuple((call.name, call.operands) for call in launch.chain)


def _pairs(spans: Sequence[Span], launches: Sequence[CapturedLaunch], closely: bool) -> list[int | None]:
    """The launch of each kernel. closely: all of them in order, or none. Pairs by name if the capture has names,
    otherwise by position: kernels and copies, or kernels only."""
    named = any(launch.kernel and not _is_copy(launch.kernel) for launch in launches)
    theirs = ["copy" if _is_copy(launch.kernel or "") else launch.kernel or "kernel" for launch in launches]
    ours = [(span.name if named else "kernel") if span.kind is SpanKind.KERNEL else "copy" for span in spans]
    if theirs == ours:
        return list(range(len(ours)))
    pairs: list[int | None] = [None] * len(ours)
    in_common = (Counter(theirs) & Counter(ours)).total()  # without order, which is quick
    if closely or in_common < _LEAST * len(ours):
        return pairs
    if not named:
        kernels = [place for place, name in enumerate(theirs) if name == "kernel"]
        wanted = [place for place, name in enumerate(ours) if name == "kernel"]
        if len(kernels) == len(wanted):
            for place, launch in zip(wanted, kernels, strict=True):
                pairs[place] = launch
        return pairs
    for block in SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            pairs[block.b + step] = block.a + step
    return pairs


def _is_copy(kernel: str) -> bool:
    return "Memcpy" in kernel or "Memset" in kernel


def _same_grids(
    grids: Sequence[tuple[int, ...] | None], launches: Sequence[CapturedLaunch], pairs: Sequence[int | None]
) -> float:
    """The share of kernels that have the grid of their launch; 0 if the traces have no grids."""
    told = [
        grid == launches[pair].grid
        for grid, pair in zip(grids, pairs, strict=True)
        if pair is not None and grid and launches[pair].grid
    ]
    return sum(told) / len(told) if told else 0.0


def _same_numbers(steps: Sequence[str], ranges: Sequence[str]) -> float:
    """1 if both annotations name the same batch size, such as capture_32_FULL and execute_32_context_0.."""
    ours = {number for name in steps for number in _NUMBERS.findall(name)}
    theirs = {number for name in ranges for number in _NUMBERS.findall(name)}
    return 1.0 if ours & theirs - {"0", "1"} else 0.0
