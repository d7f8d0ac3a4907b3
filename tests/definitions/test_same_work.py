"""same_work of the experts: what a solution prepares for the routing that everybody knows is of no use in a timed call,
and the work stays what it is."""

from pathlib import Path

import pytest
import torch
from operators import CATALOG, load

from kernelderby.measure.clock.timing import WallTimer
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.executor import local_race
from kernelderby.rows.measurement import Status

CPU = torch.device("cpu")
NAMES = [name for name, each in CATALOG.definitions.items() if "\ndef same_work(" in each.reference]


def maker_of(name):
    definition, module = CATALOG.definition(name), load(name)
    (case,) = small_cases(definition, module.SMALL_AXES, [{}], 1)
    maker = InputMaker(definition, module, case, CPU, Path(), "secret")
    return maker, maker.make()


def test_the_experts_have_it():
    assert len(NAMES) >= 4 and all("moe" in name for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_call_has_the_same_work_in_another_order(name):
    maker, inputs = maker_of(name)
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    changed = list(load(name).same_work(before, torch.Generator()))
    assert changed and not set(changed) & set(maker.steady)
    seen = []
    for variant in ("1/eager/0", "1/eager/1", "1/eager/0"):
        maker.refresh(inputs, variant)
        seen.append({key: inputs[key].clone() for key in changed})
        for key in changed:
            assert torch.equal(inputs[key].flatten().sort().values, before[key].flatten().sort().values)
        for key in maker.steady:
            assert torch.equal(inputs[key], before[key])
    for key in changed:
        assert torch.equal(seen[0][key], seen[2][key]) and not torch.equal(seen[0][key], seen[1][key])


@pytest.mark.parametrize("name", [each for each in NAMES if "fused_moe" in each])
def test_weights_stay_with_their_experts(name):
    maker, inputs = maker_of(name)

    def pairs():
        both = (inputs[key].flatten().tolist() for key in ("topk_ids", "topk_weights"))
        return sorted(zip(*both, strict=True))

    before = pairs()
    maker.refresh(inputs, "1/eager/0")
    assert pairs() == before


def test_a_routing_kept_from_before_is_wrong():
    """It recognises the workload by its sizes, and leaves the routing out."""
    maker, _ = maker_of("fused_moe")
    module, kept = load("fused_moe"), {}

    def run(hidden, gate_up, down, ids, weights, out):
        routing = kept.setdefault("timed", (ids.clone(), weights.clone())) if timing else (ids, weights)
        out.copy_(module.run(hidden, gate_up, down, *routing))

    timing = False
    race = local_race(Candidate(run, True, maker.definition), module, maker, WallTimer())
    assert race.check().status is Status.PASSED
    race.start()
    assert race.turn(1, 4).verdict.status is Status.PASSED
    timing = True
    assert race.turn(2, 4).verdict.status is Status.WRONG_VALUES
