"""Which kernel of one profile is which of another under a new name: by role, element type, launches and place.

A rebuilt kernel, a new tile size or another library changes the name; what it does, how often it runs and where in the
run it stands do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kernelderby.profile.kernels.attribution import Role, attribute
from kernelderby.profile.spans import SpanKind

SAME_LAUNCHES = 0.02
NEAR = 0.10  # of the length of the profile
ALIKE = 8.0  # times: a kernel that takes longer than that, or less, is another one


@dataclass(frozen=True, slots=True)
class RenameCandidate:
    """launches: at the length of the second profile. place: where it stands on average, 0 to 1; None without events."""

    name: str
    kind: SpanKind
    full_name: str
    launches: float
    launch_ns: float
    place: float | None


def renamed(gone: Sequence[RenameCandidate], new: Sequence[RenameCandidate]) -> list[tuple[str, str]]:
    """(name before, name after), each name at most once, the nearest pairs first. Without places only where nothing
    else could be meant: one that is gone and one that is new of that role and number of launches."""
    pairs = []
    matches: dict[str, int] = defaultdict(int)
    for one in gone:
        for other in new:
            if _fits(one, other):
                distance = abs(one.place - other.place) if one.place is not None and other.place is not None else None
                pairs.append((distance, one.name, other.name))
                matches[one.name] += 1
                matches[other.name] += 1
    found: list[tuple[str, str]] = []
    taken: set[str] = set()
    for distance, before, after in sorted(pairs, key=lambda pair: (pair[0] is None, pair[0] or 0.0, pair[1:])):
        is_only = matches[before] == matches[after] == 1
        if before in taken or after in taken or not (is_only if distance is None else distance <= NEAR):
            continue
        taken.update((before, after))
        found.append((before, after))
    return found


def _fits(one: RenameCandidate, other: RenameCandidate) -> bool:
    if one.kind is not SpanKind.KERNEL or other.kind is not SpanKind.KERNEL:
        return False
    if abs(one.launches - other.launches) > SAME_LAUNCHES * max(one.launches, other.launches):
        return False
    if not (1 / ALIKE <= (one.launch_ns or 1) / (other.launch_ns or 1) <= ALIKE):
        return False
    left, right = attribute(one.full_name), attribute(other.full_name)
    if left.role is Role.UNKNOWN or left.role is not right.role:
        return False
    return left.dtype is None or right.dtype is None or left.dtype == right.dtype
