"""Output stage of the chunked delta rule in one Triton kernel: a program computes a chunk's outputs of one value
head."""

import importlib
import os

import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")

CHUNK = 64


@triton.jit
def derby_delta_rule_output_triton(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, output_ptr, tokens, q_heads, v_heads, key_dim,
                                   value_dim, scale, CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
                                   WIDEN: tl.constexpr):
    """Program (value head and columns, chunk). KEYS: key_dim, rounded up to a power of two. WIDEN: products of float32,
    for Triton's interpreter, whose dot() multiplies bfloat16 as integers."""
    parts = tl.cdiv(value_dim, COLUMNS)
    head, chunk = tl.program_id(0) // parts, tl.program_id(1)
    columns = tl.program_id(0) % parts * COLUMNS + tl.arange(0, COLUMNS)
    keys, token = tl.arange(0, KEYS), chunk * CHUNK + tl.arange(0, CHUNK)
    is_key, is_column, is_token = keys < key_dim, columns < value_dim, token < tokens
    of_group = (token.to(tl.int64) * q_heads + head // (v_heads // q_heads)) * key_dim
    at = token.to(tl.int64) * v_heads + head
    q = tl.load(q_ptr + of_group[:, None] + keys[None, :], mask=is_token[:, None] & is_key[None, :], other=0.0)
    k = tl.load(k_ptr + of_group[None, :] + keys[:, None], mask=is_token[None, :] & is_key[:, None], other=0.0)
    h_place = ((chunk.to(tl.int64) * v_heads + head) * key_dim + keys)[:, None] * value_dim + columns[None, :]
    h = tl.load(h_ptr + h_place, mask=is_key[:, None] & is_column[None, :], other=0.0)
    place = at[:, None] * value_dim + columns[None, :]
    is_value = is_token[:, None] & is_column[None, :]
    v = tl.load(v_ptr + place, mask=is_value, other=0.0)
    g = tl.load(g_ptr + at, mask=is_token, other=0.0)
    if WIDEN:
        q, k, h, v = q.to(tl.float32), k.to(tl.float32), h.to(tl.float32), v.to(tl.float32)
    causal = (token[:, None] >= token[None, :]) & is_token[:, None]
    scores = tl.dot(q, k) * tl.where(causal, tl.exp(tl.where(causal, g[:, None] - g[None, :], 0.0)), 0.0)
    narrow = scores.to(v_ptr.dtype.element_ty)
    if WIDEN:
        narrow = narrow.to(tl.float32)
    total = tl.dot(narrow, v, tl.dot(q, h) * tl.exp(g)[:, None])
    tl.store(output_ptr + place, (total * scale).to(output_ptr.dtype.element_ty), mask=is_value)


check = contract.Contract("derby_chunk_delta_rule_output_triton", on_current=True,
    where=("num_chunks == -(-num_tokens // 64)", "num_v_heads a multiple of num_q_heads"),
    q="bfloat16 num_tokens num_q_heads key_dim", k="bfloat16 num_tokens num_q_heads key_dim",
    v="bfloat16 num_tokens num_v_heads value_dim", h="bfloat16 num_chunks num_v_heads key_dim value_dim",
    g="float32 num_tokens num_v_heads", output="bfloat16 num_tokens num_v_heads value_dim")


def run(q, k, v, h, g, output):
    """q, k bf16 [num_tokens, num_q_heads, key_dim], v bf16 [num_tokens, num_v_heads, value_dim], h bf16 [num_chunks,
    num_v_heads, key_dim, value_dim], g float32 [num_tokens, num_v_heads] -> output, as v."""
    check(q, k, v, h, g, output)
    tokens, heads, value_dim = v.shape
    if tokens == 0:
        return
    key_dim = q.shape[2]
    columns = min(128, max(16, triton.next_power_of_2(value_dim)))
    derby_delta_rule_output_triton[(triton.cdiv(value_dim, columns) * heads, triton.cdiv(tokens, CHUNK))](
        q, k, v, h, g, output, tokens, q.shape[1], heads, key_dim, value_dim, key_dim ** -0.5, CHUNK,
        max(16, triton.next_power_of_2(key_dim)), columns, not q.is_cuda, num_warps=4)
