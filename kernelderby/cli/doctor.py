"""derby doctor: what this machine can run, and why not the rest."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli import json_option, root_option


@click.command()
@root_option
@json_option
def command(root: Path, as_json: bool) -> None:
    """What this machine can run, and why not the rest."""
    import json

    from kernelderby.measure.machine.doctor import examine

    found = examine(root)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    _print(found)


def _print(found: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # a file or a pipe: do not fold the tables at 80
    machine = Table("what", "here", box=None, pad_edge=False)
    for what, text in _machine_lines(found):
        machine.add_row(what, text)
    console.print(machine)
    solutions = Table("solution", "on this GPU", "derby check on the CPU", box=None, pad_edge=False)
    for name, reasons in found["solutions"].items():
        solutions.add_row(name, reasons["on_gpu"] or "yes", reasons["on_cpu"] or "yes")
    console.print()
    console.print(solutions)


def _machine_lines(found: dict) -> list[tuple[str, str]]:
    gpu = found["gpu"]
    lines = [("python", found["python"]), ("CPU", found["host_cpu"])]
    if gpu:
        lines += [("GPU", f"{gpu['name']}, compute capability {gpu['compute_capability']}, "
                          f"{gpu['memory_bytes'] / 2**30:.0f} GiB, L2 {gpu['l2_bytes'] / 2**20:.0f} MiB"),
                  ("driver", found["driver"] or f"unknown ({found['nvml_missing']})"),
                  ("timing", found["protocol"] + (f" ({found['protocol_note']})" if found["protocol_note"] else ""))]
    else:
        lines += [("GPU", f"none: {found['gpu_missing']}")]
    lines += [(name, "yes" if here else "no") for name, here in found["fences"].items()]
    lines += [("CUDA of torch", found["cuda"] or "none")]
    lines += [(name, version or "not installed") for name, version in found["libs"].items()]
    lines += [(name, path or "not found") for name, path in found["tools"].items()]
    return lines
