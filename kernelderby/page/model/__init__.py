"""What the page shows, number by number. Everything is here; assets/*.js only place, format and sort it.

The records that occur by the thousand are arrays in JSON (array_like); `fields` of the page names their places. Times
are us, shares are parts of 1, ratios are time over time; floats keep six digits, which is more than any row has.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kernelderby.page.model.operators import ShownGpu, ShownOperator, ShownScore, ShownShape, ShownSolution
from kernelderby.page.model.races import (
    ShownCell,
    ShownInterval,
    ShownLead,
    ShownOrder,
    ShownRace,
    ShownRow,
    ShownStanding,
    ShownTime,
)
from kernelderby.page.model.recordings import (
    ShownKernel,
    ShownKernels,
    ShownLane,
    ShownLayerColumn,
    ShownLayerRow,
    ShownLayers,
    ShownModule,
    ShownPipeline,
    ShownStage,
    ShownStudy,
    ShownTable,
    ShownTimeline,
)
from kernelderby.page.model.trust import (
    ShownChange,
    ShownChanges,
    ShownFailure,
    ShownGroup,
    ShownMissing,
    ShownNotRaced,
    ShownOutdated,
    ShownTrust,
)

__all__ = [
    "FIELDS",
    "KINDS",
    "PageModel",
    "ShownCell",
    "ShownChange",
    "ShownChanges",
    "ShownFailure",
    "ShownGpu",
    "ShownGroup",
    "ShownInterval",
    "ShownKernel",
    "ShownKernels",
    "ShownLane",
    "ShownLayerColumn",
    "ShownLayerRow",
    "ShownLayers",
    "ShownLead",
    "ShownMissing",
    "ShownModule",
    "ShownNotRaced",
    "ShownOperator",
    "ShownOrder",
    "ShownOutdated",
    "ShownPipeline",
    "ShownRace",
    "ShownRow",
    "ShownScore",
    "ShownShape",
    "ShownSolution",
    "ShownStage",
    "ShownStanding",
    "ShownStudy",
    "ShownTable",
    "ShownTime",
    "ShownTimeline",
    "ShownTrust",
]

KINDS = ("graph", "eager", "busy")


class PageModel(Struct, frozen=True):
    """repository: its address, empty where nobody knows; docs: pages in it. has_samples: False where the set has too
    many rows for a page with the raw samples of each.

    fields: array-like record -> the names of its places. environments: what cells refer to. newest: when the newest
    row was measured. protocols: GPU -> the one that its tables over all operators take; leads: GPU -> the result there
    in a sentence, where libraries were measured."""

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
    leads: dict[str, str]
    operators: tuple[ShownOperator, ...]
    solutions: dict[str, ShownSolution]
    races: tuple[ShownRace, ...]
    scores: tuple[ShownScore, ...]
    changes: ShownChanges | None
    pipelines: tuple[ShownPipeline, ...]
    layers: tuple[ShownLayers, ...]
    kernels: tuple[ShownKernels, ...]
    timelines: tuple[ShownTimeline, ...]
    studies: tuple[ShownStudy, ...]
    trust: ShownTrust
    environments: tuple[dict[str, Any], ...]


FIELDS = {
    kind.__name__: kind.__struct_fields__
    for kind in (ShownInterval, ShownTime, ShownCell, ShownRow, ShownShape, ShownKernel)
}
