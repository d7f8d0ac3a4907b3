"""derby capture: the operators of a profile as workloads, and the time that faster kernels would save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, Count, DerbyCommand, names_option, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument, selection_options


@click.command(cls=DerbyCommand)
@files_argument
@click.option("--out", type=FILE, metavar="SET", help="Write the shapes as a trace set of its own there.")
@click.option("--gain", "with_gain", is_flag=True, help="Beside each shape: floor, fastest recorded solution, gain.")
@click.option("--gpu", metavar="NAME|ID", help='With --gain: the GPU, such as "NVIDIA H200" (default: the profile\'s).')
@click.option("--origin", default="capture", show_default=True, metavar="O", help="The origin of the workloads.")
@click.option("--model", type=FILE, metavar="CONFIG.json|NAME", help="The model; gives sizes that no trace has.")
@click.option("--tp", "sharing", type=Count(1), default=1, help="GPUs that share the model.")
@click.option("--context", type=Count(1), metavar="N", help="Tokens of a decoding request, if no file has them.")
@names_option("--tokens", metavar="N", help="For FlashInfer's dumps: tokens of a step (default: 1 to 16384).")
@click.option("--top", type=Count(1), metavar="N", help="Rows of the tables (default: 20; all in CSV and JSON).")
@selection_options
@output_options("capture", tables=("shapes", "unmapped"), write=False)
@root_option
def command(
    files: tuple[Path, ...],
    with_gain: bool,
    gpu: str | None,
    tokens: tuple[str, ...],
    root: Path,
    output: Output,
    **options: Any,
) -> None:
    """The operators in profiles, by shape: how often each ran, how long, and whether this set has it.

    FILE: a torch.profiler trace with record_shapes=True (for CUDA graphs name two: of the replays and of the capture),
    nsys's SQLite with ranges that tell sizes, or a folder of FlashInfer's fi_trace. --out writes the shapes
    as workloads, weighted by their time; `derby bench --root SET` races them.
    """
    from kernelderby.api.arguments import known_gpu
    from kernelderby.api.capture import captured
    from kernelderby.catalog import Catalog
    from kernelderby.shapes.rules import token_counts

    if gpu is not None and not with_gain:
        raise click.UsageError("--gpu chooses floors and recorded rows; add --gain")
    if options["sharing"] > 1 and options["model"] is None:
        raise click.UsageError("--tp goes with --model")
    options |= {"gpu": known_gpu(gpu).names[0] if gpu else None, "tokens": token_counts(tokens)}
    output.emit(captured(Catalog.open(root), files, with_gain=with_gain, **options))
