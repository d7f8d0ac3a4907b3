"""Captured calls after a larger one: what the judge says of solutions that free or move what their graphs hold.

Without a GPU a stand-in for graphs calls the solution with the memory that it had when it was captured."""

from dataclasses import replace

import pytest
import torch
from measuring import DEFINITION, MISBEHAVIOURS, copied_set, measure
from test_race import CPU, MODULE, FakeGraphs, right

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import Case, case_of_workload
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.race import larger_case, overtaken
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.run.checks import plan_checks, run_checks
from kernelderby.measure.wire.replies import Failed
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.executor import Canaries, _requests, local_race
from kernelderby.rows.measurement import Status


@pytest.fixture(scope="module")
def definition():
    return Catalog.open(MISBEHAVIOURS).definition(DEFINITION)


def maker(definition, rows):
    case = Case(f"rows={rows}", {"rows": rows, "columns": 16}, {"factor": 2.0}, 5)
    return InputMaker(definition, MODULE, case, CPU, None)


class KeepsMemory:
    """A solution with a workspace; freed memory gets other contents, as if another program used it."""

    def __init__(self, gives_up):
        self.gives_up, self.kept = gives_up, [torch.zeros(0)]

    def __call__(self, x, y, factor, out):
        if self.kept[-1].numel() < x.numel():
            if self.gives_up:
                self.kept[-1].fill_(float("nan"))
            self.kept.append(torch.zeros(x.numel()))
        torch.add(x + self.kept[-1][: x.numel()].view(x.shape), y, alpha=factor, out=out)


class Graphs(FakeGraphs):
    """A replay is a call with the memory that the solution held at the capture."""

    def __init__(self, solution):
        super().__init__()
        self.solution = solution

    def capture(self, call):
        call()
        held = self.solution.kept[-1]

        def replay():
            now, self.solution.kept = self.solution.kept, [held]
            returned = call()
            self.solution.kept = now
            return returned

        return replay


def verdict_on(definition, solution, graphs):
    race = local_race(Candidate(solution, True, definition), MODULE, maker(definition, 3), graphs)
    race.capture()
    return race, overtaken(race.exchange, maker(definition, 12))


@pytest.mark.parametrize("gives_up", (False, True))
def test_a_workspace_that_a_graph_outlives(definition, gives_up):
    solution = KeepsMemory(gives_up)
    race, verdict = verdict_on(definition, solution, Graphs(solution))
    if not gives_up:
        assert verdict.status is Status.PASSED
        assert race.turn(1, 4).verdict.status is Status.PASSED, "it goes on with what it timed before"
        return
    assert verdict.status is Status.GRAPH_OVERTAKEN
    assert "replayed after a larger one (rows=12): not_a_number" in verdict.message


@pytest.mark.parametrize(("nbytes", "told"), [(64, "64 bytes"), (1_234_567, "1200000 bytes")])
def test_bytes_that_a_replay_writes_elsewhere(definition, monkeypatch, nbytes, told):
    """To two digits: the number is the worker's word, and more digits could spell a message."""
    race = local_race(Candidate(right, True, definition), MODULE, maker(definition, 3), FakeGraphs())
    race.capture()
    monkeypatch.setattr(race.exchange.executor, "overwritten", lambda: nbytes)
    verdict = overtaken(race.exchange, maker(definition, 12))
    assert verdict.status is Status.GRAPH_OVERTAKEN and f"wrote into {told}" in verdict.message


def test_a_process_that_the_replay_ends(definition, monkeypatch):
    race = local_race(Candidate(right, True, definition), MODULE, maker(definition, 3), FakeGraphs())
    race.capture()

    def dies(which):
        raise Failed(Status.RAISED, "CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(race.exchange.executor, "replay", dies)
    with pytest.raises(Failed) as caught:
        overtaken(race.exchange, maker(definition, 12))
    assert caught.value.status is Status.GRAPH_OVERTAKEN and "illegal memory access" in caught.value.message


def test_the_larger_call_gets_setups_answer_of_its_own(definition):
    with_constant = replace(
        definition, inputs={**definition.inputs, "x": replace(definition.inputs["x"], constant=True)}
    )

    def run(x, y, factor, out, doubled):
        torch.add(doubled / 2, y, alpha=factor, out=out)

    candidate = Candidate(run, True, with_constant, setup=lambda x: {"doubled": 2 * x})
    race = local_race(candidate, MODULE, maker(with_constant, 3), FakeGraphs())
    race.capture()
    assert overtaken(race.exchange, maker(with_constant, 12)).status is Status.PASSED
    assert race.turn(1, 4).verdict.status is Status.PASSED


def test_which_case_is_the_larger_one():
    """Four times the outputs at least, of equal widths, the least of those; else whatever is larger; else none."""
    catalog = Catalog.open(MISBEHAVIOURS.parents[1])

    def pick(name, **axes):
        definition = catalog.definition(name)
        workload = next(w for w in catalog.workloads(name) if all(w.axes[axis] == size for axis, size in axes.items()))
        return larger_case(catalog, definition, case_of_workload(definition, workload))

    name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
    tokens = sorted(w.axes["seq_len"] for w in catalog.workloads(name))
    for number in tokens[:-1]:
        found = pick(name, seq_len=number).sizes["seq_len"]
        wanted = min((other for other in tokens if other >= 4 * number), default=None)
        assert found == (wanted or min(other for other in tokens if other > number))
    assert pick(name, seq_len=tokens[-1]) is None
    fused = catalog.workloads("fused_moe")
    least = min(fused, key=lambda w: w.axes["num_tokens"])
    found = pick("fused_moe", **least.axes)
    assert found.sizes["num_tokens"] > least.axes["num_tokens"]


def test_canaries_fill_what_the_allocator_has_free():
    """In requests that its best fit answers with that block: small segments take requests up to 1 MiB."""
    assert _requests(2 << 20, is_small=True) == [1 << 20] * 2
    assert _requests((1 << 20) + 512, is_small=True) == [1 << 20, 512]
    assert _requests(20 << 20, is_small=False) == [20 << 20]
    assert _requests(512, is_small=False) == [], "would be answered from elsewhere"
    assert Canaries(CPU).changed() == 0


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_real_graph_that_a_larger_call_leaves_behind(tmp_path):
    """In check and in bench: a solution that frees its workspace is out, the honest one is not."""
    root = copied_set(tmp_path)
    machine = find_machine(root, "cuda")
    names = ["frees_what_its_graph_holds", "honest"]
    wanted = {"frees_what_its_graph_holds": Status.GRAPH_OVERTAKEN, "honest": Status.PASSED}
    catalog = Catalog.open(root)
    results = run_checks(catalog, machine, plan_checks(catalog, machine, names, workloads=["8"]), 60, print)
    assert {result.solution: result.status for result in results} == wanted
    rows = measure(root, names, workloads=("8",), machine=machine)
    assert {row.solution: row.status for row in rows} == wanted
