"""The row-wise operators of kernelderby in the interpreter, against their definitions, at odd sizes and spoilt."""

import functools

import on_host
import pytest
import torch
import triton
from rowwise_cases import (
    CATALOG,
    OPERATORS,
    case_of,
    in_place_verdict,
    inputs_of,
    meta_arguments,
    module,
    outputs_of,
    reference,
    spoil,
    verdict,
)

from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.inputs import shape_of
from kernelderby.rows.measurement import Status

# The names of a definition's sizes, rows first.
AXES = {
    "gated_rms_norm": ("num_rows", "hidden_size"),
    "silu_and_mul": ("num_tokens", "intermediate_size"),
    "per_token_group_quant_fp8": ("num_tokens", "num_groups"),
    "fused_qk_rmsnorm": ("num_tokens", "num_heads"),
}
SIZES = [(1, 7), (13, 1), (3, 131), (17, 200), (5, 384)]
CONFIGS = {
    "one warp a row": {"rows": 4, "chunk": 256, "warps": 4, "stages": 0, "per_sm": 0, "stream": ""},
    "one row, streaming": {"rows": 1, "chunk": 128, "warps": 1, "stages": 0, "per_sm": 0, "stream": "both"},
    "persistent": {"rows": 2, "chunk": 128, "warps": 1, "stages": 1, "per_sm": 1, "stream": ""},
    "ahead": {"rows": 8, "chunk": 512, "warps": 4, "stages": 3, "per_sm": 1, "stream": "loads"},
}


def sized(operator, rows, columns):
    names = AXES.get(operator, ("num_tokens", "hidden_size"))
    if operator == "per_token_group_quant_fp8":
        columns = min(columns, 9)
    if operator == "fused_qk_rmsnorm":
        heads = max(2, columns % 8)
        return case_of(operator, num_tokens=rows, num_heads=heads, num_q_heads=heads - 1 - heads // 4, num_kv_heads=1)
    return case_of(operator, **{names[0]: rows, names[1]: columns})


@pytest.mark.interpreted
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
@on_host.recalled_for("derby_{operator}", compiler=on_host.interpreter())
def test_odd_sizes(operator, size):
    case = sized(operator, *size)
    found = verdict(operator, module(operator).run, spoil(operator, inputs_of(operator, case)), case)
    assert found.status is Status.PASSED, found.message


@pytest.mark.interpreted
@pytest.mark.parametrize("operator, config", on_host.diagonal(OPERATORS, [*CONFIGS]))
def test_configurations(operator, config):
    """Rows that fill no tile, columns that fill no part, more tiles than programs, all in several parts."""
    case = sized(operator, 11, 300)

    def call(*tensors):
        module(operator).run_with(CONFIGS[config], *tensors)

    found = verdict(operator, call, inputs_of(operator, case), case)
    assert found.status is Status.PASSED, found.message


@pytest.mark.interpreted
@pytest.mark.parametrize("config", CONFIGS)
def test_the_sum_in_place(config):
    inputs = inputs_of("fused_add_rms_norm", sized("fused_add_rms_norm", 11, 300))
    call = functools.partial(module("fused_add_rms_norm").run_with, CONFIGS[config])
    found = in_place_verdict("fused_add_rms_norm", call, inputs)
    assert found.status is Status.PASSED, found.message


REDUCING = [name for name in OPERATORS if name not in ("silu_and_mul", "moe_sum_reduce", *AXES)] + ["gated_rms_norm"]


@pytest.mark.interpreted
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("operator", REDUCING)
@on_host.recalled_for("derby_{operator}", compiler=on_host.interpreter())
def test_rows_of_too_many_parts_stay_in_memory(operator, persistent):
    """More than rowwise.MOST_PARTS: rows that fill no tile, a last part that is not full, more tiles than programs."""
    config = {"rows": 2, "chunk": 128, "warps": 1, "stages": int(persistent), "per_sm": int(persistent), "stream": ""}
    case = sized(operator, 11, 1300)
    inputs = spoil(operator, inputs_of(operator, case))
    found = verdict(operator, lambda *tensors: module(operator).run_with(config, *tensors), inputs, case)
    assert found.status is Status.PASSED, found.message


@pytest.mark.interpreted
def test_the_sum_of_rows_in_memory_in_place():
    config = {"rows": 2, "chunk": 128, "warps": 1, "stages": 0, "per_sm": 0, "stream": ""}
    inputs = inputs_of("fused_add_rms_norm", sized("fused_add_rms_norm", 5, 1300))
    call = functools.partial(module("fused_add_rms_norm").run_with, config)
    assert in_place_verdict("fused_add_rms_norm", call, inputs).status is Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "operator, columns", on_host.diagonal([*REDUCING, "silu_and_mul", "moe_sum_reduce"], [2880, 2881, 36865, 53248])
)
def test_any_width(operator, columns):
    case = sized(operator, 2, columns)
    found = verdict(operator, module(operator).run, inputs_of(operator, case), case)
    assert found.status is Status.PASSED, found.message


@pytest.mark.parametrize("operator", [*REDUCING, "silu_and_mul", "moe_sum_reduce"])
def test_every_width_and_number_of_rows_has_candidates(operator, monkeypatch):
    one = module(operator)
    monkeypatch.setattr(one.rowwise, "multiprocessors", lambda tensor: 132)
    names = AXES.get(operator, ("num_tokens", "hidden_size"))
    for columns in (*range(1, 70), 127, 1000, 2880, 2881, 18432, 36864, 36865, 53248, 100_000, 1_000_003):
        for rows in (0, 1, 129, 20_000):
            axes = {**CATALOG.definition(operator).sizes({names[0]: rows, names[1]: columns})}
            specs = CATALOG.definition(operator).inputs.values()
            inputs = [torch.empty(shape_of(each, axes), device="meta") if each.shape else 1.0 for each in specs]
            found = one.candidates(*inputs)
            assert found and all(config["chunk"] <= 4096 for config in found), (columns, rows)


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
def test_no_rows(operator):
    case = sized(operator, 0, 64)
    module(operator).run(*inputs_of(operator, case).values(), *outputs_of(operator, case).values())


QUANT_AXES = [
    ("fp8_dynamic_per_token_quant", {"num_tokens": 4, "hidden_size": 130}),
    ("per_token_group_quant_fp8", {"num_tokens": 4, "num_groups": 1}),
    ("fused_rmsnorm_quant", {"num_tokens": 4, "hidden_size": 130}),
]


@pytest.mark.interpreted
@pytest.mark.parametrize(("operator", "axes"), QUANT_AXES)
def test_not_a_number_reaches_the_scale_and_every_code_of_its_row_and_no_other(operator, axes):
    case = case_of(operator, **axes)
    inputs = inputs_of(operator, case)
    rows = inputs["hidden_states"].view(4, -1)
    rows[1, 5], rows[2, 7] = torch.nan, torch.inf
    outputs = outputs_of(operator, case)
    module(operator).run(*inputs.values(), *outputs.values())
    expected = dict(zip(outputs, reference(operator).run(**inputs), strict=True))
    for name in ("quantized", "scales"):
        found, wanted = outputs[name].float().view(4, -1), expected[name].float().view(4, -1)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert wanted[1].isnan().all() and not wanted[[0, 3]].isnan().any()


@pytest.mark.interpreted
@pytest.mark.parametrize("config", CONFIGS)
def test_heads_normalized_in_place(config):
    inputs = spoil("fused_qk_rmsnorm", inputs_of("fused_qk_rmsnorm", sized("fused_qk_rmsnorm", 11, 7)))
    call = functools.partial(module("fused_qk_rmsnorm").run_with, CONFIGS[config])
    found = in_place_verdict("fused_qk_rmsnorm", call, inputs)
    assert found.status is Status.PASSED, found.message


@pytest.mark.interpreted
def test_value_heads_pass_bit_by_bit():
    case = sized("fused_qk_rmsnorm", 3, 7)
    inputs = inputs_of("fused_qk_rmsnorm", case)
    values = inputs["qkv"].view(torch.int16)
    behind = case.scalars["num_q_heads"] + case.scalars["num_kv_heads"]
    assert behind < case.sizes["num_heads"]
    values[:, behind:, 0] = 0x7D01  # a signalling NaN
    outputs = outputs_of("fused_qk_rmsnorm", case)
    module("fused_qk_rmsnorm").run(*inputs.values(), *outputs.values())
    assert torch.equal(outputs["output"].view(torch.int16)[:, behind:], values[:, behind:])


# A mutant: the operator, the change, and where it must show, on the same inputs that the sound one passes.
EPS = ("+ eps)", "+ 0.0 * eps)")
MUTANTS = [
    ("rms_norm", EPS),
    ("rms_norm", ("* weights[part].to(tl.float32)", "")),
    ("rms_norm", (" / COLUMNS + eps", " + eps")),
    ("fused_add_rms_norm", EPS),
    ("fused_add_rms_norm", ("sum_ptr + first, total[part]", "sum_ptr + first, x[part]")),
    ("fused_add_rms_norm", ("sum_of_squares(total,", "sum_of_squares(x,")),
    ("layer_norm", EPS),
    ("layer_norm", (" + biases[part].to(tl.float32)", "")),
    ("layer_norm", ("rowwise.centre(x, COLUMNS, COUNT, CHUNK)", "x")),
    ("layer_norm", ("tl.where(column < COLUMNS, values, 0.0)", "values")),
    ("l2_norm", EPS),
    ("l2_norm", (", COUNT) + eps", ", COUNT) / COLUMNS + eps")),
    ("gated_rms_norm", EPS),
    ("gated_rms_norm", ("return x / (1.0 +", "return 1.0 / (1.0 +")),
    ("gated_rms_norm", ("return x / (1.0 +", "return x / (1.0 + 1.702 *")),
    ("fused_qk_rmsnorm", EPS),
    ("fused_qk_rmsnorm", ("normalized, raw)", "normalized, normalized)")),
    ("fused_qk_rmsnorm", ("q_weights[0], k_weights[0]", "k_weights[0], q_weights[0]")),
    ("fused_qk_rmsnorm", (" % num_touched", " % num_touched * 0")),
    ("silu_and_mul", ("return x / (1.0 + tl.exp2(x * -1.44", "return x / (1.0 + tl.exp2(1.702 * x * -1.44")),
    ("silu_and_mul", ("silu(gate.to(tl.float32)) * up.to(", "silu(up.to(tl.float32)) * gate.to(")),
    ("moe_sum_reduce", ("total * factor", "total")),
    ("moe_sum_reduce", ("static_range(1, TOP_K)", "static_range(2, TOP_K)")),
    ("fp8_dynamic_per_token_quant", ("tl.maximum(largest, eps", "tl.maximum(largest, 0.0 * eps")),
    ("fp8_dynamic_per_token_quant", (" & 0x7FFFFFFF\n", "\n")),
    ("fp8_dynamic_per_token_quant", ("448.0 / largest", "240.0 / largest")),
    ("per_token_group_quant_fp8", ("tl.maximum(largest, eps", "tl.maximum(largest, 0.0 * eps")),
    ("per_token_group_quant_fp8", ("(1.0 / 448.0)", "(1.0 / 240.0)")),
    ("fused_rmsnorm_quant", ("+ eps)", "+ 0.0 * eps)")),
    ("fused_rmsnorm_quant", ("COUNT) * inverse, quant_eps", "COUNT), quant_eps")),
    ("fused_rmsnorm_quant", ("largest_magnitude(weighted", "largest_magnitude(total")),
    ("fused_rmsnorm_quant", ("tl.maximum(largest, eps", "tl.maximum(largest, 0.0 * eps")),
]


@pytest.mark.interpreted
@pytest.mark.parametrize(("operator", "edit"), MUTANTS, ids=[f"{name}: {old} -> {new}" for name, (old, new) in MUTANTS])
@on_host.recalled_for("derby_{operator}", compiler=triton.__version__)
def test_mutants_fail(operator, edit):
    case = sized(operator, 6, 140)
    inputs = spoil(operator, inputs_of(operator, case))
    assert verdict(operator, module(operator).run, inputs, case).status is Status.PASSED
    assert verdict(operator, module(operator, edit).run, inputs, case).status is not Status.PASSED


# On the host ---------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
@pytest.mark.parametrize("stream", ["", "loads", "both"])
@pytest.mark.parametrize("size", [*SIZES, (37, 96), (0, 8)], ids=str)
def test_tiles_that_do_not_follow_rows(size, stream):
    case = sized("silu_and_mul", *size)
    config = {"rows": 0, "chunk": 256, "warps": 1, "stages": 0, "per_sm": 0, "stream": stream}
    found = (
        verdict(
            "silu_and_mul",
            lambda *all_: module("silu_and_mul").run_with(config, *all_),
            inputs_of("silu_and_mul", case),
            case,
        )
        if size[0]
        else None
    )
    if size[0]:
        assert found.status is Status.PASSED, found.message
    else:
        module("silu_and_mul").run_with(
            config, *inputs_of("silu_and_mul", case).values(), *outputs_of("silu_and_mul", case).values()
        )


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_workload_has_its_candidates(operator, monkeypatch):
    """On 132 multiprocessors: 3 to 16 different ones, whose tile covers a row and has no idle warp."""
    one = module(operator)
    monkeypatch.setattr(one.rowwise, "multiprocessors", lambda tensor: 132)
    lists = {}
    for workload in CATALOG.workloads(operator):
        inputs = meta_arguments(operator, workload)[: len(CATALOG.definition(operator).inputs)]
        found = one.candidates(*inputs)
        assert 3 <= len(found) <= 16 and len({tuple(config.items()) for config in found}) == len(found)
        for config in found:
            assert all(type(value) in (int, str) for value in config.values())
            least = 128 if operator == "moe_sum_reduce" else 256  # eight loads a thread are enough at half the width
            assert max(1, config["rows"]) * config["chunk"] >= least * config["warps"], config
            assert bool(config["stages"]) == bool(config["per_sm"]) and config["stream"] in ("", "loads", "both")
        lists.setdefault(one.tuning_key(*inputs), []).append(found)
    # `derby tune` picks among what all workloads of a key were timed with.
    assert all(found == same[0] for same in lists.values() for found in same)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_all_candidates_at_full_shape(operator):
    """Every configuration that tuning may choose, on every workload of up to 64 MB of input."""
    one = module(operator)
    for workload in CATALOG.workloads(operator):
        case = case_of_workload(CATALOG.definition(operator), workload)
        inputs = inputs_of(operator, case, "cuda")
        if sum(value.nbytes for value in inputs.values() if isinstance(value, torch.Tensor)) > 64e6:
            continue
        for config in one.candidates(*inputs.values()):
            found = verdict(operator, lambda *all_, config=config: one.run_with(config, *all_), inputs, case, "cuda")
            assert found.status is Status.PASSED, f"{case.label}: {config}: {found.message}"
