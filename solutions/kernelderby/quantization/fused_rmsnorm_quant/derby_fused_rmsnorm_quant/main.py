"""Residual add, RMS normalization and FP8 quantization with a scale a row, in one pass: sum and normalized row stay in
registers, in float32.

rowwise.py, which lies beside this file once it is packed, says what a configuration means.
"""

import importlib
import os

import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
choice = importlib.import_module(f"{__name__}.choice")
rowwise = importlib.import_module(f"{__name__}.rowwise")
tuned = importlib.import_module(f"{__name__}.tuned")


@triton.jit
def normalize_and_quantize(tile, x_ptr, residual_ptr, weights, codes_ptr, scales_ptr, sum_ptr, num_rows, eps,
                           quant_eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
                           STREAM: tl.constexpr):
    COUNT: tl.constexpr = (COLUMNS + CHUNK - 1) // CHUNK
    first_row, rows_left = tl.cast(tile, tl.int64) * ROWS, num_rows - tile * ROWS
    first = first_row * COLUMNS
    x = rowwise.load_rows(x_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    residual = rowwise.load_rows(residual_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    total = rowwise.add(x, residual, COUNT)
    for part in tl.static_range(COUNT):
        rowwise.store_part(sum_ptr + first, total[part], part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, STREAM)
    weighted = rowwise.multiply(total, weights, COUNT)
    # The row's own factor is positive: it scales the maximum as it scales each value, and is multiplied in once.
    inverse = tl.rsqrt(rowwise.sum_of_squares(total, COUNT) / COLUMNS + eps)
    scales, factors = rowwise.fp8_scale(rowwise.largest_magnitude(weighted, COUNT) * inverse, quant_eps)
    factors = (factors * inverse)[:, None]
    for part in tl.static_range(COUNT):
        rowwise.store_part(codes_ptr + first, weighted[part] * factors, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK,
                           STREAM)
    rowwise.store_scales(scales_ptr + first_row, scales, rows_left, ROWS)


@triton.jit
def normalize_and_quantize_wide(tile, x_ptr, residual_ptr, weight_ptr, codes_ptr, scales_ptr, sum_ptr, num_rows, eps,
                                quant_eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """Computes the sum twice and writes it only at the end: if the sum lies in the residual, the residual is still
    there the second time."""
    first_row, rows_left = tl.cast(tile, tl.int64) * ROWS, num_rows - tile * ROWS
    first = first_row * COLUMNS
    squares = tl.zeros([ROWS, CHUNK], tl.float32)
    largest = tl.zeros([ROWS, CHUNK], tl.int32)
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        total = rowwise.load_wide(x_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        total += rowwise.load_wide(residual_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        squares += total * total
        total *= rowwise.load_wide(weight_ptr, part, ROWS, COLUMNS, 0, ROWS, CHUNK)
        largest = tl.maximum(largest, rowwise.magnitude(total))
    inverse = tl.rsqrt(tl.sum(squares, 1) / COLUMNS + eps)
    scales, factors = rowwise.fp8_scale(tl.max(largest, 1).to(tl.float32, bitcast=True) * inverse, quant_eps)
    factors = (factors * inverse)[:, None]
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        total = rowwise.load_wide(x_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        total += rowwise.load_wide(residual_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        rowwise.store_tile(sum_ptr + first, total, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, "")
        total *= rowwise.load_wide(weight_ptr, part, ROWS, COLUMNS, 0, ROWS, CHUNK)
        rowwise.store_tile(codes_ptr + first, total * factors, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, "")
    rowwise.store_scales(scales_ptr + first_row, scales, rows_left, ROWS)


@triton.jit(do_not_specialize=["num_rows"])
def derby_fused_rmsnorm_quant(x_ptr, residual_ptr, weight_ptr, codes_ptr, scales_ptr, sum_ptr, num_rows, eps,
                              quant_eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
                              STREAM: tl.constexpr, STAGES: tl.constexpr):
    if (COLUMNS + CHUNK - 1) // CHUNK > rowwise.MOST_PARTS:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
            normalize_and_quantize_wide(tile, x_ptr, residual_ptr, weight_ptr, codes_ptr, scales_ptr, sum_ptr, num_rows,
                                        eps, quant_eps, COLUMNS, ROWS, CHUNK)
        return
    weights = rowwise.load_vector(weight_ptr, COLUMNS, ROWS, CHUNK)
    if STAGES == 0:
        normalize_and_quantize(tl.program_id(0), x_ptr, residual_ptr, weights, codes_ptr, scales_ptr, sum_ptr,
                               num_rows, eps, quant_eps, COLUMNS, ROWS, CHUNK, STREAM)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            normalize_and_quantize(tile, x_ptr, residual_ptr, weights, codes_ptr, scales_ptr, sum_ptr, num_rows, eps,
                                   quant_eps, COLUMNS, ROWS, CHUNK, STREAM)


def tuning_key(hidden_states, residual, weight, eps, quant_eps):
    rows, columns = hidden_states.shape
    return f"h{columns} t<={rowwise.up_to(rows)}"


def candidates(hidden_states, residual, weight, eps, quant_eps):
    return rowwise.row_candidates(*hidden_states.shape, rowwise.multiprocessors(hidden_states), tensors=2)


def cost(config, hidden_states, residual, weight, eps, quant_eps):
    return rowwise.row_cost(config, *hidden_states.shape, rowwise.multiprocessors(hidden_states), tensors=2)


def run_with(config, hidden_states, residual, weight, eps, quant_eps, quantized, scales, residual_out):
    rows, columns = hidden_states.shape
    rowwise.launch(derby_fused_rmsnorm_quant, config, rows, 1,
                   (hidden_states, residual, weight, quantized, scales, residual_out), (rows, eps, quant_eps),
                   COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_fused_rmsnorm_quant", on_current=True, where=("hidden_size > 0",),
                          hidden_states="bfloat16 num_tokens hidden_size", residual="bfloat16 num_tokens hidden_size",
                          weight="bfloat16 hidden_size", quantized="float8_e4m3fn num_tokens hidden_size",
                          scales="float32 num_tokens", residual_out="bfloat16 num_tokens hidden_size")


def run(hidden_states, residual, weight, eps, quant_eps, quantized, scales, residual_out):
    """hidden_states, residual bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> quantized e4m3 [num_tokens,
    hidden_size], scales float32 [num_tokens], residual_out as residual."""
    layout = check(hidden_states, residual, weight, quantized, scales, residual_out)
    if layout.config is None:
        layout.config = choose(hidden_states, residual, weight, eps, quant_eps)
    run_with(layout.config, hidden_states, residual, weight, eps, quant_eps, quantized, scales, residual_out)
