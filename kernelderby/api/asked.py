"""What a caller gave, checked: names, kinds of time, GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from kernelderby.errors import DerbyError
from kernelderby.hardware import Gpu, find_gpu, gpus
from kernelderby.rows.measurement import TIME_KINDS
from kernelderby.store.fields import suggestion

Names = str | int | Iterable[str | int] | None


def names_of(names: Names) -> tuple[str, ...]:
    """Sizes may be numbers (workloads=5120); None is none."""
    several = () if names is None else (names,) if isinstance(names, str | int) else tuple(names)
    for name in several:
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise DerbyError(f"{name!r:.60} is no name; give one, or a list of them")
    return tuple(map(str, several))


def check_time(time: str | None) -> None:
    """DerbyError for a kind of time that no row has."""
    if time is not None and time not in TIME_KINDS:
        raise DerbyError(f"time: {time!r:.60} is unknown; {suggestion(str(time), TIME_KINDS)}")


def known_gpu(name: str) -> Gpu:
    """DerbyError for a GPU without a file of peaks."""
    gpu = find_gpu(name)
    if gpu is None:
        raise DerbyError(f"--gpu: kernelderby/hardware/gpus has no {name!r}; {suggestion(name, gpus())}")
    return gpu
