"""Copies of the set of misbehaviours, and runs over it without the command (which refuses to measure a CPU); what may
be said of a process by its id, which another one gets when it has ended."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.measure.wire.sources import cache_folder

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


def said_by(row) -> str:
    """The text that the row's solution printed; the row has only its hash."""
    hashes = re.findall(r"\(log ([0-9a-f]{12})\)", row.message)
    return "\n".join(path.read_text() for each in hashes for path in (cache_folder() / "logs").glob(f"*/{each}.txt"))


def of_process(pid: int) -> tuple[str, str] | None:
    """The letter of its state, and when it began, which tells it from a later one of that id. None where it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], words[19]


def ends(pid: int, began: str, seconds: float = 60) -> bool:
    """Whether the process that began then is at its end, or soon. Its remains count for nothing: they wait for a
    parent, and not every init of a container looks for them."""
    until = time.monotonic() + seconds
    while (now := of_process(pid)) is not None and now[0] != "Z" and now[1] == began:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
