"""The competitors' own Triton kernels, one by one: in the interpreter, and compiled for sm_90 and sm_100."""

import math

import pytest
import torch
from aot import compile_kernel
from interpreted import compiled
from moe_cases import definition, dequantized, make_inputs, solution, swiglu


@pytest.mark.interpreted
@pytest.mark.parametrize("intermediate", [128, 256, 384])
def test_swiglu_quant_kernel(intermediate):
    gemm1 = torch.randn(5, 2 * intermediate, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16) * 4
    gemm1[2] = 0
    out = torch.empty(5, intermediate)  # the kernel casts to the output's type: float32 keeps the values unrounded
    scale = torch.empty(5, intermediate // 128)
    solution("triton_fused_v2").swiglu_quant(gemm1, out, scale)
    expected = swiglu(gemm1)
    torch.testing.assert_close(dequantized(out, scale), expected)
    torch.testing.assert_close(scale * 448, expected.view(5, -1, 128).abs().amax(-1).clamp(min=1e-10))


@pytest.mark.interpreted
@pytest.mark.parametrize("split", [1, 8])
@pytest.mark.parametrize("panels", [1, 2])
def test_swiglu_quant_kernel_of_deepgemm(panels, split):
    """Rows of local pairs only, the others keep what they held; scales in panels [blocks, rows]."""
    in_panel, intermediate = 6, 384
    gemm1 = torch.randn(panels * in_panel, 2 * intermediate, generator=torch.Generator().manual_seed(2))
    gemm1 = gemm1.to(torch.bfloat16)
    rows = torch.full((3, 8), -1, dtype=torch.int32)
    owned = [0, 4, panels * in_panel - 1]
    rows[0, 2], rows[0, 7], rows[2, 0] = owned
    out, scale = torch.full((len(gemm1), intermediate), -7.0), torch.full((panels, 3, in_panel), -7.0)
    solution("deepgemm_grouped").swiglu_quant_kernel[(3, split)](
        gemm1,
        rows,
        out,
        scale,
        in_panel,
        INTERMEDIATE=intermediate,
        NUM_BLOCKS=3,
        BLOCKS_TILE=4,
        BLOCK=128,
        TOP_K=8,
        SPLIT=split,
    )
    by_row = scale.transpose(1, 2).reshape(len(gemm1), 3)
    torch.testing.assert_close(dequantized(out, by_row)[owned], swiglu(gemm1)[owned])
    others = [row for row in range(len(gemm1)) if row not in owned]
    assert (out[others] == -7).all() and (by_row[others] == -7).all()


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_experts", [64, 256])
def test_route_kernel(seed, num_experts):
    module = solution("deepgemm_grouped")
    tokens, offset, local = 17, 3, num_experts // 8
    inputs = make_inputs(seed, seq_len=tokens, num_experts=num_experts)
    experts, ranks = torch.empty(tokens, 8, dtype=torch.int32), torch.empty(tokens, 8, dtype=torch.int32)
    weights, counts = torch.empty(tokens, 8), torch.zeros(local, dtype=torch.int32)
    module.route_kernel[(tokens,)](
        inputs["routing_logits"],
        inputs["routing_bias"],
        experts,
        ranks,
        weights,
        counts,
        offset,
        2.5,
        NUM_LOCAL=local,
        NUM_GROUPS=8,
        GROUP=num_experts // 8,
        TOP_GROUPS=4,
        TOP_K=8,
    )
    chosen, expected_weights = definition.route(inputs["routing_logits"], inputs["routing_bias"], 2.5)
    expected = chosen - offset
    expected[(expected < 0) | (expected >= local)] = -1
    assert torch.equal(experts.long(), expected)
    torch.testing.assert_close(weights, expected_weights)
    for expert in range(local):
        assert sorted(ranks[experts == expert].tolist()) == list(range(int(counts[expert])))
    assert int(counts.sum()) == int((expected >= 0).sum())


@pytest.mark.interpreted
def test_combine_kernel():
    module = solution("deepgemm_grouped")
    gemm2 = torch.randn(6, 384, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    gemm2[5] = math.nan  # a row that no pair owns
    rows = torch.full((2, 8), -1, dtype=torch.int32)
    rows[0, [1, 6]] = torch.tensor([4, 0], dtype=torch.int32)
    weights = torch.full((2, 8), math.nan)
    weights[0, [1, 6]] = torch.tensor([0.5, 2.0])
    output = torch.full((2, 384), math.nan, dtype=torch.bfloat16)
    module.combine_kernel[(2, 2)](gemm2, rows, weights, output, HIDDEN=384, TILE=256, TOP_K=8)
    torch.testing.assert_close(output[0], (0.5 * gemm2[4].float() + 2 * gemm2[0].float()).to(torch.bfloat16))
    assert (output[1] == 0).all()


@pytest.mark.interpreted
def test_dequantize_kernel():
    inputs = make_inputs(14)
    out = torch.empty(inputs["hidden_states"].shape, dtype=torch.bfloat16)
    solution("flashinfer_moe").dequantize(inputs["hidden_states"], inputs["hidden_states_scale"], out)
    expected = dequantized(inputs["hidden_states"], inputs["hidden_states_scale"].t())
    torch.testing.assert_close(out, expected.to(torch.bfloat16))


# Ahead of time --------------------------------------------------------------------------------------------------------


def aot_cases():
    """(solution, kernel, signature, constants, options) at the full sizes and, where tiles differ, at SMALL_AXES."""
    for blocks in (16, 2):
        yield (
            "triton_fused_v2",
            "swiglu_quant_kernel",
            {"gemm1_ptr": "*bf16", "out_ptr": "*fp8e4nv", "scale_ptr": "*fp32"},
            {"INTERMEDIATE": 128 * blocks, "NUM_BLOCKS": blocks, "BLOCKS": blocks, "BLOCK": 128},
            {"num_warps": 8},
        )
        for split in (1, 8):
            yield (
                "deepgemm_grouped",
                "swiglu_quant_kernel",
                {
                    "gemm1_ptr": "*bf16",
                    "rows_ptr": "*i32",
                    "out_ptr": "*fp8e4nv",
                    "out_scale_ptr": "*fp32",
                    "rows_per_panel": "i32",
                },
                {
                    "INTERMEDIATE": 128 * blocks,
                    "NUM_BLOCKS": blocks,
                    "BLOCKS_TILE": blocks,
                    "BLOCK": 128,
                    "TOP_K": 8,
                    "SPLIT": split,
                },
                {"num_warps": 8},
            )
    for group, local in ((32, 32), (8, 8)):
        yield (
            "deepgemm_grouped",
            "route_kernel",
            {
                "logits_ptr": "*fp32",
                "bias_ptr": "*bf16",
                "experts_ptr": "*i32",
                "ranks_ptr": "*i32",
                "weights_ptr": "*fp32",
                "counts_ptr": "*i32",
                "local_expert_offset": "i32",
                "routed_scaling_factor": "fp32",
            },
            {"NUM_LOCAL": local, "NUM_GROUPS": 8, "GROUP": group, "TOP_GROUPS": 4, "TOP_K": 8},
            {"num_warps": 1},
        )
    for masked in (True, False):
        yield (
            "deepgemm_grouped",
            "gather_kernel",
            {
                "hidden_ptr": "*i32",
                "hidden_scale_ptr": "*fp32",
                "experts_ptr": "*i32",
                "ranks_ptr": "*i32",
                "counts_ptr": "*i32",
                "rows_ptr": "*i32",
                "ends_ptr": "*i32",
                "out_ptr": "*i32",
                "out_scale_ptr": "*fp32",
                "num_tokens": "i32",
                "rows_per_panel": "i32",
            },
            {
                "MASKED": masked,
                "NUM_LOCAL": 32,
                "EXPERTS": 32,
                "WORDS": 1792,
                "WORDS_TILE": 2048,
                "NUM_BLOCKS": 56,
                "BLOCKS_TILE": 64,
                "ALIGNMENT": 128,
                "TOP_K": 8,
            },
            {"num_warps": 4},
        )
    yield (
        "deepgemm_grouped",
        "combine_kernel",
        {"gemm2_ptr": "*bf16", "rows_ptr": "*i32", "weights_ptr": "*fp32", "output_ptr": "*bf16"},
        {"HIDDEN": 7168, "TILE": 1024, "TOP_K": 8},
        {"num_warps": 4},
    )
    yield (
        "hpc_ops_moe",
        "route_kernel",
        {
            "logits_ptr": "*fp32",
            "bias_ptr": "*bf16",
            "scale_ptr": "*fp32",
            "experts_ptr": "*i32",
            "weights_ptr": "*fp32",
            "turned_ptr": "*fp32",
            "num_tokens": "i32",
            "first_local": "i32",
            "routed_scaling_factor": "fp32",
        },
        {
            "NUM_LOCAL": 32,
            "NUM_GROUPS": 8,
            "GROUP": 32,
            "TOP_GROUPS": 4,
            "TOP_K": 8,
            "NUM_BLOCKS": 56,
            "BLOCKS_TILE": 64,
        },
        {"num_warps": 1},
    )
    yield (
        "flashinfer_moe",
        "dequantize_kernel",
        {"values_ptr": "*fp8e4nv", "scale_ptr": "*fp32", "out_ptr": "*bf16", "num_tokens": "i32"},
        {"COLUMNS": 7168, "TILE": 1024, "BLOCK": 128},
        {"num_warps": 4},
    )


@compiled
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("case", list(aot_cases()), ids=lambda case: f"{case[0]}-{case[1]}")
def test_kernel_compiles(case, target):
    name, kernel, signature, constants, options = case
    binary = compile_kernel(getattr(solution(name), kernel), signature, constants, target, **options)
    assert f".target {target}" in binary.asm["ptx"]
