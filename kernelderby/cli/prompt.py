"""derby prompt: one operator as a task for a program that writes kernels."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, origin_option, root_option
from kernelderby.cli.output import say


@click.command(cls=DerbyCommand)
@click.argument("operator")
@click.option("--gpu", metavar="ID", help="Whose floors and best times (default: the GPU with the most rows, or h200).")
@origin_option
@root_option
def command(operator: str, gpu: str | None, origin: tuple[str, ...], root: Path) -> None:
    """The task of writing a kernel for OPERATOR, in Markdown: contract, reference, shapes, floors, rules, best times.

    For a language model or another program. It holds no source of any solution.

    \b
    derby prompt rms_norm | my_agent
    derby prompt gemm_bf16 --gpu b200 --origin models > task.md
    """
    from kernelderby.api.trace_set import open_set

    say(open_set(root).prompt(operator, gpu=gpu, origin=origin))
