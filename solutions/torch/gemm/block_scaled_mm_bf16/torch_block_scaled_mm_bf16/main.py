"""torch._scaled_mm with block scales: cuBLASLt's kernel, bfloat16 out.

It wants the scales of x with their rows side by side (a transposing launch in each call), a multiple of 4 rows (others
are padded, and the result copied), and the weight's scales in rows a multiple of 4 apart (padded where they are not).
"""

import torch

ROWS = 4


@torch.no_grad()
def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], weight fp8 [n, k] -> output bfloat16 [m, n]."""
    m = x.shape[0]
    if m == 0:
        return
    blocks = weight_scale.shape[1]
    if blocks % ROWS:
        weight_scale = torch.nn.functional.pad(weight_scale, (0, -blocks % ROWS))[:, :blocks]
    more = -m % ROWS
    if more:
        x = torch.nn.functional.pad(x.view(torch.uint8), (0, 0, 0, more)).view(x.dtype)
        x_scale = torch.nn.functional.pad(x_scale, (0, 0, 0, more))
    scale = x_scale.t().contiguous().t()
    if more:
        output.copy_(torch._scaled_mm(x, weight.t(), scale, weight_scale.t(), out_dtype=torch.bfloat16)[:m])
    else:
        torch._scaled_mm(x, weight.t(), scale, weight_scale.t(), out_dtype=torch.bfloat16, out=output)
