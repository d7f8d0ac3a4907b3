"""derby profile: where the time of a profile goes. One module per verb, each with a click command `command`."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli import LazyGroup
from kernelderby.cli.options import root_option

VERBS = {
    "kernels": "Every kernel with library, role and architecture, and advice.",
    "stages": "A solution's pipeline by stage, and all other work.",
    "activity": "Busy and idle time of each GPU, with causes; launches, API calls.",
    "pace": "Each repetition of a range; outliers are marked.",
    "counters": "ncu's counters: which unit of the GPU each kernel fills.",
    "whatif": "The gain of the pipeline if one stage ran faster (Amdahl).",
    "layers": "A served model's layers: group, module, kernel.",
    "compare": "Two profiles: before and after, or GPU against GPU.",
    "timeline": "Write a trace for ui.perfetto.dev: streams, roles, steps.",
    "run": "Record a profile of solutions on this GPU, without nsys.",
}


@click.group(
    cls=LazyGroup, verbs=VERBS, package=__name__, short_help="Where the time goes: kernels, stages, layers, comparison."
)
@root_option
def command(root: Path) -> None:
    """Where the time of a profile goes.

    FILEs are nsys SQLite exports, `nsys stats` output, copied tables or Kineto traces. Their content tells which.
    """
