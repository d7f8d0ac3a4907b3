"""The solutions that this machine can run (measure.machine.doctor's findings, a dict) as two short tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Column, Report, Table, left
from kernelderby.report.numbers import few


def machine_answer(found: dict[str, Any]) -> Answer[dict[str, Any]]:
    """Frames: solutions, with the reason why one cannot run here; libraries."""
    return Answer(found, lambda: found, lambda: [machine_report(found)], lambda: _frames(found))


def _frames(found: Mapping[str, Any]) -> tuple[Frame, ...]:
    solutions = (
        {"solution": name, "definition": each["definition"]}
        | {where: _one_line(each[where]) for where in ("on_gpu", "on_cpu")}
        for name, each in found["solutions"].items()
    )
    return (
        frame("solutions", solutions),
        frame("libraries", ({"library": name, "version": version} for name, version in found["libs"].items())),
    )


def machine_report(found: Mapping[str, Any]) -> Report:
    machine = Table("This machine", left("what", "here"), _machine(found), key_columns=2)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, each in found["solutions"].items():
        groups.setdefault((_reason(each["on_gpu"]), _reason(each["on_cpu"])), []).append(name)
    columns = (Column("solutions"), *left("on this GPU", "derby check on the CPU", "which"))
    rows = tuple(
        (len(names), on_gpu, on_cpu, few(names))
        for (on_gpu, on_cpu), names in sorted(groups.items(), key=lambda group: -len(group[1]))
    )
    return Report(
        "What this machine can run",
        (),
        (machine, Table("Solutions", columns, rows, key_columns=4)),
        ("`derby doctor --format csv` has a row for every solution",),
    )


def _machine(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    gpu = found["gpu"]
    lines = [("python", found["python"]), ("CPU", found["host_cpu"])]
    if gpu:
        sizes = f"{gpu['memory_bytes'] / 2**30:.0f} GiB, L2 {gpu['l2_bytes'] / 2**20:.0f} MiB"
        lines += [
            ("GPU", f"{gpu['name']}, compute capability {gpu['compute_capability']}, {sizes}"),
            ("driver", found["driver"] or f"unknown ({found['nvml_missing']})"),
            ("timing", found["protocol"] + (f" ({found['protocol_note']})" if found["protocol_note"] else "")),
        ]
    else:
        lines += [("GPU", f"none: {_one_line(found['gpu_missing'])}")]
    lines += [("CUDA of torch", found["cuda"] or "none")]
    lines += [(f"fence: {name}", "yes" if here else "no") for name, here in found["fences"].items()]
    for what, versions in (("libraries", found["libs"]), ("tools", found["tools"])):
        there = [f"{name} {version}" for name, version in versions.items() if version]
        lines += [(what, ", ".join(there) or "none")]
        missing = [name for name, version in versions.items() if not version]
        lines += [("not installed" if what == "libraries" else "not found", ", ".join(missing))] if missing else []
    return lines


def _reason(reason: str | None) -> str:
    """The reason; a missing GPU is explained in the table above."""
    if reason is None:
        return "yes"
    return "needs a GPU" if reason.startswith("needs a GPU: ") else _one_line(reason) or ""


def _one_line(reason: str | None) -> str | None:
    """One line from the output of a process that died: what was tried, and the last line, which names the error."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    if len(lines) < 2:
        return reason
    return f"{lines[0].rpartition(': ')[0] or lines[0]}: {lines[-1]}"
