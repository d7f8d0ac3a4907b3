"""RMS normalization of query and key heads: one launch over all heads, each a row of 128; value heads pass unchanged,
or stay where they are when the output is the input.

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
def normalize_heads(tile, x_ptr, q_weights, k_weights, output_ptr, num_rows, num_heads, num_touched, num_q_heads,
                    num_kv_heads, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
                    STREAM: tl.constexpr):
    """COLUMNS is CHUNK or less: a head is one part. num_touched: heads of a token that are written, the first ones."""
    rows_left = num_rows - tile * ROWS
    row = tile * ROWS + tl.arange(0, ROWS)[:, None]
    head = row % num_touched
    first = (row // num_touched * num_heads + head).to(tl.int64) * COLUMNS
    raw = rowwise.load_part(x_ptr + first, 0, rows_left, COLUMNS, 0, ROWS, CHUNK, STREAM)
    x = raw.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / COLUMNS + eps)[:, None]
    weights = tl.where(head < num_q_heads, q_weights[0], k_weights[0]).to(tl.float32)
    normalized = (x * inverse * weights).to(raw.dtype)
    values = tl.where(head < num_q_heads + num_kv_heads, normalized, raw)
    rowwise.store_part(output_ptr + first, values, 0, rows_left, COLUMNS, 0, ROWS, CHUNK, STREAM)


@triton.jit(do_not_specialize=["num_rows", "num_heads", "num_touched", "num_q_heads", "num_kv_heads"])
def derby_fused_qk_rmsnorm(x_ptr, q_weight_ptr, k_weight_ptr, output_ptr, num_rows, num_heads, num_touched,
                           num_q_heads, num_kv_heads, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                           CHUNK: tl.constexpr, STREAM: tl.constexpr, STAGES: tl.constexpr):
    q_weights = rowwise.load_vector(q_weight_ptr, COLUMNS, ROWS, CHUNK)
    k_weights = rowwise.load_vector(k_weight_ptr, COLUMNS, ROWS, CHUNK)
    if STAGES == 0:
        normalize_heads(tl.program_id(0), x_ptr, q_weights, k_weights, output_ptr, num_rows, num_heads, num_touched,
                        num_q_heads, num_kv_heads, eps, COLUMNS, ROWS, CHUNK, STREAM)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            normalize_heads(tile, x_ptr, q_weights, k_weights, output_ptr, num_rows, num_heads, num_touched,
                            num_q_heads, num_kv_heads, eps, COLUMNS, ROWS, CHUNK, STREAM)


def tuning_key(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps):
    tokens, heads, _ = qkv.shape
    return f"heads{heads} t<={rowwise.up_to(tokens)}"


def candidates(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps):
    tokens, heads, columns = qkv.shape
    found = rowwise.row_candidates(rowwise.middle(tokens) * heads, columns, rowwise.multiprocessors(qkv))
    return [config for config in found if config["chunk"] >= columns]


def cost(config, qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps):
    tokens, heads, columns = qkv.shape
    return rowwise.row_cost(config, tokens * heads, columns, rowwise.multiprocessors(qkv))


def run_with(config, qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output):
    tokens, heads, columns = qkv.shape
    touched = num_q_heads + num_kv_heads if output.data_ptr() == qkv.data_ptr() else heads
    rowwise.launch(derby_fused_qk_rmsnorm, config, tokens * touched, 1, (qkv, q_weight, k_weight, output),
                   (tokens * touched, heads, touched, num_q_heads, num_kv_heads, eps), COLUMNS=columns)


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, cost)

check = contract.Contract("derby_fused_qk_rmsnorm", on_current=True, where=("head_dim <= 4096",),
                          qkv="float16 num_tokens num_heads head_dim", q_weight="float16 head_dim",
                          k_weight="float16 head_dim", output="float16 num_tokens num_heads head_dim")


def run(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output):
    """qkv fp16 [num_tokens, num_heads, 128], weights fp16 [128] -> output, as qkv, which it may be."""
    layout = check(qkv, q_weight, k_weight, output)
    if not 0 <= num_q_heads <= num_q_heads + num_kv_heads <= qkv.shape[1]:
        raise ValueError(f"derby_fused_qk_rmsnorm: num_q_heads {num_q_heads} and num_kv_heads {num_kv_heads} are not "
                         f"among the {qkv.shape[1]} heads of qkv; pass what qkv holds")
    if layout.config is None:
        layout.config = choose(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps)
    run_with(layout.config, qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output)
