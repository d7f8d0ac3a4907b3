"""Plain torch: operands dequantized to bfloat16, a chunk of rows at a time, and one library GEMM for each chunk."""

import torch

BLOCK = 128
CHUNK = 1 << 26  # values dequantized at once: bounds the float32 copy to 256 MB


def dequantize(values, scale, rows):
    """values fp8 [r, c], scale float32 [r / rows, c / 128] -> bf16."""
    blocks = values.float().view(scale.shape[0], rows, scale.shape[1], BLOCK)
    return blocks.mul_(scale[:, None, :, None]).view(values.shape).to(torch.bfloat16)


@torch.no_grad()
def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], weight fp8 [n, k] -> output bfloat16 [m, n]."""
    columns = dequantize(weight, weight_scale, BLOCK).t()
    rows = max(1, CHUNK // max(x.shape[1], 1))
    for codes, scale, out in zip(x.split(rows), x_scale.split(rows), output.split(rows), strict=True):
        torch.mm(dequantize(codes, scale, 1), columns, out=out)
