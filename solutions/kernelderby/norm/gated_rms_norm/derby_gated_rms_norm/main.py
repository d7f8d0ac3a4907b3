"""RMS normalization and a SiLU gate: both rows once from memory, together, into registers.

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
def normalize_and_gate(tile, x_ptr, gate_ptr, weights, output_ptr, num_rows, eps, COLUMNS: tl.constexpr,
                       ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr):
    COUNT: tl.constexpr = (COLUMNS + CHUNK - 1) // CHUNK
    first, rows_left = tl.cast(tile, tl.int64) * ROWS * COLUMNS, num_rows - tile * ROWS
    x = rowwise.load_rows(x_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    gate = rowwise.load_rows(gate_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    inverse = tl.rsqrt(rowwise.sum_of_squares(x, COUNT) / COLUMNS + eps)[:, None]
    for part in tl.static_range(COUNT):
        values = x[part] * inverse * weights[part].to(tl.float32) * rowwise.silu(gate[part])
        rowwise.store_part(output_ptr + first, values, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, STREAM)


@triton.jit
def normalize_wide(tile, x_ptr, gate_ptr, weight_ptr, output_ptr, num_rows, eps, COLUMNS: tl.constexpr,
                   ROWS: tl.constexpr, CHUNK: tl.constexpr):
    first, rows_left = tl.cast(tile, tl.int64) * ROWS * COLUMNS, num_rows - tile * ROWS
    squares = rowwise.wide_sum_of_squares(x_ptr + first, rows_left, COLUMNS, ROWS, CHUNK)
    inverse = tl.rsqrt(squares / COLUMNS + eps)[:, None]
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        x = rowwise.load_wide(x_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        gate = rowwise.load_wide(gate_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        weights = rowwise.load_wide(weight_ptr, part, ROWS, COLUMNS, 0, ROWS, CHUNK)
        rowwise.store_tile(output_ptr + first, x * inverse * weights * rowwise.silu(gate), part, rows_left, COLUMNS,
                           COLUMNS, ROWS, CHUNK, "")


@triton.jit(do_not_specialize=["num_rows"])
def derby_gated_rms_norm(x_ptr, gate_ptr, weight_ptr, output_ptr, num_rows, eps, COLUMNS: tl.constexpr,
                         ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr, STAGES: tl.constexpr):
    if (COLUMNS + CHUNK - 1) // CHUNK > rowwise.MOST_PARTS:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
            normalize_wide(tile, x_ptr, gate_ptr, weight_ptr, output_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK)
        return
    weights = rowwise.load_vector(weight_ptr, COLUMNS, ROWS, CHUNK)
    if STAGES == 0:
        normalize_and_gate(tl.program_id(0), x_ptr, gate_ptr, weights, output_ptr, num_rows, eps, COLUMNS, ROWS,
                           CHUNK, STREAM)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            normalize_and_gate(tile, x_ptr, gate_ptr, weights, output_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK,
                               STREAM)


def tuning_key(hidden_states, gate, weight, eps):
    rows, columns = hidden_states.shape
    return f"h{columns} t<={rowwise.up_to(rows)}"


def candidates(hidden_states, gate, weight, eps):
    return rowwise.row_candidates(*hidden_states.shape, rowwise.multiprocessors(hidden_states), tensors=2)


def cost(config, hidden_states, gate, weight, eps):
    return rowwise.row_cost(config, *hidden_states.shape, rowwise.multiprocessors(hidden_states), tensors=2)


def run_with(config, hidden_states, gate, weight, eps, output):
    rows, columns = hidden_states.shape
    rowwise.launch(derby_gated_rms_norm, config, rows, 1, (hidden_states, gate, weight, output), (rows, eps),
                   COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_gated_rms_norm", on_current=True, hidden_states="bfloat16 num_rows hidden_size",
                          gate="bfloat16 num_rows hidden_size", weight="bfloat16 hidden_size",
                          output="bfloat16 num_rows hidden_size")


def run(hidden_states, gate, weight, eps, output):
    """hidden_states, gate bf16 [num_rows, hidden_size], weight bf16 [hidden_size] -> output, as hidden_states."""
    layout = check(hidden_states, gate, weight, output)
    if layout.config is None:
        layout.config = choose(hidden_states, gate, weight, eps)
    run_with(layout.config, hidden_states, gate, weight, eps, output)
