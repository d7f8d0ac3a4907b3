"""derby profile: where the time of a profile goes. One module per verb, each with a click command `command`."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli import LazyGroup
from kernelderby.cli.options import root_option

VERBS = {
    "kernels": "Every kernel with its library, role and architecture, and what that tells.",
    "stages": "A solution's pipeline, stage by stage, and everything beside it.",
    "activity": "GPUs and ranks: busy, idle and why, overlap, launches, ranges, API calls.",
    "pace": "Repetitions of a range one by one, those out of line marked.",
    "counters": "What ncu counted: which unit of the GPU each kernel fills.",
    "whatif": "What the pipeline gains if a stage ran faster (Amdahl).",
    "layers": "A served model's layers: group, module, kernel; several profiles side by side.",
    "compare": "Two profiles, before and after or GPU against GPU.",
    "timeline": "Write a trace for ui.perfetto.dev: streams, roles, libraries, steps.",
    "run": "Record a profile of solutions on this GPU, without nsys.",
}


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    package=__name__,
    short_help="Where the time goes: kernels, stages, layers, what-if, comparison.",
)
@root_option
def command(root: Path) -> None:
    """Where the time of a profile goes.

    FILEs are nsys SQLite exports, `nsys stats` output, copied tables or Kineto traces, recognised by content.
    """
