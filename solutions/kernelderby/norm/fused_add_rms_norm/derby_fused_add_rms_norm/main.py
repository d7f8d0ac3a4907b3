"""Residual add and RMS normalization in one pass: the sum, unrounded, stays in registers between its two uses.

Outputs may lie in the inputs: the program that writes a row has read all of it, and no two threads hold the same
numbers.

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
library = cuda_library.CudaLibrary(__file__, "derby_fused_add_rms_norm", "kernel.cu",
                                   [POINTER] * 5 + [INT, INT, FLOAT, INT, INT, INT])
FORMS = ((7168, 896, "loads", 0),
         (7168, 448, "", 0),
         (7168, 224, "", 0),
         (7168, 128, "", 0),
         (7168, 896, "", 1),
         (7168, 320, "", 1),
         (5120, 640, "loads", 0),
         (5120, 320, "", 0),
         (5120, 160, "", 0),
         (5120, 160, "both", 0),
         (5120, 160, "loads", 1),
         (5120, 640, "", 1),
         (2048, 256, "", 0),
         (2048, 128, "", 0))  # of kernel.cu: columns, threads, stream, ahead


@triton.jit
def add_and_normalize(tile, x_ptr, residual_ptr, weights, output_ptr, sum_ptr, num_rows, eps, COLUMNS: tl.constexpr,
                      ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr):
    COUNT: tl.constexpr = (COLUMNS + CHUNK - 1) // CHUNK
    first, rows_left = tl.cast(tile, tl.int64) * ROWS * COLUMNS, num_rows - tile * ROWS
    x = rowwise.load_rows(x_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    residual = rowwise.load_rows(residual_ptr + first, rows_left, COLUMNS, ROWS, CHUNK, STREAM)
    total = rowwise.add(x, residual, COUNT)
    for part in tl.static_range(COUNT):
        rowwise.store_part(sum_ptr + first, total[part], part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, STREAM)
    inverse = tl.rsqrt(rowwise.sum_of_squares(total, COUNT) / COLUMNS + eps)[:, None]
    for part in tl.static_range(COUNT):
        rowwise.store_part(output_ptr + first, total[part] * inverse * weights[part].to(tl.float32), part, rows_left,
                           COLUMNS, COLUMNS, ROWS, CHUNK, STREAM)


@triton.jit
def add_and_normalize_wide(tile, x_ptr, residual_ptr, weight_ptr, output_ptr, sum_ptr, num_rows, eps,
                           COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """Computes the sum twice and writes it only at the end: if the sum lies in the residual, the residual is still
    there the second time."""
    first, rows_left = tl.cast(tile, tl.int64) * ROWS * COLUMNS, num_rows - tile * ROWS
    squares = tl.zeros([ROWS, CHUNK], tl.float32)
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        total = rowwise.load_wide(x_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        total += rowwise.load_wide(residual_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        squares += total * total
    inverse = tl.rsqrt(tl.sum(squares, 1) / COLUMNS + eps)[:, None]
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        total = rowwise.load_wide(x_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        total += rowwise.load_wide(residual_ptr + first, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        weights = rowwise.load_wide(weight_ptr, part, ROWS, COLUMNS, 0, ROWS, CHUNK)
        rowwise.store_tile(sum_ptr + first, total, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, "")
        rowwise.store_tile(output_ptr + first, total * inverse * weights, part, rows_left, COLUMNS, COLUMNS, ROWS,
                           CHUNK, "")


@triton.jit(do_not_specialize=["num_rows"])
def derby_fused_add_rms_norm(x_ptr, residual_ptr, weight_ptr, output_ptr, sum_ptr, num_rows, eps,
                             COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr,
                             STAGES: tl.constexpr):
    if (COLUMNS + CHUNK - 1) // CHUNK > rowwise.MOST_PARTS:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
            add_and_normalize_wide(tile, x_ptr, residual_ptr, weight_ptr, output_ptr, sum_ptr, num_rows, eps, COLUMNS,
                                   ROWS, CHUNK)
        return
    weights = rowwise.load_vector(weight_ptr, COLUMNS, ROWS, CHUNK)
    if STAGES == 0:
        add_and_normalize(tl.program_id(0), x_ptr, residual_ptr, weights, output_ptr, sum_ptr, num_rows, eps, COLUMNS,
                          ROWS, CHUNK, STREAM)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            add_and_normalize(tile, x_ptr, residual_ptr, weights, output_ptr, sum_ptr, num_rows, eps, COLUMNS, ROWS,
                              CHUNK, STREAM)


def tuning_key(hidden_states, residual, weight, eps):
    rows, columns = hidden_states.shape
    octave = rowwise.up_to(rows)  # in two parts: what is best at 632 rows of 7168 is not best at 917
    return f"h{columns} t<={octave * 3 // 4 if rows <= octave * 3 // 4 else octave}"


def candidates(hidden_states, residual, weight, eps):
    found = rowwise.row_candidates(*hidden_states.shape, rowwise.multiprocessors(hidden_states), tensors=2)
    blocks = block_rows.candidates(hidden_states, FORMS)
    return found[:16 - len(blocks)] + blocks


def cost(config, hidden_states, residual, weight, eps):
    return rowwise.row_cost(config, *hidden_states.shape, rowwise.multiprocessors(hidden_states), tensors=2)


def run_with(config, hidden_states, residual, weight, eps, output, residual_out):
    rows, columns = hidden_states.shape
    if "threads" in config:
        tensors = hidden_states, residual, weight, output, residual_out
        if rows and block_rows.aligned(tensors):
            block_rows.launch(library, config, rowwise.multiprocessors(hidden_states), tensors, rows, columns, eps)
            return
        config = candidates(hidden_states, residual, weight, eps)[0]
    rowwise.launch(derby_fused_add_rms_norm, config, rows, 1, (hidden_states, residual, weight, output, residual_out),
                   (rows, eps), COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_fused_add_rms_norm", on_current=True,
                          hidden_states="bfloat16 num_tokens hidden_size", residual="bfloat16 num_tokens hidden_size",
                          weight="bfloat16 hidden_size", output="bfloat16 num_tokens hidden_size",
                          residual_out="bfloat16 num_tokens hidden_size")


def run(hidden_states, residual, weight, eps, output, residual_out):
    """hidden_states, residual bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> output and
    residual_out alike."""
    layout = check(hidden_states, residual, weight, output, residual_out)
    if layout.config is None:
        layout.config = choose(hidden_states, residual, weight, eps)
    run_with(layout.config, hidden_states, residual, weight, eps, output, residual_out)
