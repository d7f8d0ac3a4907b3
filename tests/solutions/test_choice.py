"""common/choice.py: the choice at keys of a table, near them and far from them, on the tables as they are."""

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
        ("h4096 t<=64", "h2048 t<=128", 2),
        ("t<=0", "t<=1", 0),
        ("heads=16+1 rows<=64", "heads=16+4 rows<=64", 2),
        ("h4096 t<=64", "i4096 t<=64", math.inf),
        ("h4096 t<=64", "h4096", math.inf),
    ],
)
def test_the_distance_of_two_keys(key, other, octaves):
    assert CHOICE.distance(key, other) == CHOICE.distance(other, key) == octaves


def best(key, points, costs, options=(A, B, CUDA)):
    """points: key -> losses of A, B ... in log2."""
    frozen = [CHOICE._frozen(option) for option in options]
    points = [(other, dict(zip(frozen, losses, strict=False)), None) for other, losses in points.items()]
    return CHOICE.least_loss(key, points, list(options[: len(costs)]), costs)


def test_without_a_measurement_the_model_decides_and_of_equals_the_first():
    assert best("t<=8", {}, [0.2, 0.1]) == B
    assert best("t<=8", {}, [0.1, 0.1]) == A
    assert best("t<=8", {"h<=8": (1.0, 0.0)}, [0.1, 0.1]) == A  # another operator's key
    assert best("t<=8", {}, [0.3, 0.2, None]) == B  # configurations unknown to the model come last
    assert best("t<=8", {}, [None, None]) == A


@pytest.mark.parametrize(("octaves", "cost", "chosen"), [(1, 3.9, B), (1, 4.1, A), (3, 0.9, B), (3, 1.1, A)])
def test_the_model_counts_as_a_key_at_four_octaves(octaves, cost, chosen):
    """Measured is a loss of 0.5 for A and none for B, at a weight of 2 ** -octaves; the model's has 2 ** -4."""
    assert CHOICE.MODEL == 4
    assert best("t<=8", {f"t<={8 << octaves}": (0.5, 0.0)}, [0.0, cost]) == chosen


def test_the_nearer_of_two_measured_keys_counts_more():
    points = {"t<=4": (0.0, 0.3), "t<=64": (0.3, 0.0)}
    assert best("t<=8", points, [0.0, 0.0]) == A and best("t<=32", points, [0.0, 0.0]) == B


def test_a_measurement_stands_for_what_the_model_does_not_know():
    assert best("t<=8", {"t<=8": (0.2, 0.2, 0.0)}, [0.0, 0.0, None]) == CUDA


def test_losses_and_the_table_are_points():
    entry = {"table": {"t<=4": B}, "configs": [A, B], "losses": [["t<=8", [0, 1000]], ["t<=8", [None, 0]]]}
    a, b = CHOICE._frozen(A), CHOICE._frozen(B)
    table = ("t<=4", {b: 0.0}, CHOICE.BEHIND)  # of a key of the table the best alone is known
    assert CHOICE.measured(entry) == [("t<=8", {a: 0.0, b: 1.0}, None), ("t<=8", {b: 0.0}, None), table]
    assert CHOICE.measured({}) == []


def choice_of(found, calls, **given):
    def candidates(x, *rest):
        calls.append(x.shape)
        return [A, B]

    return CHOICE.Choice(found, lambda x, *rest: f"t<={x.shape[0]}", candidates, **given)


def test_a_table_is_of_its_gpu_and_a_shape_is_decided_once():
    calls = []
    choose = choice_of({"CPU": {"date": "2026-11-22", "table": {"t<=3": {"rows": 5}}}}, calls)
    assert choose(torch.empty(3, 8)) == {"rows": 5} and not calls
    assert choose(torch.empty(500, 8)) == choose(torch.empty(500, 8)) and len(calls) == 1
    assert choice_of({GPU: {"date": "2026-11-22", "table": {"t<=3": {"rows": 5}}}}, [])(torch.empty(3, 8)) == A


def test_without_a_cost_the_order_decides_and_a_cost_may_turn_it():
    x = torch.empty(3, 8)
    assert choice_of({}, [])(x) == A
    assert choice_of({}, [], cost=lambda config, x: -config["rows"])(x) == B


def test_further_inputs_tell_shapes_apart_where_the_solution_says_so():
    calls, x = [], torch.empty(3, 8)
    choose = choice_of({}, calls, also=(1, 2))
    for number, rows in ((1, 2), (1, 2), (2, 2), (1, 5)):
        choose(x, number, torch.empty(rows))
    assert len(calls) == 3


# The tables as they are ----------------------------------------------------------------------------------------------


def stand_ins(operator, case):
    """Inputs that say their shape and that they lie on a GPU."""
    specs = CATALOG.definition(operator).inputs.items()
    return [case.scalars[name] if spec.shape is None else tensor_of(shape_of(spec, case.sizes)) for name, spec in specs]


def tensor_of(shape):
    return SimpleNamespace(
        shape=torch.Size(shape),
        is_cuda=True,
        device=torch.device("cuda", 0),
        get_device=lambda: 0,
        numel=lambda: math.prod(shape),
        element_size=lambda: 2,
    )


def fresh(one):
    """The solution's choice, with nothing decided."""
    return one.choice.Choice(one.tuned.FOUND, one.tuning_key, one.candidates, one.choose.cost, one.choose.also)


@pytest.fixture
def h200(monkeypatch):
    def patched(operator):
        one = module(operator)
        if hasattr(one, "rowwise"):
            monkeypatch.setattr(one.rowwise, "multiprocessors", lambda tensor: 132)
        monkeypatch.setattr(one.choice, "gpu_name", lambda tensor: GPU)
        return one, fresh(one)

    return patched


CUDA_OPERATORS = ("fused_qkv_rope", "mrope", "topk_filter", "moe_topk_gating_softmax", "causal_conv1d",
                  "reshape_and_cache")  # fmt: skip


@pytest.mark.parametrize("operator", [*OPERATORS, *CUDA_OPERATORS])
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
    again = fresh(one)
    assert [again(*stand_ins(operator, case)) for case in reversed(cases)] == chosen[::-1]
    for case, config in zip(cases, chosen, strict=True):
        columns = stand_ins(operator, case)[0].shape[-1]
        if "threads" in config:  # a CUDA kernel that was compiled for this width
            assert (columns, config["threads"], config["stream"], config["ahead"]) in one.FORMS
        elif operator == "fused_qk_rmsnorm":
            assert config["chunk"] >= columns


@pytest.mark.parametrize("operator", ["fused_add_rms_norm", "l2_norm", "layer_norm"])
def test_a_cuda_kernel_is_taken_near_keys_that_found_it(operator, h200):
    """At a width for which it is compiled, where only the key of twice as many rows names it."""
    one, _ = h200(operator)
    key, config = next((key, found) for key, found in one.tuned.FOUND[GPU]["table"].items() if "threads" in found)
    width, bound = (int(part.strip("ht<=")) for part in key.split())
    inputs = stand_ins(operator, case_of(operator, num_tokens=bound, hidden_size=width))
    assert one.tuning_key(*inputs) == key
    choose = one.choice.Choice({}, one.tuning_key, one.candidates, one.cost)
    near = one.choice.measured({"table": {key.replace(f"<={bound}", f"<={2 * bound}"): config}})
    assert choose.decide({}, near, *inputs) == config
    assert "threads" not in choose.decide({}, [], *inputs)
