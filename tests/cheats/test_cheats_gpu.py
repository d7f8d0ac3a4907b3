"""The exploits and honest solutions on a GPU: over CUDA IPC, with the timers and graphs that rows come from.

exploits_gpu/*.py: beside STATUS, GRAPH False where no graph time may come of it, and LEAST_US, what a call really
takes: a row that passed must not claim less. Some minutes: pytest tests/cheats/test_cheats_gpu.py -m gpu -q"""

from __future__ import annotations

import json

import pytest
import test_cheats
from test_cheats import EXPLOITS, HERE, HONEST, constants, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

# These change the CPU's timer, or read a tensor as an array of the CPU.
OF_A_CPU = {
    *("a_clock_that_runs_back", "a_clock_that_runs_slow", "a_clock_that_stands_still", "a_timer_of_its_own"),
    *("fewer_spans_than_calls", "spans_that_are_no_numbers", "cached_by_a_generated_input"),
}
OWN = {path.stem: path for path in sorted((HERE / "exploits_gpu").glob("*.py"))}
test_cheats.SOURCES |= OWN
OF_A_GPU = {name: constants(name) for name in OWN}
BOTH = {name: each for name, each in EXPLOITS.items() if name not in OF_A_CPU}
GROUP = 10

RUN = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from measuring import measure
from kernelderby.measure.machine.probe import find_machine

root = Path(sys.argv[2])
machine = find_machine(root, "cuda")
measure(root, sys.argv[3:], workloads=("8",), rounds=2, iterations=6, timeout_seconds=30, machine=machine)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    names, rows = [*HONEST, *OF_A_GPU, *BOTH], {}
    for start in range(0, len(names), GROUP):
        root = tmp_path_factory.mktemp("cheats") / "set"
        done = run(root, names[start : start + GROUP], RUN)
        assert done.returncode == 0, f"the runner of {names[start : start + GROUP]}: {done.stderr[-3000:]}"
        for path in root.glob("traces/*/*/*.jsonl"):
            rows |= {row["solution"]: row for row in map(json.loads, path.read_text().splitlines())}
    return rows


@pytest.mark.parametrize("name", [*OF_A_GPU, *BOTH])
def test_an_exploit_gains_nothing(found, name):
    row, exploit = found[name], {**OF_A_GPU, **BOTH}[name]
    status, times = row["measurement"]["status"], row["measurement"].get("times", {})
    print(f"\n{name}: {status} {row['evaluation']['log'][:160]}")
    assert status != "passed" or "passed" in exploit["STATUS"], {
        kind: each["median_us"] for kind, each in times.items()
    }
    if status == "passed":
        assert exploit.get("GRAPH", True) or "graph" not in times
        assert all(each["median_us"] >= exploit.get("LEAST_US", 0) for kind, each in times.items() if kind != "busy")


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_one_passes(found, name):
    row = found[name]
    assert row["measurement"]["status"] == "passed", row["evaluation"]["log"]


def test_an_honest_kernel_takes_what_it_takes(found):
    """One small kernel, in a graph: nothing of the judge's lies inside its window."""
    row = found["writes_its_output"]["measurement"]
    empty = row["environment"]["empty_kernel_us"]["graph"]
    print(f"\nhonest {row['times']['graph']['median_us']} us, empty kernel {empty} us")
    assert empty <= row["times"]["graph"]["median_us"] < empty + 5
