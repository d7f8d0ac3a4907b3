"""derby capture: the operators of a profile as workloads, and what faster kernels would save."""

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
@click.option("--gain", "with_gain", is_flag=True, help="Beside each shape: its floor, the fastest recorded, the gain.")
@click.option("--gpu", metavar="NAME|ID", help='With --gain: the GPU, such as "NVIDIA H200" (default: the profile\'s).')
@click.option("--origin", default="capture", show_default=True, metavar="O", help="The origin of the workloads.")
@click.option("--model", type=FILE, metavar="CONFIG.json|NAME", help="Tells what a trace does not: sizes of experts.")
@click.option("--tp", "sharing", type=Count(1), default=1, show_default=True, help="GPUs that share the model.")
@click.option("--context", type=Count(1), metavar="N", help="Tokens of a decoding request, where nothing tells it.")
@names_option("--tokens", metavar="N", help="Of FlashInfer's dumps: tokens of a step (default: 1 to 16384).")
@click.option("--top", type=Count(1), metavar="N", help="Rows of the tables (default: 20; all in CSV and JSON).")
@selection_options
@output_options("capture", tables=("shapes", "unmapped"), write=False)
@root_option
def command(
    files: tuple[Path, ...],
    out: Path | None,
    with_gain: bool,
    gpu: str | None,
    origin: str,
    model: Path | None,
    sharing: int,
    context: int | None,
    tokens: tuple[str, ...],
    top: int | None,
    selection: Any,
    root: Path,
    output: Output,
) -> None:
    """The operators of profiles by shape: how often, how long, and which of them this set has.

    FILE: a torch.profiler trace with record_shapes=True, the trace of a CUDA graph's capture beside that of its
    replays, nsys's SQLite with ranges that tell sizes, or a folder of FlashInfer's fi_trace. With --out the shapes are
    workloads, weighted by their time, which `derby bench --root SET` races.
    """
    from kernelderby.api.asked import known_gpu
    from kernelderby.api.capture import captured
    from kernelderby.catalog import Catalog
    from kernelderby.cli.shapes import counts

    if gpu is not None and not with_gain:
        raise click.UsageError("--gpu is of the floors and recorded rows; add --gain")
    if sharing > 1 and model is None:
        raise click.UsageError("--tp goes with --model")
    output.emit(
        captured(
            Catalog.open(root),
            files,
            with_gain=with_gain,
            gpu=known_gpu(gpu).names[0] if gpu else None,
            out=out,
            origin=origin,
            model=model,
            sharing=sharing,
            context=context,
            tokens=counts(tokens),
            selection=selection,
            top=top,
        )
    )
