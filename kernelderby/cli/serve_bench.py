"""derby serve-bench: tokens per second with the winners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, Count, DerbyCommand, names_option, root_option
from kernelderby.cli.output import Output, output_options, warn
from kernelderby.errors import DerbyError


@click.command(cls=DerbyCommand)
@click.argument("model", metavar="CONFIG.json|NAME", type=FILE)
@names_option("--batch", metavar="N", help="Sequences that decode one token each (default: 1, 4, 16, 64, 256).")
@click.option("--layers", type=Count(1), default=4, help="Layers of the decoder.")
@click.option("--context", type=Count(1), default=4096, help="Tokens in each sequence's cache.")
@click.option("--prefill", type=Count(0), default=8192, help="Tokens of one prompt; 0: no prompt.")
@click.option("--rounds", type=Count(1), default=5, help="Rounds of A B B A.")
@click.option("--compile/--no-compile", "compiles", default=True, help="Whether torch.compile takes part.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="cpu: only to try the command out.")
@output_options("serve-bench", tables=("steps",), write=False)
@root_option
def command(model: Path, batch: tuple[str, ...], root: Path, output: Output, **options: Any) -> None:
    """Tokens per second of a decoder with a model's layer sizes: with the installed winners, with libraries, compiled.

    \b
    derby export --wheel dist; pip install --no-deps dist/*.whl
    derby serve-bench qwen3-30b-a3b --batch 16,64
    """
    from kernelderby.api.decoder import BATCHES, serve_bench

    sizes = []
    for each in batch or map(str, BATCHES):
        if not each.isdecimal() or int(each) < 1:
            raise DerbyError(f"--batch: {each!r:.40} is no number of sequences; give one such as 16")
        sizes.append(int(each))
    output.emit(serve_bench(model, sizes, **options, told=lambda line: warn([] if output.is_json else [line])))
