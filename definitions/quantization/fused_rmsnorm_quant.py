"""Residual add, RMS normalization and FP8 (e4m3) quantization with one scale a row, in float32.

The sum is rounded for residual_out only, and the normalized row not at all before its quantization.
"""

import torch

FP8_MAX = 448.0  # largest finite e4m3

SMALL_AXES = {"num_tokens": 5, "hidden_size": 99, "eps": 1e-6, "quant_eps": 1e-10}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8}, {"num_tokens": 70, "hidden_size": 2048}]
# Hidden sizes of models; then multiples of 8, then anything.
WIDTHS = [896, 1024, 1152, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 3840, 4096, 5120, 5376, 6144, 7168, 8192,
          16384]
AXES_SPACE = {"num_tokens": (1, 16384), "hidden_size": [WIDTHS, WIDTHS, WIDTHS, (64, 20000, 8), (100, 20000)],
              "eps": [1e-5, 1e-6], "quant_eps": 1e-10}

# So small that eps shows, so large that squares leave float16's range.
INPUT_DRAWS = [{"hidden_states": 1e-3, "residual": 1e-3}, {"hidden_states": 1e4, "residual": 1e4}]


@torch.no_grad()
def run(hidden_states, residual, weight, eps, quant_eps):
    total = hidden_states.float() + residual.float()
    normalized = total * torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    scales = normalized.abs().amax(dim=-1).clamp(min=quant_eps) / FP8_MAX
    # The quotient may exceed 448 by a rounding, and e4m3 makes a NaN of what lies above its range.
    codes = (normalized / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes, scales, total.to(hidden_states.dtype)


def count_cost(axes, inputs):
    """As fused_add_rms_norm and fp8_dynamic_per_token_quant together, without the row between them.

    The survey counts all of it as fp8, which is the operator's dtype there.
    """
    rows, columns = axes["num_tokens"], axes["hidden_size"]
    return {"flops": {"float8_e4m3fn": rows * (5 * columns + 2)}, "bytes_read": 2 * (2 * rows * columns + columns),
            "bytes_written": rows * (3 * columns + 4)}
