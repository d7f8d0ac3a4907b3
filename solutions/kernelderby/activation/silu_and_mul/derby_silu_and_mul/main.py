"""SwiGLU: a program takes CHUNK columns of ROWS rows, of the gate and of the values that it gates, or CHUNK numbers of
the output across the ends of rows.

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
def gate_tile(tile, x_ptr, output_ptr, num_rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
              STREAM: tl.constexpr):
    row_tile, chunk = tile // ((COLUMNS + CHUNK - 1) // CHUNK), tile % ((COLUMNS + CHUNK - 1) // CHUNK)
    first_row, rows_left = tl.cast(row_tile, tl.int64) * ROWS, num_rows - row_tile * ROWS
    gate_ptr = x_ptr + first_row * 2 * COLUMNS
    gate = rowwise.load_tile(gate_ptr, chunk, rows_left, COLUMNS, 2 * COLUMNS, ROWS, CHUNK, STREAM)
    up = rowwise.load_tile(gate_ptr + COLUMNS, chunk, rows_left, COLUMNS, 2 * COLUMNS, ROWS, CHUNK, STREAM)
    values = rowwise.silu(gate.to(tl.float32)) * up.to(tl.float32)
    rowwise.store_tile(output_ptr + first_row * COLUMNS, values, chunk, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK,
                       STREAM)


@triton.jit
def gate_across(tile, x_ptr, output_ptr, num_rows, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr):
    """CHUNK numbers of the output from tile * CHUNK on. COLUMNS is a constant, so the division becomes a
    multiplication."""
    first = tl.cast(tile, tl.int64) * CHUNK
    first_row = first // COLUMNS
    position = (first - first_row * COLUMNS).to(tl.int32) + tl.arange(0, CHUNK)
    row = position // COLUMNS
    inside = row < num_rows - first_row.to(tl.int32)
    gate_ptr = x_ptr + first_row * (2 * COLUMNS) + (row * COLUMNS + position)  # = row * 2 * COLUMNS + column
    policy: tl.constexpr = "evict_first" if STREAM != "" else ""
    gate = tl.load(gate_ptr, mask=inside, other=0.0, eviction_policy=policy)
    up = tl.load(gate_ptr + COLUMNS, mask=inside, other=0.0, eviction_policy=policy)
    values = rowwise.silu(gate.to(tl.float32)) * up.to(tl.float32)
    tl.store(output_ptr + first + tl.arange(0, CHUNK), values.to(output_ptr.dtype.element_ty), mask=inside,
             eviction_policy="evict_first" if STREAM == "both" else "")


@triton.jit(do_not_specialize=["num_rows"])
def derby_silu_and_mul(x_ptr, output_ptr, num_rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
                       STREAM: tl.constexpr, STAGES: tl.constexpr):
    if ROWS == 0:
        gate_across(tl.program_id(0), x_ptr, output_ptr, num_rows, COLUMNS, CHUNK, STREAM)
    elif STAGES == 0:
        gate_tile(tl.program_id(0), x_ptr, output_ptr, num_rows, COLUMNS, ROWS, CHUNK, STREAM)
    else:
        tiles = tl.cdiv(num_rows, ROWS) * ((COLUMNS + CHUNK - 1) // CHUNK)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
            gate_tile(tile, x_ptr, output_ptr, num_rows, COLUMNS, ROWS, CHUNK, STREAM)


def tuning_key(gate_up):
    rows, _, columns = gate_up.shape
    return f"i{columns} t<={rowwise.up_to(rows)}"


def candidates(gate_up):
    rows, _, columns = gate_up.shape
    return rowwise.map_candidates(rows, columns, rowwise.multiprocessors(gate_up), tensors=2, flat=True)


def cost(config, gate_up):
    rows, _, columns = gate_up.shape
    return rowwise.map_cost(config, rows, columns, rowwise.multiprocessors(gate_up), tensors=2)


def run_with(config, gate_up, output):
    rows, _, columns = gate_up.shape
    rowwise.launch(derby_silu_and_mul, config, rows, triton.cdiv(columns, config["chunk"]), (gate_up, output), (rows,),
                   COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_silu_and_mul", on_current=True, gate_up="bfloat16 num_tokens 2 intermediate_size",
                          output="bfloat16 num_tokens intermediate_size")


def run(gate_up, output):
    """gate_up bf16 [num_tokens, 2, intermediate_size] -> output bf16 [num_tokens, intermediate_size]."""
    layout = check(gate_up, output)
    if layout.config is None:
        layout.config = choose(gate_up)
    run_with(layout.config, gate_up, output)
