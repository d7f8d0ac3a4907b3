"""Finds kernels that have a new name in the other profile, by neighbours, role, type, launches and duration.

A rebuilt kernel, a new tile size or another library changes the name. It does not change the kernel's work, its number
of launches and its neighbours. A pair without enough evidence is only possible, and says why.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelderby.profile.compare.caveats import Caveat, Doubt, FewNeighbours, OtherDuration
from kernelderby.profile.kernels.attribution import Attribution, Role, attribute
from kernelderby.profile.spans import SpanKind

SAME_LAUNCHES = 0.02
TWICE = 2.0  # times longer or shorter: beyond it only neighbours with unchanged names are evidence
ALIKE = 8.0  # beyond this factor, longer or shorter, it is another kernel
NEIGHBOURS, SURE = 0.60, 0.85  # share of a kernel's places that are between the same neighbours
MARGIN = 0.15  # by which a pair must be better than the next best pair of either kernel
NAMED = 0.30  # share of the words in two names that both have
SPELLED, HALF = 0.60, 0.50  # with this share of common words, half of the places are enough
CLOSE = 1.25  # times: durations of the same work if only the sums are known
_GENERIC = {Role.ELEMENTWISE, Role.COPY, Role.REDUCTION, Role.GATHER_SCATTER}  # roles of which a step has dozens
_WORD = re.compile(r"[A-Za-z][a-z]+|[A-Z]{2,}|\d+x\d+")


@dataclass(frozen=True, slots=True)
class RenameCandidate:
    """launches: scaled to the length of the second profile."""

    name: str
    kind: SpanKind
    full_name: str
    launches: float
    launch_ns: float


@dataclass(frozen=True, slots=True)
class Renaming:
    """doubt: why the two may be two kernels; None with enough evidence."""

    before: str
    after: str
    doubt: Doubt | None = None


def renamed(
    gone: Sequence[RenameCandidate],
    new: Sequence[RenameCandidate],
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> list[Renaming]:
    """Each name at most once, the best pairs first. before, after: the kernels of each profile in order of start; empty
    for a profile with sums only."""
    known = set(before) & set(after)
    whose = {each.name: attribute(each.full_name) for each in (*gone, *new) if each.kind is SpanKind.KERNEL}
    left = _contexts(before, known, whose, {each.name for each in gone})
    right = _contexts(after, known, whose, {each.name for each in new})
    scores: dict[tuple[str, str], float] = {}
    by_name = {each.name: each for each in (*gone, *new)}
    for one in gone:
        for other in new:
            if _may_be(one, other, whose):
                score = _overlap(left[one.name], right[other.name]) if before and after else -1.0
                scores[one.name, other.name] = score + 0.1 * _words_shared(one.name, other.name)
    found: list[Renaming] = []
    taken: set[str] = set()
    for (one_name, other_name), score in sorted(scores.items(), key=lambda item: (-item[1], item[0])):
        if one_name in taken or other_name in taken:
            continue
        rival = _rival(scores, one_name, other_name)
        pair = by_name[one_name], by_name[other_name]
        if score < 0:
            renaming = _of_sums(*pair, rival is not None)
        else:
            anchored = _overlap(_anchored(left[one_name], known), _anchored(right[other_name], known))
            renaming = _of_events(*pair, whose[one_name], score, rival, anchored)
        if renaming is not None:
            taken.update((one_name, other_name))
            found.append(renaming)
    return found


def _may_be(one: RenameCandidate, other: RenameCandidate, whose: dict[str, Attribution]) -> bool:
    if one.kind is not SpanKind.KERNEL or other.kind is not SpanKind.KERNEL:
        return False
    if abs(one.launches - other.launches) > SAME_LAUNCHES * max(one.launches, other.launches):
        return False
    if not 1 / ALIKE <= _launch_ratio(one, other) <= ALIKE:
        return False
    left, right = whose[one.name], whose[other.name]
    if left.role is not right.role:
        return False
    if left.role is Role.UNKNOWN and _words_shared(one.name, other.name) < NAMED:
        return False
    return left.dtype is None or right.dtype is None or left.dtype == right.dtype


def _of_events(
    one: RenameCandidate, other: RenameCandidate, whose: Attribution, score: float, rival: float | None, anchored: float
) -> Renaming | None:
    """None if the pair is too unlikely to be named."""
    needed = SURE if whose.role in _GENERIC or whose.role is Role.UNKNOWN else NEIGHBOURS
    if _words_shared(one.name, other.name) >= SPELLED:
        needed = HALF
    if score < NEIGHBOURS / 2 or (rival is not None and score - rival < MARGIN / 2):
        return None
    ratio = _launch_ratio(one, other)
    doubt: Doubt | None = None
    if score < needed:
        doubt = FewNeighbours(min(score, 1.0))
    elif rival is not None and score - rival < MARGIN:
        doubt = Caveat.NEIGHBOURS_ALIKE
    elif not 1 / TWICE <= ratio <= TWICE and anchored < SURE:
        doubt = OtherDuration(max(ratio, 1 / ratio))
    return Renaming(one.name, other.name, doubt)


def _of_sums(one: RenameCandidate, other: RenameCandidate, has_rival: bool) -> Renaming | None:
    if has_rival:
        return None
    ratio = _launch_ratio(one, other)
    is_sure = 1 / CLOSE <= ratio <= CLOSE or (
        1 / TWICE <= ratio <= TWICE and _words_shared(one.name, other.name) >= NAMED
    )
    return Renaming(one.name, other.name, None if is_sure else Caveat.ONLY_SUMS)


def _launch_ratio(one: RenameCandidate, other: RenameCandidate) -> float:
    return (one.launch_ns or 1) / (other.launch_ns or 1)


def _rival(scores: dict[tuple[str, str], float], one: str, other: str) -> float | None:
    """The best score of either kernel with any other partner."""
    return max((score for (left, right), score in scores.items() if (left == one) != (right == other)), default=None)


_Context = tuple[str, ...]


def _contexts(
    order: Sequence[str], known: set[str], whose: dict[str, Attribution], wanted: Iterable[str]
) -> defaultdict[str, Counter[_Context]]:
    """For each wanted kernel the contexts at all of its places: the two kernels before and after, by name if both
    profiles have that name, otherwise by role."""
    wanted = set(wanted)
    tokens = [name if name in known else f"({whose[name].role})" if name in whose else "(?)" for name in order]
    found: defaultdict[str, Counter[_Context]] = defaultdict(Counter)
    for place, name in enumerate(order):
        if name in wanted:
            around = (*tokens[max(place - 2, 0) : place], "|", *tokens[place + 1 : place + 3])
            found[name][around] += 1
    return found


def _anchored(contexts: Counter[_Context], known: set[str]) -> Counter[_Context]:
    """The contexts, where only places next to neighbours with unchanged names can match; each other place counts as
    different."""
    found: Counter[_Context] = Counter()
    for context, count in contexts.items():
        beside = _beside(context)
        if all(token in known for token in beside if token != "|"):
            found[beside] += count
        else:
            found[("lost", *context, str(id(contexts)))] += count
    return found


def _beside(context: _Context) -> _Context:
    """The neighbours next to the place."""
    middle = context.index("|")
    return context[max(middle - 1, 0) : middle + 2]


def _overlap(one: Counter[_Context], other: Counter[_Context]) -> float:
    """The share of places that have the same neighbours in both. Four equal neighbours count more than the next two."""
    total = max(one.total(), other.total())
    if not total:
        return 0.0
    return 0.5 * ((one & other).total() / total + (_nearest(one) & _nearest(other)).total() / total)


def _nearest(contexts: Counter[_Context]) -> Counter[_Context]:
    found: Counter[_Context] = Counter()
    for context, count in contexts.items():
        found[_beside(context)] += count
    return found


def _words_shared(one: str, other: str) -> float:
    left, right = ({word.lower() for word in _WORD.findall(name)} for name in (one, other))
    return len(left & right) / len(left | right) if left | right else 0.0
