"""What this machine has and which solutions can run on it."""

from __future__ import annotations

import glob
import platform
import shutil
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.environment import LIBRARIES, GpuSensors, host_cpu, library_versions
from kernelderby.measure.machine import Machine, find_machine
from kernelderby.measure.requirements import why_not

# What else may be on PATH, and where it hides when it is not.
TOOLS = {"nvcc": "/usr/local/cuda/bin/nvcc", "ncu": "/opt/nvidia/nsight-compute/*/ncu",
         "nsys": "/opt/nvidia/nsight-*/*/host/target-linux-x64/nsys", "cuobjdump": "/usr/local/cuda/bin/cuobjdump"}


def examine(root: Path) -> dict[str, Any]:
    """python, gpu, driver, protocol, libs (name -> version or None), tools (name -> path or None), solutions (name ->
    why it cannot run here, None when it can), and on_cpu the same for a check on the CPU."""
    catalog = Catalog.open(root)
    machine, cpu = find_machine(root, "cuda"), Machine("cpu", gpu_missing="no GPU is used here")
    sensors = GpuSensors(machine.gpu["uuid"]) if machine.gpu else None
    versions = library_versions()
    solutions = {}
    for solution in catalog.solutions.values():
        solutions[solution.name] = {"definition": solution.definition, "on_gpu": why_not(solution, machine),
                                    "on_cpu": why_not(solution, cpu)}
    return {
        "python": machine.python or platform.python_version(), "host_cpu": host_cpu(), "gpu": machine.gpu,
        "gpu_missing": machine.gpu_missing, "driver": sensors.driver() if sensors else None,
        "clocks": sensors.read() if sensors else {}, "nvml_missing": sensors.problem if sensors else "",
        "protocol": machine.protocol or None, "protocol_note": machine.protocol_note,
        "cuda": machine.libs.get("cuda"), "libs": {name: versions.get(name) for name in LIBRARIES},
        "tools": {name: _find_tool(name, place) for name, place in TOOLS.items()},
        "solutions": solutions,
    }


def _find_tool(name: str, place: str) -> str | None:
    return shutil.which(name) or next(iter(sorted(glob.glob(place), reverse=True)), None)
