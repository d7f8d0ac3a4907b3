"""vLLM's cutlass_scaled_mm with block scales, then a cast.

It writes bfloat16, so the float32 output is a second pass; it wants the scales of x with their rows side by side (a
transposing launch) and a multiple of 4 rows: others are padded, as vLLM does.
"""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")

ROWS = 4


@torch.no_grad()
def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], weight fp8 [n, k] -> output float32 [m, n]."""
    m = x.shape[0]
    if m == 0:
        return
    more = -m % ROWS
    if more:
        x = torch.nn.functional.pad(x.view(torch.uint8), (0, 0, 0, more)).view(x.dtype)
        x_scale = torch.nn.functional.pad(x_scale, (0, 0, 0, more))
    scale = x_scale.t().contiguous().t()
    rounded = torch.empty(m + more, output.shape[1], dtype=torch.bfloat16, device=x.device)
    vllm_library.load("_C").cutlass_scaled_mm(rounded, x, weight.t(), scale, weight_scale.t(), None)
    output.copy_(rounded[:m])
