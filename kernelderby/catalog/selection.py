"""Which workloads a word means, the same in every verb."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelderby.catalog.model import Workload
from kernelderby.errors import DerbyError


def workload_label(workload: Workload) -> str:
    axes = " ".join(f"{name}={size}" for name, size in workload.axes.items())
    told = "".join(f" {name}={value}" for name, value in workload.generator.items())
    return f"{axes}{told} {workload.uuid[:8]}"


def select_workloads(workloads: Sequence[Workload], wanted: Iterable[str]) -> list[Workload]:
    """The workloads that any of the words names: start of a uuid, size of a var axis, axis=size or scalar=value, #3 or
    shape_id=3. All without words. DerbyError for a word that names none.
    """
    wanted = list(wanted)
    chosen = set()
    for word in wanted:
        named = {workload.uuid for workload in workloads if is_named(workload, word)}
        if not named:
            known = ", ".join(workload_label(workload) for workload in workloads)
            raise DerbyError(f"no workload {word!r}; give the start of a uuid or the size of an axis, of: {known}")
        chosen |= named
    return [workload for workload in workloads if not wanted or workload.uuid in chosen]


def is_named(workload: Workload, word: str) -> bool:
    words = {str(size) for size in workload.axes.values()}
    words |= {f"{name}={value}" for name, value in (workload.axes | workload.scalars | workload.generator).items()}
    shape_id = workload.shape_id
    if shape_id is not None:
        words |= {f"#{shape_id}", f"shape_id={shape_id}"}
    return (
        word in words
        or (len(word) >= 4 and not word.isdigit() and workload.uuid.startswith(word))
        or word == workload.uuid
    )
