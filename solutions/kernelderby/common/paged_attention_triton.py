"""Causal attention over a paged cache in Triton, of any head size: prefill and decode in one kernel.

A program takes the query heads of one key head for some tokens of one sequence, as rows of one tile, over that
sequence's keys in tiles. If there are few programs and much context, each tile's keys go to several programs, and a
second kernel puts their parts together.
"""

import torch
import triton
import triton.language as tl

from . import attention_tiles as tiles

LOG2_E = 1.4426950408889634
MOST_SPLITS = 64


@triton.jit(do_not_specialize=["num_seqs", "table_width", "num_tokens"])
def derby_unified_attention(query, key_cache, value_cache, cu_seqlens, seq_lens, block_table, output, partial, extremes,
                            scale, num_seqs, table_width, num_tokens, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
                            HEAD_DIM: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, PAGE: tl.constexpr,
                            ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr):
    """partial float32 [SPLITS, num_tokens, heads, head_dim], extremes float32 [2, SPLITS, num_tokens, heads]: sums of
    weighted values, the highest score and the sum of the weights of each part; used only if SPLITS > 1."""
    TOKENS: tl.constexpr = ROWS // GROUP
    HEADS: tl.constexpr = GROUP * KV_HEADS
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the last tokens of a sequence see most: first
    sequence = tiles.sequence_of(cu_seqlens, num_seqs, tile, TOKENS)
    first_row = tl.load(cu_seqlens + sequence)
    count = tl.load(cu_seqlens + sequence + 1) - first_row
    start = (tile - first_row // TOKENS - sequence) * TOKENS  # of the sequence's queries
    if start >= count:
        return
    context = tl.load(seq_lens + sequence) - count

    row = tl.arange(0, ROWS)
    token = start + row // GROUP
    there = (row < TOKENS * GROUP) & (token < count)
    heads = (first_row + token).to(tl.int64) * HEADS + kv_head * GROUP + row % GROUP
    queries0 = tiles.load_rows(query, heads * HEAD_DIM, there, HEAD_DIM, 0, FIRST, True)
    queries1 = queries0
    output0 = tl.zeros([ROWS, FIRST], tl.float32)
    output1 = output0
    if SECOND > 0:
        queries1 = tiles.load_rows(query, heads * HEAD_DIM, there, HEAD_DIM, FIRST, SECOND, True)
        output1 = tl.zeros([ROWS, SECOND], tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)

    visible = context + tl.minimum(start + TOKENS, count)  # tokens that the tile's last query sees
    plain = (context + start + 1) // TILE * TILE  # what all its queries see, in whole tiles
    each = tl.cdiv(tl.cdiv(visible, TILE), SPLITS) * TILE
    low = tl.program_id(2) * each
    high = tl.minimum(low + each, visible)
    table = block_table + sequence.to(tl.int64) * table_width
    keys = key_cache + kv_head * HEAD_DIM
    values = value_cache + kv_head * HEAD_DIM
    column = tl.arange(0, TILE)
    for at in tl.range(low, tl.minimum(high, plain), TILE):
        slot = tl.load(table + (at + column) // PAGE).to(tl.int64) * PAGE + (at + column) % PAGE
        output0, output1, highest, total = tiles.absorb(
            queries0, queries1, output0, output1, highest, total, keys, values, slot * (KV_HEADS * HEAD_DIM), there,
            there, scale, HEAD_DIM, FIRST, SECOND, False)
    for at in tl.range(tl.maximum(low, plain), high, TILE):
        known = at + column < visible
        slot = tl.load(table + (at + column) // PAGE, mask=known, other=0).to(tl.int64) * PAGE + (at + column) % PAGE
        seen = (at + column)[None, :] <= (context + token)[:, None]
        output0, output1, highest, total = tiles.absorb(
            queries0, queries1, output0, output1, highest, total, keys, values, slot * (KV_HEADS * HEAD_DIM), known,
            seen & known[None, :], scale, HEAD_DIM, FIRST, SECOND, True)

    if SPLITS == 1:
        factor = 1.0 / total
        target = output
    else:
        factor = tl.full([ROWS], 1.0, tl.float32)
        target = partial
        part = tl.program_id(2).to(tl.int64) * num_tokens * HEADS
        heads += part
        tl.store(extremes + heads, highest, mask=there)
        tl.store(extremes + tl.cast(SPLITS, tl.int64) * num_tokens * HEADS + heads, total, mask=there)
    tiles.store_rows(target, output0 * factor[:, None], heads * HEAD_DIM, there, HEAD_DIM, 0, FIRST)
    if SECOND > 0:
        tiles.store_rows(target, output1 * factor[:, None], heads * HEAD_DIM, there, HEAD_DIM, FIRST, SECOND)


@triton.jit(do_not_specialize=["heads"])
def derby_unified_attention_join(partial, extremes, output, heads, HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr,
                                 SPLITS: tl.constexpr):
    """Each program takes one head of one token. heads: of all tokens together. COLUMNS: power of two, at least
    HEAD_DIM."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    highest = tl.load(extremes + split * tl.cast(heads, tl.int64) + head)
    total = tl.load(extremes + (SPLITS + split) * tl.cast(heads, tl.int64) + head)
    factor = tl.exp2(highest - tl.max(highest, axis=0))
    factor /= tl.sum(factor * total, axis=0)
    column = tl.arange(0, COLUMNS)
    rows = split * tl.cast(heads, tl.int64) + head
    parts = tl.load(partial + rows[:, None] * HEAD_DIM + column[None, :], mask=(column < HEAD_DIM)[None, :], other=0.0)
    tl.store(output + head * HEAD_DIM + column, tl.sum(parts * factor[:, None], axis=0).to(output.dtype.element_ty),
             mask=column < HEAD_DIM)


def power_of_two(number):
    return 1 << max(int(number) - 1, 0).bit_length()


def candidates(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len,
               sm_scale):
    """rows of a tile of queries, tokens of a tile of keys (safe_tile of them), warps, stages of the pipeline, programs
    that a tile's keys go to."""
    heads, head_dim = query.shape[1:]
    kv_heads = key_cache.shape[2]
    group = heads // kv_heads
    least = max(16, power_of_two(group))
    wanted = power_of_two(group * min(int(max_query_len), 128))
    found = []
    for rows, tile, warps, stages in (
        (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 8, 3),
        (64, 32, 4, 3), (32, 64, 4, 3), (16, 64, 4, 3), (16, 128, 4, 3),
    ):
        rows = max(min(rows, wanted), least)
        if head_dim > 128:  # of both parts of the output and two stages of keys: as much as fits
            tile, stages = min(tile, 64), 2
        if head_dim > 256:
            rows, tile = max(min(rows, 32), least), 32
        programs = (query.shape[0] // max(rows // group, 1) + len(seq_lens)) * kv_heads
        splits = min(MOST_SPLITS, power_of_two(256 // max(programs, 1)), power_of_two(-(-int(max_seq_len) // 512)))
        config = {"rows": rows, "tile": tile, "warps": min(warps, max(4, rows // 16)), "stages": stages,
                  "splits": splits if programs < 128 else 1}
        if config not in found:
            found.append(config)
    return found


def run_with(config, query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len,
             sm_scale, output):
    num_tokens, heads, head_dim = query.shape
    if num_tokens == 0:
        return
    kv_heads, page = key_cache.shape[2], key_cache.shape[1]
    group, splits = heads // kv_heads, config["splits"]
    first, second = tiles.parts_of(head_dim)
    partial = extremes = output
    if splits > 1:
        partial = torch.empty((splits, num_tokens, heads, head_dim), dtype=torch.float32, device=query.device)
        extremes = torch.empty((2, splits, num_tokens, heads), dtype=torch.float32, device=query.device)
    grid = kv_heads, num_tokens // (config["rows"] // group) + len(seq_lens), splits
    derby_unified_attention[grid](
        query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output, partial, extremes,
        float(sm_scale) * LOG2_E, len(seq_lens), block_table.shape[1], num_tokens, GROUP=group, KV_HEADS=kv_heads,
        HEAD_DIM=head_dim, FIRST=first, SECOND=second, PAGE=page, ROWS=config["rows"],
        TILE=tiles.safe_tile(config["rows"], config["tile"]),
        SPLITS=splits, num_warps=config["warps"], num_stages=config["stages"])
    if splits > 1:
        derby_unified_attention_join[(num_tokens * heads,)](
            partial, extremes, output, num_tokens * heads, HEAD_DIM=head_dim, COLUMNS=power_of_two(head_dim),
            SPLITS=splits, num_warps=4)
