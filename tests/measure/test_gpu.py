"""On a GPU: correctness at full shapes, CUPTI against CUDA events and against flashinfer's own timing."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest
from measuring import copied_set, measure

from kernelderby.catalog import Catalog
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.run.checks import plan_checks, run_checks
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.rows.measurement import Status

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

MOE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
SMALL, MIDDLE = "seq_len=7", "seq_len=901"


@pytest.fixture(scope="module")
def machine(checkout):
    return find_machine(checkout, "cuda")


def test_right_at_full_shapes(checkout, machine):
    catalog = Catalog.open(checkout)
    names = ["derby_moe_sm90", "triton_compact"]  # the others take minutes to be built
    plan = plan_checks(catalog, machine, names, definitions=[MOE], workloads=[SMALL, MIDDLE])
    results = run_checks(catalog, machine, plan, 600, lambda result: print(result.solution, result.case, result.status))
    assert results and [result for result in results if result.status is not Status.PASSED] == []


def test_misbehaviours_on_a_gpu(tmp_path, machine):
    """The ones without a long wait: a process that dies with a context, memory, an input, a cache."""
    root = copied_set(tmp_path)
    names = ["kills_its_process", "runs_out_of_memory", "changes_an_input", "cached_output", "writes_nothing", "honest"]
    rows = measure(root, names, workloads=("8",), machine=machine)
    assert {row.solution: row.status for row in rows} == {
        "kills_its_process": Status.CRASHED,
        "runs_out_of_memory": Status.OUT_OF_MEMORY,
        "changes_an_input": Status.INPUT_CHANGED,
        "cached_output": Status.STALE_OUTPUT,
        "writes_nothing": Status.UNWRITTEN,
        "honest": Status.PASSED,
    }
    assert Catalog.open(root).traces_path(machine.id, "scaled_add_n16").is_file()


# Both timers in one process, on a solution's own call; then flashinfer's, which shuts CUPTI down at its end.
COMPARE = """
import json, statistics, sys
from pathlib import Path
import torch
from kernelderby.catalog import Catalog
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.worker.build import load_solution
from kernelderby.catalog.selection import select_workloads
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.clock.timing import CuptiTimer, EventTimer, flush_bytes

root, definition, name, workload = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
catalog, device = Catalog.open(root), torch.device("cuda", 0)
definition, solution = catalog.definition(definition), catalog.solution(name)
workload, = select_workloads(catalog.workloads(definition.name), [workload])
maker = InputMaker(definition, load_definition_module(definition), case_of_workload(definition, workload), device, root)
candidate = Candidate(load_solution(definition, solution), solution.destination_passing_style, definition)
inputs, outputs = maker.make(), candidate.new_outputs(maker)

def call(_=0):
    candidate(inputs, outputs)

for _ in range(5):
    call()
cupti = CuptiTimer(device)
cupti.spans(call, 5)
found = {"cupti": cupti.spans(call, 30), "events": EventTimer(device).spans(call, 30)}
found = {name: statistics.median(spans.spans_us) for name, spans in found.items()}
if "flashinfer" in sys.argv:
    from flashinfer.testing import bench_gpu_time_with_cupti
    spans = bench_gpu_time_with_cupti(call, dry_run_iters=5, repeat_iters=30)
    found["flashinfer"] = statistics.median(spans) * 1e3
print(json.dumps(found))
"""


def compared(checkout, name: str, workload: str, *others: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(checkout), MOE, name, workload, *others],
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(name, workload, done.stdout.splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def one_solution(checkout, machine) -> str:
    plan = make_plan(Catalog.open(checkout), machine, Settings(again=True), definitions=[MOE])
    runnable = [solution.name for solution in plan.jobs[0].solutions]
    return "triton_compact" if "triton_compact" in runnable else runnable[0]


def test_cupti_spans_are_a_little_shorter_than_events(checkout, machine):
    if machine.protocol_note:
        pytest.skip(machine.protocol_note)
    found = compared(checkout, one_solution(checkout, machine), MIDDLE)
    assert 0.5 * found["events"] < found["cupti"] <= found["events"] * 1.02


def test_cupti_spans_agree_with_those_of_flashinfer(checkout, machine):
    pytest.importorskip("flashinfer.testing")
    if machine.protocol_note:
        pytest.skip(machine.protocol_note)
    found = compared(checkout, one_solution(checkout, machine), MIDDLE, "flashinfer")
    assert found["cupti"] == pytest.approx(found["flashinfer"], rel=0.02)


def test_a_run_gives_rounds_in_turn_clocks_and_versions(checkout, machine, tmp_path):
    """Rows go into a copy of the set, without blobs and traces."""
    import shutil

    for part in ("definitions", "workloads", "solutions"):
        shutil.copytree(checkout / part, tmp_path / part)
    catalog, settings = Catalog.open(tmp_path), Settings(rounds=3, iterations=6, most_rounds=3)
    plan = make_plan(catalog, machine, settings, definitions=[MOE], workloads=[SMALL])
    rows = Runner(catalog, machine, settings, Observer()).run(plan)
    for row in rows:
        assert row.status is Status.PASSED, f"{row.solution}: {row.message}"
        assert row.protocol == machine.protocol and len(row.samples_us) == 3 and row.reference_latency_us > 0
        assert row.environment["libs"]["torch"] and row.environment["clocks_before"].get("sm_mhz", 1) > 0
        # Of an eager time of many launches a busy host makes any spread.
        rounds = row.times.get("graph", row.times["busy"]).samples_us
        spread = statistics.quantiles([sample for spans in rounds for sample in spans], n=10)
        assert spread[-1] < 2 * spread[0], row.solution
