"""Linear layer in bfloat16 as one Triton kernel; operands are loaded by TMA if their rows are a multiple of 16 bytes.

A program computes ROWS x COLUMNS outputs; programs go down groups of GROUP tiles, so that those at work share both
operands in L2.
"""

import functools
import importlib
import os

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")

ALIGNED = 8  # values: TMA takes rows of a multiple of 16 bytes
GROUP = 8
# Rows and columns of a tile, values along k of a step, warps, stages.
FEW = [(16, 32, 256, 4, 4), (16, 64, 256, 4, 4), (16, 128, 128, 4, 4)]
SOME = [(64, 32, 128, 4, 5), (64, 64, 128, 4, 4), (64, 128, 64, 4, 4)]
MANY = [(64, 64, 64, 4, 5), (128, 64, 64, 4, 5), (128, 128, 64, 4, 4), (128, 256, 64, 8, 4)]


@triton.jit
def derby_gemm_bf16_triton(x, weight, bias_ptr, output_ptr, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                           DEPTH: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr, BY_TMA: tl.constexpr,
                           BIASED: tl.constexpr, WIDEN: tl.constexpr):
    """x [m, k], weight [n, k]: tensor maps with boxes of [ROWS, DEPTH] and [COLUMNS, DEPTH], outside of which there are
    zeros; pointers without BY_TMA. WIDEN: products of float32, for Triton's interpreter, whose dot() multiplies
    bfloat16 as integers."""
    tiles_down, tiles_across = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    whole = GROUP * tiles_across
    first = tl.program_id(0) // whole * GROUP
    high = tl.minimum(tiles_down - first, GROUP)
    row_tile = first + tl.program_id(0) % whole % high
    column_tile = tl.program_id(0) % whole // high
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in tl.range(0, k, DEPTH, num_stages=STAGES):
        if BY_TMA:
            a = x.load([row_tile * ROWS, at])
            b = weight.load([column_tile * COLUMNS, at])
        else:
            inner = at + tl.arange(0, DEPTH)
            a = tl.load(x + row.to(tl.int64)[:, None] * k + inner[None, :],
                        mask=(row < m)[:, None] & (inner < k)[None, :], other=0.0)
            b = tl.load(weight + column.to(tl.int64)[:, None] * k + inner[None, :],
                        mask=(column < n)[:, None] & (inner < k)[None, :], other=0.0)
        if WIDEN:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b.T, total)
    if BIASED:
        total += tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(output_ptr + place, total.to(output_ptr.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def candidates(x, weight, bias):
    """The largest tiles that still give every multiprocessor one come first."""
    m, n = x.shape[0], weight.shape[0]
    shapes = FEW if m <= 16 else SOME if m <= 64 else MANY
    tiles = [triton.cdiv(m, shape[0]) * triton.cdiv(n, shape[1]) for shape in shapes]
    enough = [i for i, count in enumerate(tiles) if count >= multiprocessors(x.device)]
    best = enough[-1] if enough else 0
    order = sorted(range(len(shapes)), key=lambda i: (abs(i - best), i))
    return [dict(zip(("rows", "columns", "depth", "warps", "stages"), shapes[i], strict=True)) for i in order]


def run_with(config, x, weight, bias, output):
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    rows, columns, depth = config["rows"], config["columns"], config["depth"]
    by_tma = k > 0 and k % ALIGNED == 0 and not (x.data_ptr() | weight.data_ptr()) % 16
    stages = config["stages"]
    operands = (TensorDescriptor(x, [m, k], [k, 1], [rows, depth]),
                TensorDescriptor(weight, [n, k], [k, 1], [columns, depth])) if by_tma else (x, weight)
    derby_gemm_bf16_triton[(triton.cdiv(m, rows) * triton.cdiv(n, columns),)](
        *operands, bias, output, m, n, k, ROWS=rows, COLUMNS=columns, DEPTH=depth, GROUP=GROUP,
        STAGES=stages if by_tma else min(stages, 2), BY_TMA=by_tma, BIASED=len(bias) > 0, WIDEN=not x.is_cuda,
        num_warps=config["warps"])


check = contract.Contract("derby_gemm_bf16_triton", on_current=True, where=("bias_rows <= 1",), x="bfloat16 m k",
                          weight="bfloat16 n k", bias="bfloat16 bias_rows n", output="bfloat16 m n")


def run(x, weight, bias, output):
    """x bf16 [m, k], weight bf16 [n, k], bias bf16 [0 or 1, n] -> output bf16 [m, n]. Fastest at
    addresses that 16 divides."""
    check(x, weight, bias, output)
    run_with(candidates(x, weight, bias)[0], x, weight, bias, output)
