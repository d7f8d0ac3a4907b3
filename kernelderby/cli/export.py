"""derby export: the set -> another flashinfer-bench dataset; its winners -> a package for servers."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, definitions_option, root_option
from kernelderby.cli.output import Output, output_options, say, say_json, say_line, warn


@click.command(cls=DerbyCommand)
@click.argument("destination", type=FILE, required=False)
@click.option("--wheel", "form", flag_value="wheel", help="A wheel of the fastest solutions, in that folder.")
@click.option("--hf-kernels", "form", flag_value="hub", help="Those in Triton as a repository for HF's `kernels`.")
@click.option("--trace-apply", "form", flag_value="trace_apply", help="Twins for FlashInfer's trace_apply.")
@click.option("--plan", is_flag=True, help="Write nothing: what a package would run, and what its choice loses.")
@click.option("--gpu", metavar="GPU", help="Of a package: measured on this GPU (default: the one with most rows).")
@definitions_option
@output_options("export", tables=("operators",), write=False)
@root_option
def command(
    destination: Path | None,
    form: str | None,
    plan: bool,
    gpu: str | None,
    definitions: tuple[str, ...],
    root: Path,
    output: Output,
) -> None:
    """Copy the set into the flashinfer-bench dataset at DESTINATION ($FIB_DATASET_PATH), or write a package there.

    Nothing is deleted there. A definition that it has already stays as it is, and so do its workloads; solutions are
    copied, or brought up to date.

    --wheel builds an installable package: operators of torch.library that run at each shape the solution that the
    recorded rows name (docs/serving.md). CUDA kernels are compiled here, once, by nvcc.
    """
    if plan:
        from kernelderby.api import deploy
        from kernelderby.catalog import Catalog

        output.emit(deploy.plan(Catalog.open(root), definitions, gpu=gpu))
        return
    if destination is None:
        raise click.UsageError("Missing argument 'DESTINATION': a folder to write to; --plan alone needs none")
    if form is None:
        if gpu or definitions:
            raise click.UsageError("--gpu and --definitions go with a package (--wheel); a dataset takes the whole set")
        _copy(root, destination, output.is_json)
        return
    from kernelderby.api import deploy
    from kernelderby.catalog import Catalog

    catalog = Catalog.open(root)
    if form == "hub":
        output.emit(deploy.hub(catalog, destination, definitions, gpu=gpu))
        return
    if form == "trace_apply":
        output.emit(deploy.trace_apply(catalog, destination, definitions, gpu=gpu))
        return
    told = None if output.is_json else lambda name: warn([f"compiling {name}"])
    answer = deploy.wheel(catalog, destination, definitions, gpu=gpu, told=told or (lambda name: None))
    output.emit(answer)


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
