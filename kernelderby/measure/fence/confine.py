"""All fences at once, for this process and all that it starts from here on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from kernelderby.measure.fence import landlock, powers, seccomp


def confine(writable: Collection[str], guarded: Collection[int] = (), run: int = 0) -> None:
    """writable: the only places that may be written to; without any, no landlock and no loss of powers. guarded:
    processes that get no signals. run: whose watcher says who may get some, 0 for none. What the kernel lacks is left
    out: derby doctor says so."""
    if writable:
        powers.give_up()
    if run:
        seccomp.watched(run)
    seccomp.protect(guarded)
    if writable:
        landlock.writes_only_beneath([Path(each) for each in writable])
