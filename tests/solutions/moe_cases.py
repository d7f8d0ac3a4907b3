"""Shared by the tests of the solutions: the solutions' code, inputs at SMALL_AXES, and the check of a result."""

import functools
import importlib.util
import math
import sys
from pathlib import Path

import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.worker.build import load_solution

ROOT = Path(__file__).resolve().parents[2]
NAME = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
AUTHORS = {
    "moe_baseline": "baseline",
    "triton_fused_v2": "sgl-kernel",
    "cutlass_grouped": "sgl-kernel",
    "flashinfer_moe": "flashinfer",
    "deepgemm_grouped": "deepgemm",
    "hpc_ops_moe": "hpc-ops",
    "triton_compact": "kernelderby",
}
CATALOG = Catalog.open(ROOT)


def load(path):
    """The module at `path`, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder(name):
    return ROOT / "solutions" / AUTHORS[name] / "moe" / NAME / name


@functools.cache
def solution(name):
    """The solution's main.py, one module for all tests."""
    return sys.modules[load_solution(CATALOG.definition(NAME), CATALOG.solution(name)).__module__]


definition = load(ROOT / "definitions" / "moe" / f"{NAME}.py")


# Inputs ---------------------------------------------------------------------------------------------------------------


def sizes(hidden, intermediate):
    """The axes that follow from the two sizes, multiples of 128."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "gemm1_out_size": 2 * intermediate,
        "num_hidden_blocks": hidden // 128,
        "num_intermediate_blocks": intermediate // 128,
        "num_gemm1_out_blocks": 2 * intermediate // 128,
    }


def make_inputs(seed=0, **changes):
    """The definition's inputs at SMALL_AXES with `changes`, random ones as flashinfer-bench makes them."""
    size = {**definition.SMALL_AXES, "seed": seed, **changes}
    generator = torch.Generator().manual_seed(1000 + seed)
    hidden, intermediate, local = size["hidden_size"], size["intermediate_size"], size["num_local_experts"]

    def fp8(*shape):
        return torch.randn(*shape, generator=generator).clamp(-2, 2).to(torch.float8_e4m3fn)

    made = definition.generate_inputs(size, "cpu")
    return {
        "routing_logits": made["routing_logits"],
        "routing_bias": made["routing_bias"],
        "hidden_states": fp8(size["seq_len"], hidden),
        "hidden_states_scale": made["hidden_states_scale"],
        "gemm1_weights": fp8(local, size["gemm1_out_size"], hidden),
        "gemm1_weights_scale": made["gemm1_weights_scale"],
        "gemm2_weights": fp8(local, hidden, intermediate),
        "gemm2_weights_scale": made["gemm2_weights_scale"],
        "local_expert_offset": size["local_expert_offset"],
        "routed_scaling_factor": size["routed_scaling_factor"],
    }


def favour(inputs, experts):
    """Inputs in which every token chooses the given 8 experts of 64."""
    inputs["routing_logits"] = torch.full_like(inputs["routing_logits"], -8.0)
    inputs["routing_logits"][:, experts] = 2.0 + 0.1 * torch.arange(len(experts))
    return inputs


def make_equal(inputs):
    inputs["routing_logits"].zero_()
    inputs["routing_bias"].zero_()
    inputs["local_expert_offset"] = 4
    return inputs


# The offset of SMALL_AXES is 12, its 8 local experts are 12 to 19, its groups have 8 experts each.
NO_LOCAL = [0, 1, 24, 25, 40, 41, 56, 57]
ONE_LOCAL = [13, 8, 24, 25, 40, 41, 56, 57]
CASES = {
    "seed 0": lambda: make_inputs(0),
    "seed 1": lambda: make_inputs(1),
    "seed 2": lambda: make_inputs(2),
    "one token": lambda: make_inputs(3, seq_len=1),
    "many tokens": lambda: make_inputs(4, seq_len=40),
    "offset 0": lambda: make_inputs(5, local_expert_offset=0),
    "last experts": lambda: make_inputs(6, local_expert_offset=56),
    "no local expert": lambda: favour(make_inputs(7), NO_LOCAL),
    "one local expert for all": lambda: favour(make_inputs(8), ONE_LOCAL),
    "all to the local experts": lambda: favour(make_inputs(9), list(range(12, 20))),
    "equal scores": lambda: make_equal(make_inputs(10)),
}


# Results --------------------------------------------------------------------------------------------------------------


def dequantized(rows, scale):
    """rows fp8 [rows, K], scale float32 [rows, K / 128] -> float32."""
    return rows.float() * scale.repeat_interleave(128, dim=1)


def quantized(rows):
    """rows float32 [rows, K] -> fp8 [rows, K] and scale float32 [rows, K / 128]: 448 is the largest of 128."""
    blocks = rows.view(rows.shape[0], -1, 128)
    scale = blocks.abs().amax(-1).clamp(min=1e-10) / 448
    return (blocks / scale.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn).view(rows.shape), scale


def swiglu(gemm1):
    """gemm1 [rows, 2 * intermediate], up first and gate behind it -> float32 [rows, intermediate]."""
    up, gate = gemm1.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def fp8_reference(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
    *,
    between=torch.float32,
):
    """The definition with the roundings of an fp8 implementation: what GEMM1 writes in the type `between`, 1x128 fp8
    for GEMM2, bfloat16 for a pair."""
    experts, weights = definition.route(routing_logits, routing_bias, routed_scaling_factor)
    rows = dequantized(hidden_states, hidden_states_scale.t())
    out = torch.zeros(hidden_states.shape)
    for local in range(len(gemm1_weights)):
        token, slot = (experts == local_expert_offset + local).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gemm1 = rows[token] @ definition.dequantize_weight(gemm1_weights[local], gemm1_weights_scale[local]).t()
        activated = dequantized(*quantized(swiglu(gemm1.to(between))))
        gemm2 = activated @ definition.dequantize_weight(gemm2_weights[local], gemm2_weights_scale[local]).t()
        out.index_add_(0, token, (gemm2 * weights[token, slot, None]).to(torch.bfloat16).float())
    return out.to(torch.bfloat16)


# Tolerances of check. Sums in another order tip a rounding now and then: fp8 then differs by 1/16 of a value.
FP8 = {"rtol": 0.01, "atol": 0.02, "reference": fp8_reference}
FP8_AND_BF16 = {**FP8, "atol": 0.05, "reference": functools.partial(fp8_reference, between=torch.bfloat16)}


def check(name, inputs, rtol, atol, reference=definition.run, times=2, prepared=None):
    """Runs the solution `times`, on poisoned output; compares with the reference, and the inputs with themselves.

    atol is in standard deviations of the output."""
    expected = reference(**inputs).float()
    unit = max(1.0, expected.std().item() if expected.numel() else 0.0)
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    for _ in range(times):
        output = torch.full(expected.shape, math.nan, dtype=torch.bfloat16)
        solution(name).run(**inputs, output=output, **(prepared or {}))
        error = (output.float() - expected).abs()
        failed = ~(error <= atol * unit + rtol * expected.abs())  # NaN fails
        assert not failed.any(), f"{int(failed.sum())} of {failed.numel()} elements, error {error.max() / unit}"
    for key, value in before.items():
        assert torch.equal(inputs[key].view(torch.uint8), value.view(torch.uint8)), f"{key} has changed"
