"""derby shapes: the shapes that a model implies."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, Count, DerbyCommand, Wanted, definitions_option, names_option, root_option
from kernelderby.cli.output import Output, output_options, warn
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand)
@click.argument("config", metavar="[CONFIG.json|NAME]", required=False, type=FILE)
@click.option("--tp", "sharing", type=Count(1), default=1, help="GPUs that share each layer.")
@names_option("--tokens", metavar="N", help="Tokens of a step (default: 1 to 16384, as in the rules).")
@definitions_option
@click.option("--out", type=FILE, metavar="FILE", help="Write the lines of a workloads file there (.jsonl).")
@click.option("--update", is_flag=True, help="Without CONFIG.json: put the standing set into workloads/.")
@output_options("shapes", tables=("shapes",), write=False)
@root_option
def command(
    config: Path | None,
    sharing: int,
    tokens: tuple[str, ...],
    definitions: tuple[str, ...],
    out: Path | None,
    update: bool,
    root: Path,
    output: Output,
) -> None:
    """The workloads of every operator that a model's config.json implies on one of --tp GPUs, by rules
    (kernelderby/shapes/rules.toml): dense and mixture of experts, latent attention, mrope, FP8 where the file says so.

    NAME names a committed configuration, such as qwen3-32b. Without an argument: the standing set of origin `models`,
    chosen from the committed configurations.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.report.shapes import shapes_answer
    from kernelderby.shapes.model import left_out, read_model
    from kernelderby.shapes.rules import generated_inputs, shapes_of, token_counts
    from kernelderby.shapes.standing import configuration_file, standing_shapes, write_standing
    from kernelderby.store.files import write_jsonl
    from kernelderby.store.locate import writable_set

    if config is None and (tokens or sharing > 1):
        raise click.UsageError("--tp and --tokens go with a CONFIG.json; without one it is the standing set")
    if config is not None and update:
        raise click.UsageError("--update writes the standing set; leave out CONFIG.json, or write to --out FILE")
    catalog = Catalog.open(writable_set(root) if update else root)
    Wanted(definitions=definitions).resolved(catalog)
    if config is None:
        title, shapes = "the standing set", standing_shapes(catalog)
    else:
        model = read_model(configuration_file(config), sharing)
        warn(left_out(model, config))
        title, shapes = f"{model.name} on {counted(sharing, 'GPU')}", shapes_of(catalog, model, token_counts(tokens))
    chosen = [shape for shape in shapes if not definitions or shape.definition.name in definitions]
    lines = [shape.line(generated_inputs(catalog, shape.definition)) for shape in chosen]
    if update:
        changed = write_standing(catalog)
        warn([f"{path}: written; run derby pack, which counts the costs" for path in changed])
    if out is not None:
        write_jsonl(out, lines)
        place = "workloads/<op_type>/<operator>.jsonl"
        mend = f"put each operator's lines into {place} of a set, then run derby pack, which counts the costs"
        warn([f"{out}: {counted(len(lines), 'workload')} written; {mend}"])
    output.emit(shapes_answer(title, chosen, lines))
