"""All fences at once, for this process and everything that it starts from now on."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from kernelderby.measure.fence import folders, landlock, powers, seccomp


def confine(
    writable: Collection[str], guarded: Collection[int] = (), channel: int = -1, hidden: Collection[Path] = ()
) -> None:
    """writable: the only writable places; if empty, no landlock, and the process keeps its powers. guarded: processes
    that get no signals. channel: to the watcher, which decides who may get signals; -1 for none. It is closed here.
    hidden: places whose files it may not even read. Fences that the kernel lacks are left out; derby doctor lists
    them."""
    if writable:
        powers.give_up()
    if channel >= 0:
        seccomp.watched(channel)
        os.close(channel)
    seccomp.protect(guarded)
    if writable:
        landlock.writes_only_beneath([Path(each) for each in writable], folders.readable(hidden))
