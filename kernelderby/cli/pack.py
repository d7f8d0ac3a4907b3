"""derby pack: sources -> JSON, inputs and costs."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, json_option, written_root_option
from kernelderby.cli.output import say, say_json, say_line, warn
from kernelderby.store.counts import counted
from kernelderby.store.locate import install_words

_MEASURE_NEEDS = ("torch", "safetensors")


@click.command(cls=DerbyCommand)
@written_root_option
@click.option("--check", is_flag=True, help="Write nothing; list stale files and exit 1 if there are any.")
@json_option
def command(root: Path, check: bool, as_json: bool) -> None:
    """Write the JSON and blobs that flashinfer-bench loads, from the sources.

    The .py beside a definition becomes its `reference`, each solution's folder its JSON, each definition's
    generate_inputs the safetensors under blob/, and its count_cost the `cost` of every workload.
    """
    if not check:
        from kernelderby.measure.wire.early import begin_judging

        begin_judging(root, [root], on_gpu=False)
    from kernelderby.catalog import Catalog
    from kernelderby.catalog.pack import pack, problems

    unpacked: list[str] = []
    changes = [str(change) for change in pack(root, check, unpacked.append)]
    broken = list(dict.fromkeys([*unpacked, *problems(root)]))
    missing = [name for name in _MEASURE_NEEDS if importlib.util.find_spec(name) is None]
    if not missing:
        from kernelderby.measure.judge.blobs import pack_blobs

        catalog = Catalog.open(root)
        if check:
            from kernelderby.measure.judge.fenced import FencedDefinitions

            with FencedDefinitions(catalog) as fenced:
                changes += pack_blobs(catalog, check, broken.append, fenced.changes)
        else:
            changes += pack_blobs(catalog, check, broken.append)
    left_out = missing and (
        f"blobs and costs were not {'checked' if check else 'made'}: {' and '.join(missing)} not "
        "installed; " + install_words("measure")
    )
    if as_json:
        say_json({"check": check, "changes": changes, "broken": broken, "left_out": left_out or None})
    else:
        for line in broken:
            say_line(f"broken  {line}")
        for line in _lines(changes):
            say_line(f"stale  {line}" if check else "wrote  {} (before: {})".format(*line.split(": ", 1)))
        if not changes and not broken:
            say("everything is fresh")
        elif check and changes:
            say("run derby pack and commit what it writes")
        if left_out:
            warn([left_out])
    if broken or (check and changes):
        sys.exit(1)


def _lines(changes: list[str]) -> list[str]:
    """One line for each change; the many blobs of one folder share one."""
    blobs: Counter[tuple[str, str]] = Counter()
    lines = []
    for change in changes:
        path, is_blob, reason = change.partition(".safetensors: ")
        if is_blob:
            blobs[str(Path(path).parent), reason] += 1
        else:
            lines.append(change)
    return lines + [f"{folder}/: {reason} ({counted(count, 'file')})" for (folder, reason), count in blobs.items()]
