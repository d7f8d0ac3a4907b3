"""FP8 product with block scales in one Triton kernel: operands are loaded by TMA, and each block of 128 along k is
scaled when it is added.

A program makes ROWS x 128 outputs; programs go down groups of GROUP tiles, so that those at work share both operands in
L2. x_scale is read as it lies. The output has its tensor's type, rounded once.
"""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK = 128


@triton.jit
def derby_block_scaled_mm_triton(x_map, w_map, x_scale_ptr, w_scale_ptr, output_ptr, m, n, k_blocks,
                                 ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr):
    """x_map, w_map: tensor maps of x [m, k] in boxes of [ROWS, BLOCK] and of weight [n, k], [BLOCK, BLOCK]."""
    tiles_down, tiles_across = tl.cdiv(m, ROWS), n // BLOCK
    whole = GROUP * tiles_across
    first = tl.program_id(0) // whole * GROUP
    high = tl.minimum(tiles_down - first, GROUP)
    row_tile = first + tl.program_id(0) % whole % high
    column_tile = tl.program_id(0) % whole // high
    row = row_tile * ROWS + tl.arange(0, ROWS)
    inside = row < m
    scales = x_scale_ptr + row.to(tl.int64) * k_blocks
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for k in tl.range(0, k_blocks, num_stages=STAGES):
        x = x_map.load([row_tile * ROWS, k * BLOCK])
        w = w_map.load([column_tile * BLOCK, k * BLOCK])
        scale = tl.load(scales + k, mask=inside, other=0.0) * tl.load(w_scale_ptr + column_tile * k_blocks + k)
        total += tl.dot(x, w.T) * scale[:, None]
    column = column_tile * BLOCK + tl.arange(0, BLOCK)
    tl.store(output_ptr + row.to(tl.int64)[:, None] * n + column[None, :], total, mask=inside[:, None])


def tuning_key(x, x_scale, weight, weight_scale):
    return f"n={weight.shape[0]} k={x.shape[1]} m<={1 << max(x.shape[0] - 1, 0).bit_length()}"


def candidates(x, x_scale, weight, weight_scale):
    shapes = [(64, 4, 4), (64, 4, 6), (128, 8, 4), (128, 4, 4)] if x.shape[0] <= 1024 else \
             [(128, 8, 4), (128, 4, 4), (128, 8, 3), (128, 4, 3), (256, 8, 3), (64, 4, 5)]
    return [{"rows": rows, "warps": warps, "stages": stages, "group": 8} for rows, warps, stages in shapes]


def run_with(config, x, x_scale, weight, weight_scale, output):
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0 or k == 0:
        output.detach().zero_()
        return
    rows = config["rows"]
    derby_block_scaled_mm_triton[(triton.cdiv(m, rows) * (n // BLOCK),)](
        TensorDescriptor(x, [m, k], [k, 1], [rows, BLOCK]), TensorDescriptor(weight, [n, k], [k, 1], [BLOCK, BLOCK]),
        x_scale, weight_scale, output, m, n, k // BLOCK, ROWS=rows, BLOCK=BLOCK, GROUP=config["group"],
        STAGES=config["stages"], num_warps=config["warps"])
