"""Sum over the experts of a token: a program loads CHUNK columns of all TOP_K rows of ROWS tokens at once.

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
def sum_tile(tile, x_ptr, output_ptr, num_rows, factor, TOP_K: tl.constexpr, COLUMNS: tl.constexpr,
             ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr):
    row_tile, chunk = tile // ((COLUMNS + CHUNK - 1) // CHUNK), tile % ((COLUMNS + CHUNK - 1) // CHUNK)
    first_row, rows_left = tl.cast(row_tile, tl.int64) * ROWS, num_rows - row_tile * ROWS
    x_ptr += first_row * TOP_K * COLUMNS
    parts = ()
    for expert in tl.static_range(TOP_K):
        parts = parts + (rowwise.load_tile(x_ptr + expert * COLUMNS, chunk, rows_left, COLUMNS, TOP_K * COLUMNS, ROWS,
                                           CHUNK, STREAM),)
    total = parts[0].to(tl.float32)
    for expert in tl.static_range(1, TOP_K):
        total += parts[expert].to(tl.float32)
    rowwise.store_tile(output_ptr + first_row * COLUMNS, total * factor, chunk, rows_left, COLUMNS, COLUMNS, ROWS,
                       CHUNK, STREAM)


@triton.jit(do_not_specialize=["num_rows"])
def derby_moe_sum_reduce(x_ptr, output_ptr, num_rows, factor, TOP_K: tl.constexpr, COLUMNS: tl.constexpr,
                         ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr, STAGES: tl.constexpr):
    if STAGES == 0:
        sum_tile(tl.program_id(0), x_ptr, output_ptr, num_rows, factor, TOP_K, COLUMNS, ROWS, CHUNK, STREAM)
    else:
        tiles = tl.cdiv(num_rows, ROWS) * ((COLUMNS + CHUNK - 1) // CHUNK)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
            sum_tile(tile, x_ptr, output_ptr, num_rows, factor, TOP_K, COLUMNS, ROWS, CHUNK, STREAM)


def tuning_key(expert_outputs, routed_scaling_factor):
    rows, top_k, columns = expert_outputs.shape
    return f"k{top_k} h{columns} t<={rowwise.up_to(rows)}"


def candidates(expert_outputs, routed_scaling_factor):
    rows, top_k, columns = expert_outputs.shape
    return rowwise.map_candidates(rows, columns, rowwise.multiprocessors(expert_outputs), tensors=top_k)


def cost(config, expert_outputs, routed_scaling_factor):
    rows, top_k, columns = expert_outputs.shape
    return rowwise.map_cost(config, rows, columns, rowwise.multiprocessors(expert_outputs), tensors=top_k)


def run_with(config, expert_outputs, routed_scaling_factor, output):
    rows, top_k, columns = expert_outputs.shape
    rowwise.launch(derby_moe_sum_reduce, config, rows, triton.cdiv(columns, config["chunk"]), (expert_outputs, output),
                   (rows, routed_scaling_factor), TOP_K=top_k, COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_moe_sum_reduce", on_current=True,
                          expert_outputs="bfloat16 num_tokens top_k hidden_size",
                          output="bfloat16 num_tokens hidden_size", where=("top_k > 0",))


def run(expert_outputs, routed_scaling_factor, output):
    """expert_outputs bf16 [num_tokens, top_k, hidden_size] -> output bf16 [num_tokens, hidden_size]."""
    layout = check(expert_outputs, output)
    if layout.config is None:
        layout.config = choose(expert_outputs, routed_scaling_factor)
    run_with(layout.config, expert_outputs, routed_scaling_factor, output)
