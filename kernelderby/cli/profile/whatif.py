"""derby profile whatif: Amdahl for every stage of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FACTOR, DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument, pipelines, solution_option, within_option
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand, short_help="What the pipeline gains if a stage ran faster (Amdahl).")
@files_argument
@solution_option
@within_option
@click.option(
    "--factor",
    "factors",
    type=FACTOR,
    multiple=True,
    metavar="F",
    help="A stage F times as fast; may be repeated (default: 1.2 and 2).",
)
@click.option(
    "--floor",
    "given",
    metavar="STAGE=US",
    multiple=True,
    help="The least that a stage can take in one invocation; 'K3 / K5=US' for several together.",
)
@click.option(
    "--workload",
    "--workloads",
    "workload",
    metavar="W",
    help="The workload of the profile: its roofline becomes the floor of the GEMM stages together. The start "
    "of a uuid, the size of an axis, axis=size, or #3.",
)
@click.option("--gpu", metavar="NAME|ID", help="For the roofline (default: the GPU that the profile names).")
@output_options("profile whatif", tables=("stages",), plot=True)
@root_option
def command(
    files: tuple[Path, ...],
    solution: str,
    within: str | None,
    factors: tuple[float, ...],
    given: tuple[str, ...],
    workload: str | None,
    gpu: str | None,
    root: Path,
    output: Output,
) -> None:
    """The pipeline's speedup if one stage ran 1.2 times or twice as fast, at its floor, or took no time.

    A floor is the time of a workload's counted work at the vendor's peaks (see derby roofline); without a workload the
    columns are n/a. --plot draws the time saved, one line per stage.
    """
    from kernelderby.profile.stages.whatif import SPEEDUPS, whatif
    from kernelderby.report.profile.whatif import whatif_answer

    fixed = dict(_floor(text) for text in given)
    found = []
    for pipeline in pipelines(files, root, solution, within):
        floors = fixed | (_roofline(root, solution, pipeline, workload, gpu) if workload else {})
        found.append(whatif(pipeline, factors or SPEEDUPS, floors))
    output.emit(whatif_answer(found))


def _floor(text: str) -> tuple[str, float]:
    stage, separator, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not separator or not stage or not value > 0:
        raise DerbyError(f"--floor: {text!r} is not STAGE=US; write for example --floor K3=120.5")
    return stage.strip(), value


def _roofline(root: Path, solution: str, pipeline: Any, workload: str, gpu_name: str | None) -> dict[str, float]:
    """The workload's floor, for all stages whose role is gemm, together."""
    from kernelderby.catalog import Catalog
    from kernelderby.hardware import find_gpu, gpus
    from kernelderby.profile.stages.walk import TOGETHER
    from kernelderby.profile.stages.whatif import rows_of_role
    from kernelderby.roofline.floors import floors
    from kernelderby.store.fields import suggestion

    catalog = Catalog.open(root)
    chosen = _workload(catalog, catalog.solution(solution).definition, workload)
    name = gpu_name or pipeline.gpu or ""
    gpu = find_gpu(name)
    if gpu is None:
        problem = f"no {name!r} in kernelderby/hardware/gpus" if name else f"{pipeline.profile} does not name its GPU"
        raise DerbyError(f"--gpu: {problem}; {suggestion(name, gpus())}")
    floor = floors(chosen.cost, gpu) if chosen.cost else None
    if floor is None:
        raise DerbyError(f"workload {chosen.uuid}: has no cost that {gpu.id} has peaks for; run derby pack")
    stages = rows_of_role(pipeline, catalog.solution(solution).stages, "gemm")
    if not stages:
        raise DerbyError(
            f'{pipeline.profile}: no stage of {solution} has role = "gemm" in its solution.toml; '
            "add it there, or use --floor"
        )
    return {TOGETHER.join(stages): floor.floor_us}


def _workload(catalog: Any, definition: str, word: str) -> Any:
    from kernelderby.catalog.selection import is_named

    known = catalog.workloads(definition)
    found = [workload for workload in known if is_named(workload, word)]
    if len(found) != 1:
        axes = ", ".join(f"{name}={value}" for workload in known for name, value in workload.axes.items())
        raise DerbyError(
            f"--workload: {word!r} fits {counted(len(found), 'workload')} of {definition}; there are {axes}"
        )
    return found[0]
