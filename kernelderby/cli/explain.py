"""derby explain: the limits of a solution on a workload, and the next experiments."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("solution")
@click.option(
    "--workload",
    metavar="W",
    help="The start of a uuid, a size, axis=size, or #3 (default: the one with the most to save).",
)
@click.option("--gpu", metavar="NAME|ID", help="Whose rows and limits (default: the GPU with the most rows, or h200).")
@click.option("--no-compile", is_flag=True, help="Leave out the kernels' registers, shared memory and occupancy.")
@output_options("explain", tables=("experiments", "kernels", "stages"), write=False)
@root_option
def command(solution: str, workload: str | None, gpu: str | None, no_compile: bool, root: Path, output: Output) -> None:
    """What limits SOLUTION on a workload: floors, kernels, gaps, the closest faster rival, and what to try next.

    The command reads the set's rows, recordings and counters. It compiles the kernels for sm_90 (CUDA needs nvcc),
    which runs the solution's code and needs no GPU.

    \b
    derby explain triton_compact --workload seq_len=901
    derby explain my_kernel --json
    """
    from kernelderby.api.trace_set import open_set

    output.emit(open_set(root).explain(solution, workload, gpu=gpu, compiles=not no_compile))
