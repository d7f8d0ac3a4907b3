"""Names for the work outside a pipeline: by the NVTX range around it, otherwise by the kernel's role."""

from __future__ import annotations

import re

from kernelderby.profile.kernels.attribution import UNKNOWN, attribute

UNATTRIBUTED = "unattributed"

# Purposes by the names of ranges, outermost first; the first match counts.
_PURPOSES = (
    ("reference", re.compile(r"(?i)\breference|\bbaseline run")),
    ("checking", re.compile(r"(?i)\bcheck|correctness|compare|allclose|verif")),
    ("harness", re.compile(r"(?i)harness|flush|poison|rotat|warm.?up|\bl2\b|set.?up|inputs")),
)


def purpose(ranges: tuple[str, ...]) -> str:
    """reference, checking or harness, by a range; otherwise empty."""
    return next((name for text in ranges for name, pattern in _PURPOSES if pattern.search(text)), "")


def kind_of(name: str, said: str = "") -> str:
    """One phrase: the purpose by the ranges, the copy's direction, or the role of the kernel; otherwise
    UNATTRIBUTED."""
    what = name.strip("[]").removeprefix("CUDA ").lower().replace("-to-", " to ") if name.startswith("[CUDA ") else ""
    if said:
        return f"{said}: {what or 'kernels'}"
    return what or _by_role(name)


def _by_role(name: str) -> str:
    """A phrase such as "copy kernels (PyTorch)"; UNATTRIBUTED if no rule of rules/*.toml matches the name."""
    found = attribute(name)
    if found.library == UNKNOWN and found.role == UNKNOWN:
        return UNATTRIBUTED
    what = "other" if found.role == UNKNOWN else found.role
    return f"{what} kernels ({found.library})"
