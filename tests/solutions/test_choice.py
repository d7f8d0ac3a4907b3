"""common/choice.py: what a call uses at keys of a table, near them and far from them, on the tables as they are."""

import math
import random
from types import SimpleNamespace

import pytest
import torch
from rowwise_cases import CATALOG, OPERATORS, case_of, module

from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.inputs import shape_of

CHOICE = module("rms_norm").choice
A, B, CUDA = {"rows": 1}, {"rows": 2}, {"threads": 64}
GPU = "NVIDIA H200"


@pytest.mark.parametrize(
    ("key", "other", "octaves"),
    [
        ("h4096 t<=64", "h4096 t<=64", 0),
        ("h4096 t<=64", "h4096 t<=16", 2),
        ("h4096 t<=64", "h2048 t<=64", CHOICE.EXACT),
        ("h4096 t<=64", "h2048 t<=128", CHOICE.EXACT + 1),
        ("t<=0", "t<=1", 0),
        ("heads=16+1 rows<=64", "heads=16+4 rows<=64", 2 * CHOICE.EXACT),
        ("h4096 t<=64", "i4096 t<=64", math.inf),
        ("h4096 t<=64", "h4096", math.inf),
    ],
)
def test_the_distance_of_two_keys(key, other, octaves):
    assert CHOICE.distance(key, other) == CHOICE.distance(other, key) == octaves


def test_without_a_find_nearby_the_model_decides_and_of_equals_the_first():
    assert CHOICE.expected_best("t<=8", {}, [A, B], [0.2, 0.1]) == B
    assert CHOICE.expected_best("t<=8", {}, [A, B], [0.1, 0.1]) == A
    assert CHOICE.expected_best("t<=8", {"t<=4096": B}, [A, B], [0.1, 0.1]) == A  # nine octaves away


@pytest.mark.parametrize(("octaves", "wins"), [(0, True), (1, True), (2, False)])
def test_a_find_makes_up_for_what_the_model_holds_against_it_the_less_the_further(octaves, wins):
    """0.16, 0.08 and 0.04 against 0.05: no key lies at distance 0 but in another spelling."""
    assert CHOICE.TRUST == 0.16
    chosen = CHOICE.expected_best("t<=8", {f"t<={8 << octaves}": B}, [A, B], [0.0, 0.05])
    assert chosen == (B if wins else A)


def test_what_the_model_does_not_know_needs_a_find():
    costs = [0.3, 0.2, None]
    assert CHOICE.expected_best("t<=8", {}, [A, B, CUDA], costs) == B
    assert CHOICE.expected_best("t<=8", {"t<=16": CUDA}, [A, B, CUDA], costs) == CUDA
    assert CHOICE.expected_best("t<=8", {}, [CUDA], [None]) == CUDA


def choice_of(found, calls):
    def candidates(x):
        calls.append(x.shape)
        return [A, B]

    return CHOICE.Choice(found, lambda x: f"t<={x.shape[0]}", candidates, lambda config, x: 0.0)


def test_a_table_is_of_its_gpu_and_a_shape_is_decided_once():
    calls = []
    choose = choice_of({"CPU": {"date": "2026-11-22", "table": {"t<=3": {"rows": 5}}}}, calls)
    assert choose(torch.empty(3, 8)) == {"rows": 5} and not calls
    assert choose(torch.empty(500, 8)) == A == choose(torch.empty(500, 8)) and len(calls) == 1
    assert choice_of({GPU: {"date": "2026-11-22", "table": {"t<=3": {"rows": 5}}}}, [])(torch.empty(3, 8)) == A


# The tables as they are ----------------------------------------------------------------------------------------------


def stand_ins(operator, case):
    """Inputs that say their shape and that they lie on a GPU."""
    specs = CATALOG.definition(operator).inputs.items()
    return [
        case.scalars[name]
        if spec.shape is None
        else SimpleNamespace(shape=torch.Size(shape_of(spec, case.sizes)), is_cuda=True, get_device=lambda: 0)
        for name, spec in specs
    ]


@pytest.fixture
def h200(monkeypatch):
    def patched(operator):
        one = module(operator)
        monkeypatch.setattr(one.rowwise, "multiprocessors", lambda tensor: 132)
        monkeypatch.setattr(one.choice, "gpu_name", lambda tensor: GPU)
        return one, one.choice.Choice(one.tuned.FOUND, one.tuning_key, one.candidates, one.cost)

    return patched


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_listed_shape_gets_what_was_found_for_its_key(operator, h200):
    """The recorded rows are of these configurations. Tables are made of the survey's shapes."""
    one, choose = h200(operator)
    for workload in [each for each in CATALOG.workloads(operator) if each.origin == "survey"]:
        inputs = stand_ins(operator, case_of_workload(CATALOG.definition(operator), workload))
        assert choose(*inputs) == one.tuned.FOUND[GPU]["table"][one.tuning_key(*inputs)], workload.axes


WIDTHS = (
    1,
    7,
    128,
    768,
    1000,
    1024,
    1152,
    1536,
    2048,
    2560,
    2880,
    2881,
    3584,
    4096,
    5120,
    6144,
    7168,
    8192,
    18432,
    53248,
)
NAMES = {
    "gated_rms_norm": ("num_rows", "hidden_size"),
    "silu_and_mul": ("num_tokens", "intermediate_size"),
    "per_token_group_quant_fp8": ("num_tokens", "num_groups"),
    "fused_qk_rmsnorm": ("num_tokens", "num_heads"),
}


def drawn(operator, count):
    """Shapes of any width at any number of rows, also near the table's."""
    draw = random.Random(operator)
    rows, columns = NAMES.get(operator, ("num_tokens", "hidden_size"))
    for _ in range(count):
        yield case_of(operator, **{rows: int(2 ** draw.uniform(0, 17)), columns: draw.choice(WIDTHS)})


@pytest.mark.parametrize("operator", OPERATORS)
def test_any_shape_gets_a_configuration_that_takes_it_whatever_came_first(operator, h200):
    one, choose = h200(operator)
    cases = list(drawn(operator, 150))
    chosen = [choose(*stand_ins(operator, case)) for case in cases]
    again = one.choice.Choice(one.tuned.FOUND, one.tuning_key, one.candidates, one.cost)
    assert [again(*stand_ins(operator, case)) for case in reversed(cases)] == chosen[::-1]
    for case, config in zip(cases, chosen, strict=True):
        columns = stand_ins(operator, case)[0].shape[-1]
        if "threads" in config:  # a CUDA kernel that was compiled for this width
            assert (columns, config["threads"], config["stream"], config["ahead"]) in one.FORMS
        elif operator == "fused_qk_rmsnorm":
            assert config["chunk"] >= columns


@pytest.mark.parametrize("operator", ["fused_add_rms_norm", "l2_norm", "layer_norm"])
def test_a_cuda_kernel_is_taken_between_keys_that_found_it(operator, h200):
    """Of a width that it is compiled for, where only the key of twice as many rows names it."""
    one, _ = h200(operator)
    table = one.tuned.FOUND[GPU]["table"]
    key, config = next((key, config) for key, config in table.items() if "threads" in config)
    width, bound = (int(part.strip("ht<=")) for part in key.split())
    case = case_of(operator, num_tokens=bound, hidden_size=width)
    inputs = stand_ins(operator, case)
    assert one.tuning_key(*inputs) == key
    choose = one.choice.Choice({}, one.tuning_key, one.candidates, one.cost)
    near = {key.replace(f"<={bound}", f"<={2 * bound}"): config}
    assert choose.decide(near, *inputs) == config
    assert "threads" not in choose.decide({}, *inputs)
