"""Linear layer, sigmoid and product in one Triton kernel: operands by TMA, bias and gate on the accumulators.

A program makes ROWS x COLUMNS outputs; programs go down groups of GROUP tiles, so that those at work share both
operands in L2.
"""

import importlib
import os

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")

ALIGNED = 8  # values: TMA takes rows of a multiple of 16 bytes


@triton.jit
def derby_linear_sigmoid_mul_triton(x_map, w_map, bias_ptr, multiplier_ptr, output_ptr, m, n, k,
                                    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
                                    GROUP: tl.constexpr, STAGES: tl.constexpr, WIDEN: tl.constexpr):
    """x_map, w_map: tensor maps of x [m, k] in boxes of [ROWS, DEPTH] and of weight [n, k], [COLUMNS, DEPTH]; what lies
    outside is zero. WIDEN: products of float32, for Triton's interpreter, whose dot() multiplies bfloat16 as
    integers."""
    tiles_down, tiles_across = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    whole = GROUP * tiles_across
    first = tl.program_id(0) // whole * GROUP
    high = tl.minimum(tiles_down - first, GROUP)
    row_tile = first + tl.program_id(0) % whole % high
    column_tile = tl.program_id(0) % whole // high
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in tl.range(0, k, DEPTH, num_stages=STAGES):
        x = x_map.load([row_tile * ROWS, at])
        w = w_map.load([column_tile * COLUMNS, at])
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        total = tl.dot(x, w.T, total)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    place = row.to(tl.int64)[:, None] * n + column[None, :]
    inside = (row < m)[:, None] & (column < n)[None, :]
    gate = total + tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    multiplier = tl.load(multiplier_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_ptr + place, (tl.sigmoid(gate) * multiplier).to(output_ptr.dtype.element_ty), mask=inside)


def tuning_key(hidden_states, weight, bias, multiplier):
    (n, k), m = weight.shape, hidden_states.shape[0]
    return f"n={n} k={k} m<={1 << max(m - 1, 0).bit_length()}"


def candidates(hidden_states, weight, bias, multiplier):
    m = hidden_states.shape[0]
    if m <= 64:
        low = 16 if m <= 16 else 64
        shapes = [(low, 32, 128, 4, 6), (low, 32, 256, 4, 4), (low, 64, 128, 4, 5), (low, 16, 256, 4, 5)]
    elif m <= 256:
        shapes = [(128, 32, 64, 4, 6), (64, 32, 128, 4, 5), (128, 64, 64, 4, 5), (64, 64, 64, 4, 6)]
    else:
        shapes = [(128, 256, 64, 8, 4), (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4)]
    return [{"rows": rows, "columns": columns, "depth": depth, "warps": warps, "stages": stages, "group": 8}
            for rows, columns, depth, warps, stages in shapes]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, hidden_states, weight, bias, multiplier, output):
    (m, k), n = hidden_states.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    by_tma = k > 0 and k % ALIGNED == 0 and not (hidden_states.data_ptr() | weight.data_ptr()) % 16
    if not by_tma:  # two launches more, if rows cannot be loaded as they lie
        hidden_states, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED or ALIGNED))
                                 for rows in (hidden_states, weight))
        k = weight.shape[1]
    rows, columns, depth = config["rows"], config["columns"], config["depth"]
    derby_linear_sigmoid_mul_triton[(triton.cdiv(m, rows) * triton.cdiv(n, columns),)](
        TensorDescriptor(hidden_states, [m, k], [k, 1], [rows, depth]),
        TensorDescriptor(weight, [n, k], [k, 1], [columns, depth]), bias, multiplier, output, m, n, k, ROWS=rows,
        COLUMNS=columns, DEPTH=depth, GROUP=config["group"], STAGES=config["stages"], WIDEN=not bias.is_cuda,
        num_warps=config["warps"])


check = contract.Contract("derby_linear_sigmoid_mul_triton", on_current=True,
                          hidden_states="bfloat16 num_tokens hidden_size", weight="bfloat16 out_features hidden_size",
                          bias="bfloat16 out_features", multiplier="bfloat16 num_tokens out_features",
                          output="bfloat16 num_tokens out_features")


def run(hidden_states, weight, bias, multiplier, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [out_features, hidden_size], bias bf16 [out_features]
    -> output, as multiplier: bf16 [num_tokens, out_features]."""
    check(hidden_states, weight, bias, multiplier, output)
    inputs = hidden_states, weight, bias, multiplier
    run_with(choose(*inputs), *inputs, output)
