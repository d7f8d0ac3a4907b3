"""All contents of the page."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kernelderby.page.model import recordings
from kernelderby.page.model.operators import ShownGpu, ShownOperator, ShownScore, ShownShape, ShownSolution
from kernelderby.page.model.races import ShownCell, ShownInterval, ShownRace, ShownRow, ShownTime
from kernelderby.page.model.trust import ShownChanges, ShownTrust

KINDS = ("graph", "eager", "busy")


class PageModel(Struct, frozen=True):
    """repository: its address, empty if unknown; docs: pages in it. has_samples: False if the set has too many rows for
    a page with raw samples. fields: array-like record -> the names of its places. environments: cells refer to them by
    place. newest: time of the newest row. protocols: GPU -> the protocol of its tables over all operators. leads: GPU
    -> the result in sentences, if libraries were measured."""

    version: str
    repository: str
    docs: tuple[str, ...]
    newest: str
    rows: int
    has_samples: bool
    kinds: tuple[str, ...]
    fields: dict[str, tuple[str, ...]]
    gpus: tuple[ShownGpu, ...]
    protocols: dict[str, str]
    leads: dict[str, tuple[str, ...]]
    operators: tuple[ShownOperator, ...]
    solutions: dict[str, ShownSolution]
    races: tuple[ShownRace, ...]
    scores: tuple[ShownScore, ...]
    changes: ShownChanges | None
    pipelines: tuple[recordings.ShownPipeline, ...]
    layers: tuple[recordings.ShownLayers, ...]
    kernels: tuple[recordings.ShownKernels, ...]
    timelines: tuple[recordings.ShownTimeline, ...]
    studies: tuple[recordings.ShownStudy, ...]
    trust: ShownTrust
    environments: tuple[dict[str, Any], ...]


FIELDS = {
    kind.__name__: kind.__struct_fields__
    for kind in (ShownInterval, ShownTime, ShownCell, ShownRow, ShownShape, recordings.ShownKernel)
}
