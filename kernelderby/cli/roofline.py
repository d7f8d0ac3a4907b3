"""derby roofline: operators and their shapes against the floors of GPUs."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, definitions_option, names_option, origin_option, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.errors import DerbyError


@click.command(cls=DerbyCommand)
@click.argument("operators", metavar="[OPERATOR]...", nargs=-1)
@definitions_option
@names_option(
    "--gpu",
    metavar="GPU",
    default=("h200",),
    help="Ids or names of GPUs. With xpu-a: the published times and S of the deployed kernels.",
)
@origin_option
@click.option("--shapes", is_flag=True, help="Every shape of all operators.")
@click.option("--protocol", metavar="P", help="With --traces: how the rows were timed (default: the newest protocol).")
@click.option("--traces", "with_traces", is_flag=True, help="Add S of the fastest recorded times on the first GPU.")
@output_options("roofline", tables=("operators", "shapes"), plot=True, of_set=True)
@root_option
def command(
    operators: tuple[str, ...],
    definitions: tuple[str, ...],
    gpu: tuple[str, ...],
    origin: tuple[str, ...],
    shapes: bool,
    protocol: str | None,
    with_traces: bool,
    root: Path,
    output: Output,
) -> None:
    """The minimum time of each operator on a GPU, and how near kernels come to it.

    Without OPERATOR: one row per operator. With OPERATOR (or --definitions): all its shapes.

    The floor T_SOL is the time of the counted work at the vendor's peak bandwidth or arithmetic. No kernel reaches it.
    S = T_SOL / T. An operator's S counts the survey's shapes; shapes of other origins are shown beside them.
    """
    from kernelderby.api.trace_set import open_set
    from kernelderby.hardware import find_gpu

    names = tuple(dict.fromkeys((*operators, *definitions)))
    found = open_set(root)
    for name in names:
        if name not in found.definitions and find_gpu(name):
            raise DerbyError(f"{name} is a GPU, not an operator; write --gpu {','.join(gpu)},{name}")
    if protocol is not None and not with_traces:
        raise click.UsageError("--protocol chooses recorded rows; add --traces")
    answer = found.roofline(
        names, gpu=gpu, origin=origin, protocol=protocol, traces=with_traces, by_shape=bool(names) or shapes
    )
    if output.plot is not None and not answer.value.sources:
        raise DerbyError("--plot: there is no S without times; add --traces, or --gpu xpu-a for the published ones")
    output.emit(answer)
