"""Rows of length one: each row once from memory into registers, its squares summed there, scaled, written.

rowwise.py and block_rows.py, which lie beside this file once it is packed, say what a configuration means: of the
Triton kernel here, or of the CUDA C++ kernel (kernel.cu), a block a row, where that was found to be faster.
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
block_rows = importlib.import_module(f"{__name__}.block_rows")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_l2_norm", "kernel.cu",
                                   [POINTER] * 2 + [INT, INT, FLOAT, INT, INT, INT])
FORMS = ((2048, 256, "", 0),
         (2048, 256, "loads", 0),
         (2048, 128, "loads", 0),
         (2048, 128, "loads", 1))  # of kernel.cu: columns, threads, stream, ahead


@triton.jit
def normalize_rows(tile, x_ptr, output_ptr, num_rows, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                   CHUNK: tl.constexpr, STREAM: tl.constexpr):
    COUNT: tl.constexpr = (COLUMNS + CHUNK - 1) // CHUNK
    first, rows_left = tl.cast(tile, tl.int64) * ROWS * COLUMNS, num_rows - tile * ROWS
    x = rowwise.load_rows(x_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    inverse = tl.rsqrt(rowwise.sum_of_squares(x, COUNT) + eps)[:, None]  # of the sum: no mean here
    for part in tl.static_range(COUNT):
        rowwise.store_part(output_ptr + first, x[part] * inverse, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK,
                           STREAM)


@triton.jit
def normalize_wide(tile, x_ptr, output_ptr, num_rows, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                   CHUNK: tl.constexpr):
    first, rows_left = tl.cast(tile, tl.int64) * ROWS * COLUMNS, num_rows - tile * ROWS
    squares = rowwise.wide_sum_of_squares(x_ptr + first, rows_left, COLUMNS, ROWS, CHUNK)
    inverse = tl.rsqrt(squares + eps)[:, None]
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        x = rowwise.load_wide(x_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        rowwise.store_tile(output_ptr + first, x * inverse, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, "")


@triton.jit(do_not_specialize=["num_rows"])
def derby_l2_norm(x_ptr, output_ptr, num_rows, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
                  STREAM: tl.constexpr, STAGES: tl.constexpr):
    if (COLUMNS + CHUNK - 1) // CHUNK > rowwise.MOST_PARTS:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
            normalize_wide(tile, x_ptr, output_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK)
        return
    if STAGES == 0:
        normalize_rows(tl.program_id(0), x_ptr, output_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK, STREAM)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            normalize_rows(tile, x_ptr, output_ptr, num_rows, eps, COLUMNS, ROWS, CHUNK, STREAM)


def tuning_key(hidden_states, eps):
    rows, columns = hidden_states.shape
    return f"h{columns} t<={rowwise.up_to(rows)}"


def candidates(hidden_states, eps):
    found = rowwise.row_candidates(*hidden_states.shape, rowwise.multiprocessors(hidden_states))
    blocks = block_rows.candidates(hidden_states, FORMS)
    return found[:16 - len(blocks)] + blocks


def cost(config, hidden_states, eps):
    return rowwise.row_cost(config, *hidden_states.shape, rowwise.multiprocessors(hidden_states))


def run_with(config, hidden_states, eps, output):
    rows, columns = hidden_states.shape
    if "threads" in config:
        tensors = hidden_states, output
        if rows and block_rows.aligned(tensors):
            block_rows.launch(library, config, rowwise.multiprocessors(hidden_states), tensors, rows, columns, eps)
            return
        config = candidates(hidden_states, eps)[0]
    rowwise.launch(derby_l2_norm, config, rows, 1, (hidden_states, output), (rows, eps), COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_l2_norm", on_current=True, hidden_states="bfloat16 num_tokens hidden_size",
                          output="bfloat16 num_tokens hidden_size")


def run(hidden_states, eps, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output, as hidden_states."""
    layout = check(hidden_states, output)
    if layout.config is None:
        layout.config = choose(hidden_states, eps)
    run_with(layout.config, hidden_states, eps, output)
