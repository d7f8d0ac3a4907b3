"""State stage of the chunked gated delta rule in one Triton kernel: a program carries some columns of a head's state
over all chunks, in registers."""

import importlib
import os

import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")

CHUNK = 64


@triton.jit
def derby_delta_rule_state_triton(k_ptr, w_ptr, u_ptr, g_ptr, pool_ptr, slots_ptr, h_ptr, v_new_ptr, final_ptr, tokens,
                                  k_heads, v_heads, key_dim, value_dim, CHUNK: tl.constexpr, KEYS: tl.constexpr,
                                  COLUMNS: tl.constexpr, STAGES: tl.constexpr, WIDEN: tl.constexpr):
    """Program (columns, value head). KEYS: key_dim, rounded up to a power of two. WIDEN: products of float32, for
    Triton's interpreter, whose dot() multiplies bfloat16 as integers."""
    head = tl.program_id(1).to(tl.int64)
    key_head = head // (v_heads // k_heads)
    rows, keys = tl.arange(0, CHUNK), tl.arange(0, KEYS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_column = keys < key_dim, columns < value_dim
    is_state = is_key[:, None] & is_column[None, :]
    in_state = keys[:, None] * value_dim + columns[None, :]
    one_state = key_dim * value_dim
    slot = tl.load(slots_ptr).to(tl.int64)
    state = tl.load(pool_ptr + (slot * v_heads + head) * one_state + in_state, mask=is_state, other=0.0)
    for first in tl.range(0, tokens, CHUNK, num_stages=STAGES):
        token = first + rows
        is_token = token < tokens
        at = token * v_heads + head
        narrow = state.to(k_ptr.dtype.element_ty)
        of_chunk = first // CHUNK * v_heads + head
        tl.store(h_ptr + of_chunk * one_state + in_state, narrow, mask=is_state)
        w = tl.load(w_ptr + at[:, None] * key_dim + keys[None, :], mask=is_token[:, None] & is_key[None, :], other=0.0)
        is_value = is_token[:, None] & is_column[None, :]
        u = tl.load(u_ptr + at[:, None] * value_dim + columns[None, :], mask=is_value, other=0.0)
        k_place = (token * k_heads + key_head)[None, :] * key_dim + keys[:, None]
        k = tl.load(k_ptr + k_place, mask=is_key[:, None] & is_token[None, :], other=0.0)
        g = tl.load(g_ptr + at, mask=is_token, other=0.0)
        last = tl.load(g_ptr + (tl.minimum(first + CHUNK, tokens) - 1) * v_heads + head)
        if WIDEN:
            w, narrow, k = w.to(tl.float32), narrow.to(tl.float32), k.to(tl.float32)
        values = u.to(tl.float32) - tl.dot(w, narrow)
        tl.store(v_new_ptr + at[:, None] * value_dim + columns[None, :], values.to(v_new_ptr.dtype.element_ty),
                 mask=is_value)
        decayed = (values * tl.where(is_token, tl.exp(last - g), 0.0)[:, None]).to(k_ptr.dtype.element_ty)
        if WIDEN:
            decayed = decayed.to(tl.float32)
        state = tl.dot(k, decayed, state * tl.exp(last))
    tl.store(final_ptr + head * one_state + in_state, state, mask=is_state)


check = contract.Contract("derby_chunk_gated_delta_rule_state_triton", on_current=True,
    where=("num_chunks == -(-num_tokens // 64)", "num_v_heads a multiple of num_k_heads"),
    k="bfloat16 num_tokens num_k_heads key_dim", w="bfloat16 num_tokens num_v_heads key_dim",
    u="bfloat16 num_tokens num_v_heads value_dim", g="float32 num_tokens num_v_heads",
    initial_state="float32 state_count num_v_heads key_dim value_dim", initial_state_indices="int32 1",
    chunk_starts="int32 num_chunks", h="bfloat16 num_chunks num_v_heads key_dim value_dim",
    v_new="bfloat16 num_tokens num_v_heads value_dim", final_state="float32 1 num_v_heads key_dim value_dim")


def run(k, w, u, g, initial_state, initial_state_indices, chunk_starts, h, v_new, final_state):
    """k bf16 [num_tokens, num_k_heads, key_dim], w bf16 [num_tokens, num_v_heads, key_dim], u bf16 [num_tokens,
    num_v_heads, value_dim], g float32 [num_tokens, num_v_heads], initial_state float32 [state_count, num_v_heads,
    key_dim, value_dim] -> h bf16 [num_chunks, num_v_heads, key_dim, value_dim], v_new as u, final_state."""
    check(k, w, u, g, initial_state, initial_state_indices, chunk_starts, h, v_new, final_state)
    tokens, heads, value_dim = u.shape
    key_dim = k.shape[2]
    columns = 32
    derby_delta_rule_state_triton[(triton.cdiv(value_dim, columns), heads)](
        k, w, u, g, initial_state, initial_state_indices, h, v_new, final_state, tokens, k.shape[1], heads, key_dim,
        value_dim, CHUNK, max(16, triton.next_power_of_2(key_dim)), columns, 3, not k.is_cuda, num_warps=4)
