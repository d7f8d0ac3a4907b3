"""Copies of the set of misbehaviours, and runs over it without the command (which refuses to measure a CPU)."""

from __future__ import annotations

import shutil
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.plan import Settings, make_plan
from kernelderby.measure.runner import Observer, Runner

MISBEHAVIOURS = Path(__file__).resolve().parent.parent / "misbehaviours"
DEFINITION = "scaled_add_n16"
CPU = Machine("cpu", gpu_missing="the tests run on the CPU", protocol="cpu-wall")


def copied_set(destination: Path) -> Path:
    return Path(shutil.copytree(MISBEHAVIOURS, destination / "set", ignore=shutil.ignore_patterns("__pycache__")))


def measure(
    root: Path, solutions: list[str], workloads: tuple[str, ...] = (), machine: Machine = CPU, planned=None, **settings
):
    """Rows that one run adds, with small rounds. planned: called between the plan and the run."""
    settings = Settings(**{"rounds": 2, "most_rounds": 2, "iterations": 4, "timeout_seconds": 30, **settings})
    catalog = Catalog.open(root)
    plan = make_plan(catalog, machine, settings, solutions, workloads=workloads)
    if planned:
        planned()
    return Runner(catalog, machine, settings, Observer()).run(plan)
