"""FP8 quantization in groups of 128: each group is a row for half a warp; a program takes many groups and writes their
scales together.

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
def quantize_rows(tile, x_ptr, codes_ptr, scales_ptr, num_rows, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                  CHUNK: tl.constexpr, STREAM: tl.constexpr):
    COUNT: tl.constexpr = (COLUMNS + CHUNK - 1) // CHUNK
    first_row, rows_left = tl.cast(tile, tl.int64) * ROWS, num_rows - tile * ROWS
    x = rowwise.load_rows(x_ptr + first_row * COLUMNS, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    scales, factors = rowwise.fp8_scale(rowwise.largest_magnitude(x, COUNT), eps)
    for part in tl.static_range(COUNT):
        rowwise.store_part(codes_ptr + first_row * COLUMNS, x[part] * factors[:, None], part, rows_left, COLUMNS,
                           COLUMNS, ROWS, CHUNK, STREAM)
    rowwise.store_scales(scales_ptr + first_row, scales, rows_left, ROWS)


@triton.jit(do_not_specialize=["num_rows"])
def derby_per_token_group_quant_fp8(x_ptr, codes_ptr, scales_ptr, num_rows, eps, COLUMNS: tl.constexpr,
                                    ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr,
                                    STAGES: tl.constexpr):
    if STAGES == 0:
        quantize_rows(tl.program_id(0), x_ptr, codes_ptr, scales_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK, STREAM)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            quantize_rows(tile, x_ptr, codes_ptr, scales_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK, STREAM)


def tuning_key(hidden_states, eps):
    tokens, groups, _ = hidden_states.shape
    return f"groups<={rowwise.up_to(tokens * groups)}"


def candidates(hidden_states, eps):
    tokens, groups, columns = hidden_states.shape
    return rowwise.row_candidates(tokens * groups, columns, rowwise.multiprocessors(hidden_states))


def cost(config, hidden_states, eps):
    tokens, groups, columns = hidden_states.shape
    return rowwise.row_cost(config, tokens * groups, columns, rowwise.multiprocessors(hidden_states))


def run_with(config, hidden_states, eps, quantized, scales):
    tokens, groups, columns = hidden_states.shape
    rows = tokens * groups
    rowwise.launch(derby_per_token_group_quant_fp8, config, rows, 1, (hidden_states, quantized, scales), (rows, eps),
                   COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_per_token_group_quant_fp8", on_current=True,
                          hidden_states="bfloat16 num_tokens num_groups 128",
                          quantized="float8_e4m3fn num_tokens num_groups 128",
                          scales="float32 num_tokens num_groups")


def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, num_groups, 128] -> quantized e4m3 alike, scales float32 [num_tokens,
    num_groups]."""
    layout = check(hidden_states, quantized, scales)
    if layout.config is None:
        layout.config = choose(hidden_states, eps)
    run_with(layout.config, hidden_states, eps, quantized, scales)
