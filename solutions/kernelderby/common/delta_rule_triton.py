"""The gated delta rule in Triton, for one sequence or several: token by token, and in chunks of 64 by two kernels.

A chunk's corrections c follow from the state S at its start by c = T (v - exp(g) k S), with T = (1 + A)^-1 beta and
A_ij = beta_i exp(g_i - g_j) k_i k_j for j < i. Its outputs are exp(g) q S + P c, with P_ij = exp(g_i - g_j) q_i k_j for
j <= i. T and P need no state: the first kernel computes them for all chunks at once. The second one carries the state
through the chunks. Keys and queries are not normalized before the products: their lengths are factors of rows.

The chunks of all sequences have places in one list: those of sequence n begin at offsets[n] // 64 + n, and no two
chunks share a place.
"""

import torch
import triton
import triton.language as tl

CHUNK = 64
RECURRENT = 8  # tokens up to which a sequence runs token by token


@triton.jit
def bounds_of(offsets_ptr, sequence, tokens):
    """First token of a sequence, and the one after its last. No offsets: one sequence of all tokens."""
    if offsets_ptr is None:
        return 0, tokens
    else:  # Triton compiles what follows a return in a branch
        return tl.load(offsets_ptr + sequence), tl.load(offsets_ptr + sequence + 1)


@triton.jit
def decay_of(a, dt_bias, A_log):
    """The log of a token's decay. In float32 exp(-128) is 0; sums of minus infinity would have no differences."""
    x = a.to(tl.float32) + dt_bias.to(tl.float32)
    log = -tl.exp(A_log) * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    return tl.where(log < -128.0, -128.0, log)


@triton.jit
def narrowed(x, WIDEN: tl.constexpr):
    """x as an operand: bfloat16. WIDEN: float32, for Triton's interpreter, whose dot() multiplies bfloat16 as integers
    and whose casts truncate where a GPU rounds to the nearest."""
    if WIDEN:
        return x.to(tl.float32)
    return x.to(tl.bfloat16)


@triton.jit
def derby_delta_rule_recurrent_triton(A_log_ptr, a_ptr, dt_bias_ptr, q_ptr, k_ptr, v_ptr, b_ptr, pool_ptr, slots_ptr,
                                      offsets_ptr, output_ptr, final_ptr, tokens, q_heads, v_heads, key_dim, value_dim,
                                      key_stride, value_stride, scale, KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (columns, value head, sequence): its part of the state in registers, token by token."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, end = bounds_of(offsets_ptr, sequence, tokens)
    key_head = head // (v_heads // q_heads)
    keys, columns = tl.arange(0, KEYS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_column = keys < key_dim, columns < value_dim
    is_state = is_key[:, None] & is_column[None, :]
    slot = tl.load(slots_ptr + sequence).to(tl.int64)
    in_state = keys[:, None] * key_stride + columns[None, :] * value_stride
    in_pool = (slot * v_heads + head) * key_dim * value_dim + in_state
    state = tl.load(pool_ptr + in_pool, mask=is_state, other=0.0)
    A_log, dt_bias = tl.load(A_log_ptr + head), tl.load(dt_bias_ptr + head)
    for token in range(first, end):
        q = tl.load(q_ptr + (token * q_heads + key_head) * key_dim + keys, mask=is_key, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + (token * q_heads + key_head) * key_dim + keys, mask=is_key, other=0.0).to(tl.float32)
        at = token * v_heads + head
        v = tl.load(v_ptr + at * value_dim + columns, mask=is_column, other=0.0).to(tl.float32)
        q *= scale * tl.rsqrt(tl.sum(q * q) + 1e-6)
        k *= tl.rsqrt(tl.sum(k * k) + 1e-6)
        state *= tl.exp(decay_of(tl.load(a_ptr + at), dt_bias, A_log))
        beta = tl.sigmoid(tl.load(b_ptr + at).to(tl.float32))
        correction = beta * (v - tl.sum(state * k[:, None], 0))
        state += k[:, None] * correction[None, :]
        tl.store(output_ptr + at * value_dim + columns, tl.sum(state * q[:, None], 0).to(output_ptr.dtype.element_ty),
                 mask=is_column)
    tl.store(final_ptr + in_pool, state, mask=is_state)


@triton.jit
def derby_delta_rule_prepare_triton(A_log_ptr, a_ptr, dt_bias_ptr, q_ptr, k_ptr, b_ptr, offsets_ptr, solve_ptr,
                                    within_ptr, factors_ptr, tokens, sequences, q_heads, v_heads, key_dim, scale,
                                    CHUNK: tl.constexpr, KEYS: tl.constexpr, WIDEN: tl.constexpr):
    """Program (value head, place): solve, within bf16 [places, num_v_heads, CHUNK, CHUNK] (T and P above), factors
    float32 [places, num_v_heads, 4, CHUNK]: of the rows of k S, of q S, of k to the chunk's end, and of the state.
    WIDEN: see narrowed()."""
    head, chunk = tl.program_id(0), tl.program_id(1)
    rows, keys = tl.arange(0, CHUNK), tl.arange(0, KEYS)
    low = 0
    if offsets_ptr is not None:  # the last sequence whose first place is not beyond
        high = sequences
        while high - low > 1:
            middle = (low + high) // 2
            beyond = tl.load(offsets_ptr + middle) // CHUNK + middle > chunk
            low = tl.where(beyond, low, middle)
            high = tl.where(beyond, middle, high)
    start, end = bounds_of(offsets_ptr, low, tokens)
    token = start + (chunk - (start // CHUNK + low)) * CHUNK + rows
    is_token = token < end
    is_row = is_token[:, None] & (keys < key_dim)[None, :]
    place = (token.to(tl.int64) * q_heads + head // (v_heads // q_heads))[:, None] * key_dim + keys[None, :]
    q, k = tl.load(q_ptr + place, mask=is_row, other=0.0), tl.load(k_ptr + place, mask=is_row, other=0.0)
    wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
    if WIDEN:
        q, k = wide_q, wide_k
    to_unit_q = scale * tl.rsqrt(tl.sum(wide_q * wide_q, 1) + 1e-6)
    to_unit_k = tl.rsqrt(tl.sum(wide_k * wide_k, 1) + 1e-6)
    at = token.to(tl.int64) * v_heads + head
    a = tl.load(a_ptr + at, mask=is_token, other=0.0)
    gate = decay_of(a, tl.load(dt_bias_ptr + head), tl.load(A_log_ptr + head))
    g = tl.cumsum(tl.where(is_token, gate, 0.0), 0)
    beta = tl.sigmoid(tl.load(b_ptr + at, mask=is_token, other=0.0).to(tl.float32))
    below = rows[:, None] > rows[None, :]
    same = rows[:, None] == rows[None, :]
    between = tl.exp(tl.where(below, g[:, None] - g[None, :], 0.0)) * to_unit_k[None, :]
    scores = tl.where(below | same, tl.dot(q, tl.trans(k)) * between * to_unit_q[:, None], 0.0)
    system = tl.where(below, tl.dot(k, tl.trans(k)) * between * (beta * to_unit_k)[:, None], 0.0)
    # (1 + A)^-1: first the 16 x 16 blocks on the diagonal, by repeated squares of A, whose 16th power is zero; then
    # blocks of 32 and 64, whose lower left quarter is - inverse quarter inverse.
    nearby = tl.where(rows[:, None] // 16 == rows[None, :] // 16, system, 0.0)
    inverse = tl.where(same, 1.0, 0.0) - nearby
    power = nearby
    for _ in tl.static_range(3):
        power = tl.dot(power, power, input_precision="tf32x3")
        inverse += tl.dot(inverse, power, input_precision="tf32x3")
    for block in tl.static_range(32, 65, 32):
        quarter = (rows[:, None] // block == rows[None, :] // block) & (
            rows[:, None] // (block // 2) != rows[None, :] // (block // 2))
        product = tl.dot(inverse, tl.where(quarter, system, 0.0), input_precision="tf32x3")
        inverse -= tl.dot(product, inverse, input_precision="tf32x3")
    of_chunk = chunk.to(tl.int64) * v_heads + head
    square = of_chunk * CHUNK * CHUNK + rows[:, None] * CHUNK + rows[None, :]
    tl.store(solve_ptr + square, (inverse * beta[None, :]).to(solve_ptr.dtype.element_ty))
    tl.store(within_ptr + square, scores.to(within_ptr.dtype.element_ty))
    last = tl.sum(tl.where(is_token, gate, 0.0), 0)
    factors = factors_ptr + of_chunk * 4 * CHUNK + rows
    tl.store(factors, tl.exp(g) * to_unit_k)
    tl.store(factors + CHUNK, tl.exp(g) * to_unit_q)
    tl.store(factors + 2 * CHUNK, tl.where(is_token, tl.exp(last - g) * to_unit_k, 0.0))
    tl.store(factors + 3 * CHUNK, tl.exp(last + 0.0 * g))


@triton.jit
def derby_delta_rule_carry_triton(q_ptr, k_ptr, v_ptr, solve_ptr, within_ptr, factors_ptr, pool_ptr, slots_ptr,
                                  offsets_ptr, output_ptr, final_ptr, tokens, q_heads, v_heads, key_dim, value_dim,
                                  key_stride, value_stride, CHUNK: tl.constexpr, KEYS: tl.constexpr,
                                  COLUMNS: tl.constexpr, STAGES: tl.constexpr, WIDEN: tl.constexpr):
    """Program (columns, value head, sequence): its part of the state in registers, chunk by chunk."""
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2)
    start, end = bounds_of(offsets_ptr, sequence, tokens)
    first_place = start // CHUNK + sequence
    key_head = head // (v_heads // q_heads)
    rows, keys = tl.arange(0, CHUNK), tl.arange(0, KEYS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_column = keys < key_dim, columns < value_dim
    is_state = is_key[:, None] & is_column[None, :]
    slot = tl.load(slots_ptr + sequence).to(tl.int64)
    in_state = keys[:, None] * key_stride + columns[None, :] * value_stride
    in_pool = (slot * v_heads + head) * key_dim * value_dim + in_state
    state = tl.load(pool_ptr + in_pool, mask=is_state, other=0.0)
    for number in tl.range(0, tl.cdiv(end - start, CHUNK), num_stages=STAGES):
        token = start + number * CHUNK + rows
        is_token = token < end
        of_group = (token * q_heads + key_head) * key_dim
        is_row = is_token[:, None] & is_key[None, :]
        q = tl.load(q_ptr + of_group[:, None] + keys[None, :], mask=is_row, other=0.0)
        k = tl.load(k_ptr + of_group[:, None] + keys[None, :], mask=is_row, other=0.0)
        place = (token * v_heads + head)[:, None] * value_dim + columns[None, :]
        is_value = is_token[:, None] & is_column[None, :]
        v = tl.load(v_ptr + place, mask=is_value, other=0.0)
        of_chunk = (first_place + number) * v_heads + head
        square = of_chunk * CHUNK * CHUNK + rows[:, None] * CHUNK + rows[None, :]
        solve, within = tl.load(solve_ptr + square), tl.load(within_ptr + square)
        factors = factors_ptr + of_chunk * 4 * CHUNK
        of_k, of_q = tl.load(factors + rows), tl.load(factors + CHUNK + rows)
        to_end, of_state = tl.load(factors + 2 * CHUNK + rows), tl.load(factors + 3 * CHUNK)
        q, k, solve, within = narrowed(q, WIDEN), narrowed(k, WIDEN), narrowed(solve, WIDEN), narrowed(within, WIDEN)
        narrow = narrowed(state, WIDEN)
        missing = narrowed(v.to(tl.float32) - tl.dot(k, narrow) * of_k[:, None], WIDEN)
        corrections = tl.dot(solve, missing)
        state = tl.dot(tl.trans(k), narrowed(corrections * to_end[:, None], WIDEN), state * of_state)
        result = tl.dot(within, narrowed(corrections, WIDEN), tl.dot(q, narrow) * of_q[:, None])
        tl.store(output_ptr + place, result.to(output_ptr.dtype.element_ty), mask=is_value)
    tl.store(final_ptr + in_pool, state, mask=is_state)


def solve(A_log, a, dt_bias, q, k, v, b, initial_state, slots, offsets, output, final_state, key_major):
    """Runs the whole rule, in place if final_state is initial_state. offsets: first token of each sequence and the
    number of tokens, or None for one sequence. key_major: a state lies [key_dim, value_dim], else [value_dim,
    key_dim]."""
    if final_state.data_ptr() != initial_state.data_ptr():
        final_state.detach().copy_(initial_state.detach())
    (tokens, heads, value_dim), (q_heads, key_dim), sequences = v.shape, q.shape[1:], len(slots)
    if tokens == 0 or sequences == 0:
        return
    keys, scale, widen = max(16, triton.next_power_of_2(key_dim)), key_dim ** -0.5, not q.is_cuda
    strides = (value_dim, 1) if key_major else (1, key_dim)
    pool = initial_state, slots, offsets
    if tokens <= max(sequences, RECURRENT):  # where every sequence has a token, each has one
        columns = 16
        derby_delta_rule_recurrent_triton[(triton.cdiv(value_dim, columns), heads, sequences)](
            A_log, a, dt_bias, q, k, v, b, *pool, output, final_state, tokens, q_heads, heads, key_dim, value_dim,
            *strides, scale, keys, columns, num_warps=2)
        return
    places, columns = tokens // CHUNK + sequences, 32
    squares = q.new_empty(2, places, heads, CHUNK, CHUNK, dtype=torch.float32 if widen else q.dtype)
    factors = q.new_empty(places, heads, 4, CHUNK, dtype=torch.float32)
    derby_delta_rule_prepare_triton[(heads, places)](
        A_log, a, dt_bias, q, k, b, offsets, *squares, factors, tokens, sequences, q_heads, heads, key_dim, scale,
        CHUNK, keys, widen, num_warps=4)
    derby_delta_rule_carry_triton[(triton.cdiv(value_dim, columns), heads, sequences)](
        q, k, v, *squares, factors, *pool, output, final_state, tokens, q_heads, heads, key_dim, value_dim, *strides,
        CHUNK, keys, columns, 2, widen, num_warps=4)
