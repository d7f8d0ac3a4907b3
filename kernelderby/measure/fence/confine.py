"""All fences at once, for this process and all that it starts from here on."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from kernelderby.measure.fence import folders, landlock, powers, seccomp


def confine(writable: Collection[str], guarded: Collection[int] = (), channel: int = -1) -> None:
    """writable: the only places that may be written to; without any, no landlock and no loss of powers. guarded:
    processes that get no signals. channel: to the watcher that says who may get some, -1 for none; closed then. What
    the kernel lacks is left out: derby doctor says so."""
    if writable:
        powers.give_up()
    if channel >= 0:
        seccomp.watched(channel)
        os.close(channel)
    seccomp.protect(guarded)
    if writable:
        landlock.writes_only_beneath([Path(each) for each in writable], folders.readable())
