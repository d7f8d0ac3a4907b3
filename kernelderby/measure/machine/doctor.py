"""The devices and libraries of this machine, and the solutions that it can run."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import msgspec

from kernelderby.catalog import Catalog
from kernelderby.catalog.libraries import LIBRARIES, library_versions
from kernelderby.measure.fence import landlock, seccomp, watcher
from kernelderby.measure.machine.environment import GpuSensors, host_cpu
from kernelderby.measure.machine.probe import Machine, find_machine
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.machine.tools import find_tool

TOOLS = ("nvcc", "ncu", "nsys", "cuobjdump")


def examine(root: Path) -> dict[str, Any]:
    """python, gpu, driver, protocol, libs (name -> version or None), tools (name -> path or None), solutions (name ->
    why it cannot run here, None if it can), on_cpu (the same for a check on the CPU), and fences (name -> whether this
    machine has the fence and derby uses it)."""
    catalog = Catalog.open(root)
    machine, cpu = find_machine(root, "cuda", glance=False), Machine("cpu", gpu_missing="no GPU is used here")
    sensors = GpuSensors(machine.gpu.uuid) if machine.gpu else None
    versions = library_versions()
    solutions = {}
    for solution in catalog.solutions.values():
        solutions[solution.name] = {
            "definition": solution.definition,
            "on_gpu": why_not(solution, machine, imports=False),
            "on_cpu": why_not(solution, cpu, imports=False),
        }
    return {
        "python": machine.python or platform.python_version(),
        "host_cpu": host_cpu(),
        "gpu": msgspec.structs.asdict(machine.gpu) if machine.gpu else None,
        "gpu_missing": machine.gpu_missing,
        "driver": sensors.driver() if sensors else None,
        "clocks": sensors.read() if sensors else {},
        "nvml_missing": sensors.problem if sensors else "",
        "protocol": machine.protocol or None,
        "protocol_note": machine.protocol_note,
        "cuda": machine.libs.get("cuda"),
        "libs": {name: versions.get(name) for name in LIBRARIES},
        "tools": {name: str(path) if (path := find_tool(name)) else None for name in TOOLS},
        "fences": {
            "seccomp (no signals to the run, no tracing, no network)": seccomp.has_seccomp(),
            "seccomp notices (signals to its own processes alone)": seccomp.can_ask(),
            "watcher (nothing outlives a run, however that ends)": watcher.can_watch(),
            "landlock (the set and the user's files read-only)": landlock.version() > 0,
        },
        "solutions": solutions,
    }
