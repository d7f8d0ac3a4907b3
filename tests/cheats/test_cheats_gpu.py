"""The exploits and honest solutions on a GPU: over CUDA IPC, with the timers and graphs that rows come from.

exploits_gpu/*.py: beside STATUS, GRAPH False where no graph time may come of it, LEAST_US, what a call really takes (a
row that passed must not claim less), LARGE for what would gain at 24 MiB (a row that passed must not be faster than the
honest one of that size, but for KNOWN, a share of its time that docs/protocol.md tells of), ALONE for what disturbs
those beside it. All of them in one process that says how far it is (153 s on an H200, 2026-11-30), with a table of what
each gains: pytest tests/cheats/test_cheats_gpu.py -m gpu -q -s"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_cheats
from test_cheats import DEFINITION, EVERY_HONEST, HERE, MEASURING, SECRET, add_solution, constants
from test_cheats import EVERY as EXPLOITS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

# These change the CPU's timer, read a tensor as an array of the CPU, or cheat in batches, which a GPU's judge asks for
# only where its pace is unsure (leaves_out_a_tenth_of_its_single_calls does the same there).
OF_A_CPU = {
    *("a_clock_that_runs_back", "a_clock_that_runs_slow", "a_clock_that_stands_still", "a_timer_of_its_own"),
    *("fewer_spans_than_calls", "spans_that_are_no_numbers", "cached_by_a_generated_input"),
    *("a_third_of_its_spans", "a_slow_host_that_it_claims", "a_wait_inside_of_its_call", "spins_when_it_is_calibrated"),
    *("quick_when_calls_come_in_batches", "leaves_out_a_tenth_of_a_batch", "one_answer_for_a_whole_batch"),
    *("calls_of_a_batch_side_by_side", "a_secret_in_its_notes"),
    "says_done_before_it_is",  # in a batch, too
    *("a_clock_in_other_machine_code", "works_when_a_profiler_is_told", "works_when_an_alarm_rings"),
    *("a_secret_in_its_times", "a_secret_in_days", "six_tenths_of_its_claims", "keeps_answers_by_their_contents"),
    *("maps_its_own_memory_over_its_output", "punches_holes_into_its_inputs", "reads_beyond_its_outputs"),
    *("hides_behind_a_dead_thread", "json_that_lies", "busy_longer_than_its_spans"),
}
HONEST_OF_A_CPU = {
    *(
        "a_pool_of_processes",
        "an_event_loop",
        "ends_its_helper_with_itself",
        "compiles_c",
        "forks_in_its_call",
        "keeps_a_thread_running",
    ),
    *("limits_itself", "looks_at_the_machine", "pins_itself", "prints_and_warns", "writes_files"),
    *("exits_in_its_child", "names_itself"),
}
HONEST = [name for name in EVERY_HONEST if name not in HONEST_OF_A_CPU]
# What they do to the run never reaches a GPU: a process that says nonsense, leaves, or is refused by the kernel; words
# that would get out; a host's files and threads. The last one waits for the judge's patience.
SAME_ON_A_CPU = {
    *(name for name, each in EXPLOITS.items() if each["CLASS"] in ("the run attacked", "something gets out")),
    *(name for name, each in EXPLOITS.items() if each.get("NEEDS")),
    *("leaves_files_without_contents", "puts_a_file_where_its_home_was", "runs_when_python_ends"),
    *("works_on_while_it_is_stopped", "takes_requests_for_itself"),
}
OWN = {path.stem: path for path in sorted((HERE / "exploits_gpu").glob("*.py"))}
HONEST_GPU = {path.stem: path for path in sorted((HERE / "honest_gpu").glob("*.py"))}
test_cheats.SOURCES |= OWN | HONEST_GPU
OF_A_GPU = {name: constants(name) for name in OWN}
BOTH = {name: each for name, each in EXPLOITS.items() if name not in OF_A_CPU | SAME_ON_A_CPU}
GROUP = 30  # side by side: each group starts its own processes
# Honest ones at 24 MiB, whose gains the table shows beside those of the exploits; all of them run at the small size.
HONEST_LARGE = ("autotuned", "triton_kernel", "two_streams")
BELOW_US = 1.0  # by so much the judge's clock came out below the protocol's timer (graphs of 8 us, H200, 2026-11-23)
ROWS = {"small": 8, "large": 1 << 17}

RUN = """
import json, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import measuring
from kernelderby.measure.judge import doubt
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.run.progress import Observer

doubt._PATIENCE = (0.1, 0.3, 0.5)  # as many tries, sooner: nobody else is at work here
start = time.monotonic()


class Told(Observer):
    def row(self, row):
        said = row.message.partition(chr(10))[0][:150], {kind: each.median_us for kind, each in row.times.items()}
        print(f"{time.monotonic() - start:6.1f} s  {row.solution}: {row.status}", *said, row.graph_missing, flush=True)

    def note(self, line):
        print(f"{time.monotonic() - start:6.1f} s  {line[:200]}", flush=True)


measuring.Observer = Told
groups = json.loads(sys.argv[2])
machine = find_machine(Path(groups[0]["root"]), "cuda")
for group in groups:
    begun = time.monotonic()
    print(f"{begun - start:6.1f} s  {len(group['names'])} on {group['rows']} rows", flush=True)
    rows = measuring.measure(Path(group["root"]), group["names"], workloads=(f"rows={group['rows']}",), rounds=2,
                             iterations=6, timeout_seconds=20, machine=machine)
    took = sorted(((row.environment.get("seconds") or 0, row.solution) for row in rows), reverse=True)
    longest = ", ".join(f"{name} {seconds:.1f}" for seconds, name in took[:12])
    print(f"{time.monotonic() - start:6.1f} s  took {time.monotonic() - begun:.1f} s; its rows {longest}", flush=True)
"""


def groups() -> list[tuple[str, list[str]]]:
    """(size, names): each with an honest one to compare with."""
    large = [name for name, each in OF_A_GPU.items() if each.get("LARGE")]
    alone = [name for name, each in OF_A_GPU.items() if each.get("ALONE")]
    beside = [*OF_A_GPU, *BOTH, *HONEST_GPU, *(name for name in HONEST if name != "writes_its_output")]
    beside = [name for name in beside if name not in large + alone]
    found = [("large", [*large, *HONEST_LARGE])]
    found += [("small", beside[start : start + GROUP]) for start in range(0, len(beside), GROUP)]
    return [(size, ["writes_its_output", *names]) for size, names in [*found, *(("small", [name]) for name in alone)]]


def made(root: Path, rows: int, names: list[str]) -> dict[str, object]:
    """A set of its own for each group, with the workload of that size."""
    sys.path.insert(0, str(MEASURING))
    from measuring import MISBEHAVIOURS

    for part in ("definitions", "workloads"):
        shutil.copytree(MISBEHAVIOURS / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    (path,) = root.glob("workloads/*/*.jsonl")
    path.write_text(path.read_text().partition("\n")[0].replace('"rows": 8', f'"rows": {rows}') + "\n")
    for name in names:
        add_solution(root, name)
    return {"root": str(root), "names": names, "rows": rows}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(size, name) -> row."""
    told = [made(tmp_path_factory.mktemp("cheats") / "set", ROWS[size], names) for size, names in groups()]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(MEASURING), json.dumps(told)],
        timeout=500,
        start_new_session=True,
        env={**os.environ, "SOME_TOKEN": SECRET, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))},
    )
    assert done.returncode == 0, "the runner did not come to its end"
    rows = {}
    for group, (size, _) in zip(told, groups(), strict=True):
        for path in Path(str(group["root"])).glob(f"traces/*/elementwise/{DEFINITION}.jsonl"):
            rows |= {(size, row["solution"]): row for row in map(json.loads, path.read_text().splitlines())}
    return rows


@pytest.mark.parametrize("name", [*OF_A_GPU, *BOTH])
def test_an_exploit_gains_nothing(found, name):
    exploit = {**OF_A_GPU, **BOTH}[name]
    row = found["large" if exploit.get("LARGE") else "small", name]["measurement"]
    status = row["status"]
    medians = {kind: each["median_us"] for kind, each in row.get("times", {}).items() if kind != "busy"}
    assert status != "passed" or "passed" in exploit["STATUS"], medians
    if status == "passed":
        assert exploit.get("GRAPH", True) or "graph" not in medians
        assert all(median >= exploit.get("LEAST_US", 0) for median in medians.values()), medians
    if status == "passed" and exploit.get("LARGE"):
        honest = found["large", "writes_its_output"]["measurement"]["times"]
        for kind, median in medians.items():
            us = honest[kind]["median_us"]
            least = min(0.97, 1 - (2 + BELOW_US + unsure_us(row, kind)) / us) - exploit.get("KNOWN", 0)
            assert median > least * us, (kind, medians, honest)


def unsure_us(row, kind) -> float:
    """The uncertainty that the judge's clock gives for itself; 0 where batches decided."""
    return row["environment"].get("judge_unsure_us", {}).get(kind, 0.0)


def table_of_gains(found) -> list[tuple[str, str, str, float, float]]:
    """(size, name, kind, us, gain over the honest one of that size), the largest gains first."""
    lines = []
    for (size, name), row in found.items():
        honest = found[size, "writes_its_output"]["measurement"]["times"]
        for kind, each in row["measurement"].get("times", {}).items():
            if kind != "busy" and row["measurement"]["status"] == "passed":
                lines.append((size, name, kind, each["median_us"], 1 - each["median_us"] / honest[kind]["median_us"]))
    return sorted(lines, key=lambda line: -line[4])


def test_no_exploit_gains_more_than_the_clock_allows(found):
    """Prints the whole table. 5 % or 2 us, what the clock is unsure of, and what docs/protocol.md tells of (KNOWN)."""
    exploits, too_much = {**OF_A_GPU, **BOTH}, []
    print()
    for size, name, kind, us, gain in table_of_gains(found):
        unsure = unsure_us(found[size, name]["measurement"], kind)
        print(f"{size:5} {name[:44]:44} {kind:5} {us:9.2f} us {100 * gain:7.1f} %  unsure {unsure:.2f} us")
        allowed = max(0.05 + float(exploits.get(name, {}).get("KNOWN", 0)), (2 + BELOW_US + unsure) / us)
        if name in exploits and gain > allowed:
            too_much.append((size, name, kind, us, gain))
    for (size, name), row in sorted(found.items()):
        if row["measurement"]["status"] != "passed":
            print(f"{size:5} {name[:44]:44} {row['measurement']['status']}")
    assert not too_much


@pytest.mark.parametrize("name", [*HONEST, *HONEST_GPU])
def test_an_honest_one_passes(found, name):
    row = found["small", name]
    assert row["measurement"]["status"] == "passed", row["evaluation"]["log"]
    has_graph = constants(name).get("GRAPH", True)
    assert has_graph == ("graph" in row["measurement"]["times"]) != bool(row["measurement"].get("graph_missing"))
    replaced = set(re.findall(r"(graph|eager): [\d.]+ us a call by the judge's clock", row["evaluation"]["log"]))
    assert replaced <= {*constants(name).get("REPLACED", ())}


def test_who_has_no_graph_is_ranked_behind_with_its_eager_time(found):
    """Tests the row alone: report and rank have tests of their own."""
    for name in (each for each in HONEST_GPU if not constants(each).get("GRAPH", True)):
        row = found["small", name]["measurement"]
        assert row["times"]["eager"]["median_us"] > 0 and row["graph_missing"]


def test_there_are_enough():
    assert len(OF_A_GPU) + len(EXPLOITS) >= 140 and len(HONEST) + len(HONEST_GPU) >= 25


def test_an_honest_kernel_takes_what_it_takes(found):
    """One small kernel, in a graph: nothing of the judge's lies inside its window."""
    row = found["small", "writes_its_output"]["measurement"]
    empty = row["environment"]["empty_kernel_us"]["graph"]
    print(f"\nhonest {row['times']['graph']['median_us']} us, empty kernel {empty} us")
    assert empty <= row["times"]["graph"]["median_us"] < empty + 5


def test_the_judges_clock_bears_honest_claims_out(found):
    for name in ("writes_its_output", *HONEST_GPU):
        row = found["small", name]["measurement"]
        print(f"{name}: judge {row['environment']['judge_us']}, beside {row['environment']['judge_beside_us']}")
        if "graph" not in row["times"]:
            continue
        allowed = 1.05 * row["times"]["graph"]["median_us"] + 2 + unsure_us(row, "graph")
        assert row["environment"]["judge_us"]["graph"] <= allowed
        assert "graph: " not in found["small", name]["evaluation"]["log"], "the judge's clock has replaced its claim"
