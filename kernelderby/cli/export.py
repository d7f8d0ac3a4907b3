"""derby export: the set -> another flashinfer-bench dataset; its winners -> a package for servers."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, definitions_option, root_option
from kernelderby.cli.output import Output, output_options, say, say_json, say_line, warn


@click.command(cls=DerbyCommand)
@click.argument("destination", type=FILE, required=False)
@click.option("--wheel", "is_wheel", is_flag=True, help="A wheel of the fastest solutions, in that folder.")
@click.option("--hf-kernels", "is_hub", is_flag=True, help="The package without CUDA solutions, for HF's `kernels`.")
@click.option("--trace-apply", "is_twins", is_flag=True, help="Definitions and solutions for FlashInfer's trace_apply.")
@click.option("--plan", is_flag=True, help="Write nothing: what a package would run, and what its choice loses.")
@click.option(
    "--gpu", metavar="GPU", help="For a package: the GPU whose rows decide (default: the one with the most rows)."
)
@definitions_option
@output_options("export", tables=("operators",), write=False)
@root_option
def command(
    destination: Path | None,
    is_wheel: bool,
    is_hub: bool,
    is_twins: bool,
    plan: bool,
    gpu: str | None,
    definitions: tuple[str, ...],
    root: Path,
    output: Output,
) -> None:
    """Copy the set into the flashinfer-bench dataset at DESTINATION ($FIB_DATASET_PATH), or write a package there.

    The command deletes nothing there. It leaves the definitions and workloads that the dataset has as they are, and
    copies or updates solutions.

    --wheel builds an installable package of torch.library operators. At each shape an operator runs the solution that
    was fastest in the recorded rows (docs/serving.md). nvcc compiles the CUDA kernels once, here.
    """
    if is_wheel + is_hub + is_twins > 1:
        raise click.UsageError("--wheel, --hf-kernels and --trace-apply: one package at a time")
    if destination is None and not plan:
        raise click.UsageError("Missing argument 'DESTINATION': a folder to write to; --plan alone needs none")
    if destination is not None and not (plan or is_wheel or is_hub or is_twins):
        if gpu or definitions:
            raise click.UsageError("--gpu and --definitions go with a package (--wheel); a dataset takes the whole set")
        _copy(root, destination, output.is_json)
        return
    from kernelderby.api import deploy
    from kernelderby.catalog import Catalog

    catalog = Catalog.open(root)
    if plan or destination is None:
        output.emit(deploy.plan(catalog, definitions, gpu=gpu))
    elif is_hub:
        output.emit(deploy.hub(catalog, destination, definitions, gpu=gpu))
    elif is_twins:
        output.emit(deploy.trace_apply(catalog, destination, definitions, gpu=gpu))
    else:

        def told(name: str) -> None:
            warn([] if output.is_json else [f"compiling {name}"])

        output.emit(deploy.wheel(catalog, destination, definitions, gpu=gpu, told=told))


def _copy(root: Path, destination: Path, as_json: bool) -> None:
    from kernelderby.catalog.pack import export

    changes = export(root, destination)
    if as_json:
        say_json({"copied": [str(change.path) for change in changes]})
        return
    for change in changes:
        say_line(f"copied  {change}")
    if not changes:
        say(f"{destination}: has everything already")
