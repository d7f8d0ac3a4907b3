"""Plain torch: absolute maximum, quotient, clamp and cast of each group of 128, a chunk of rows at a time."""

import torch

FP8_MAX = 448.0
CHUNK = 1 << 26  # values: bounds each float32 copy to 256 MB, whatever the number of rows


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, num_groups, 128] -> quantized e4m3 of that shape, scales without the 128."""
    num_tokens, num_groups, group_size = hidden_states.shape
    rows = max(1, CHUNK // max(1, num_groups * group_size))
    for start in range(0, num_tokens, rows):
        part = slice(start, start + rows)
        x = hidden_states[part].float()
        scale = torch.linalg.vector_norm(x, ord=float("inf"), dim=-1).clamp_(min=eps).div_(FP8_MAX)
        quantized[part] = x.div_(scale.unsqueeze(-1)).clamp_(-FP8_MAX, FP8_MAX)
        scales[part] = scale
