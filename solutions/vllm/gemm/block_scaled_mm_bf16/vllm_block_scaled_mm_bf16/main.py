"""vLLM's cutlass_scaled_mm with block scales. It wants the scales of x with their rows side by side (a transposing
launch) and a multiple of 4 rows: others are padded and the result copied, as vLLM does."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")

ROWS = 4


@torch.no_grad()
def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], weight fp8 [n, k] -> output bfloat16 [m, n]."""
    m = x.shape[0]
    if m == 0:
        return
    more = -m % ROWS
    result = output
    if more:
        x = torch.nn.functional.pad(x.view(torch.uint8), (0, 0, 0, more)).view(x.dtype)
        x_scale = torch.nn.functional.pad(x_scale, (0, 0, 0, more))
        result = output.new_empty(m + more, output.shape[1])
    scale = x_scale.t().contiguous().t()
    vllm_library.load("_C").cutlass_scaled_mm(result, x, weight.t(), scale, weight_scale.t(), None)
    if more:
        output.copy_(result[:m])
