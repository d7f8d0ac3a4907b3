"""FP8 (e4m3) quantization in groups of 128 (the activations of DeepSeek-V3, arXiv 2412.19437, section 3.3), float32."""

import torch

FP8_MAX = 448.0  # largest finite e4m3
# Values at a time: the largest workload has 6.3e9 of them, whose float32 copies would not fit a GPU together.
CHUNK = 1 << 26

SMALL_AXES = {"num_tokens": 5, "num_groups": 3, "group_size": 128, "eps": 1e-10}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_groups": 1}, {"num_tokens": 40, "num_groups": 16}]
# Inputs of a model's layers in groups, and then any number of them.
AXES_SPACE = {"num_tokens": (1, 16384),
              "num_groups": [[4, 6, 8, 12, 16, 18, 24, 32, 40, 48, 56, 64, 96, 128, 144], (1, 512)], "eps": 1e-10}

INPUT_DRAWS = [{"hidden_states": 1e5}]  # beyond float16's range


def quantize(x, eps):
    """x [..., group] -> e4m3 codes of that shape and float32 scales [...]."""
    x = x.float()
    scales = x.abs().amax(dim=-1).clamp(min=eps) / FP8_MAX
    # The quotient may exceed 448 by a rounding, and e4m3 makes a NaN of what lies above its range.
    return (x / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales


@torch.no_grad()
def run(hidden_states, eps):
    quantized = torch.empty(hidden_states.shape, dtype=torch.float8_e4m3fn, device=hidden_states.device)
    scales = torch.empty(hidden_states.shape[:-1], dtype=torch.float32, device=hidden_states.device)
    rows = max(1, CHUNK // max(1, hidden_states[:1].numel()))
    for start in range(0, hidden_states.shape[0], rows):
        part = slice(start, start + rows)
        quantized[part], scales[part] = quantize(hidden_states[part], eps)
    return quantized, scales


def count_cost(axes, inputs):
    """A quotient for each value and one for each scale; the survey leaves the search of the maximum out."""
    groups = axes["num_tokens"] * axes["num_groups"]
    values = groups * axes["group_size"]
    return {"flops": {"float8_e4m3fn": values + groups}, "bytes_read": 2 * values, "bytes_written": values + 4 * groups}
