"""Plain torch: operands dequantized to bfloat16, a chunk of rows at a time, and one library GEMM for each chunk.

The weight is dequantized once. Rounding the products of code and scale to bfloat16 costs up to 2**-9 of each, and the
GEMM's own output is bfloat16, too; only then is it float32.
"""

import torch

BLOCK = 128
# Values dequantized at once: bounds the float32 copy to 256 MB. 16384 rows of 4096 fill a GPU.
CHUNK = 1 << 26


def dequantize(values, scale):
    """values fp8 [rows, columns], scale float32 broadcastable to [rows / r, r, columns / 128, 128] -> bf16."""
    blocks = values.float().view(scale.shape[0], -1, scale.shape[1], BLOCK)
    return blocks.mul_(scale[:, None, :, None]).view(values.shape).to(torch.bfloat16)


@torch.no_grad()
def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], weight fp8 [n, k] -> output float32 [m, n]."""
    m, k = x.shape
    if m == 0:
        return
    columns = dequantize(weight, weight_scale).t()
    rows = max(1, CHUNK // k)
    for codes, scale, out in zip(x.split(rows), x_scale.split(rows), output.split(rows), strict=True):
        out.copy_(dequantize(codes, scale) @ columns)
