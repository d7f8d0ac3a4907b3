"""Full attention over packed sequences in Triton, of any head size: each program takes a tile of one head's queries.

It finds the tile's sequence in cu_seqlens_q. Every sequence gets one tile more than its share of the tokens, so the
grid needs no number that only the GPU knows.
"""

import triton
import triton.language as tl

from . import attention_tiles as tiles

LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["num_seqs"])
def derby_attention_forward(query, key, value, cu_seqlens_q, cu_seqlens_k, output, scale, num_seqs,
                            HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
                            ROWS: tl.constexpr, TILE: tl.constexpr):
    head = tl.program_id(1)
    tile = tl.program_id(0)
    sequence = tiles.sequence_of(cu_seqlens_q, num_seqs, tile, ROWS)
    first_row = tl.load(cu_seqlens_q + sequence)
    count = tl.load(cu_seqlens_q + sequence + 1) - first_row
    start = (tile - first_row // ROWS - sequence) * ROWS  # of the sequence's queries
    if start >= count:
        return
    first_key = tl.load(cu_seqlens_k + sequence)
    length = tl.load(cu_seqlens_k + sequence + 1) - first_key

    token = start + tl.arange(0, ROWS)
    there = token < count
    rows = ((first_row + token).to(tl.int64) * HEADS + head) * HEAD_DIM
    queries0 = tiles.load_rows(query, rows, there, HEAD_DIM, 0, FIRST, True)
    queries1 = queries0
    output0 = tl.zeros([ROWS, FIRST], tl.float32)
    output1 = output0
    if SECOND > 0:
        queries1 = tiles.load_rows(query, rows, there, HEAD_DIM, FIRST, SECOND, True)
        output1 = tl.zeros([ROWS, SECOND], tl.float32)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)

    column = tl.arange(0, TILE)
    keys = key + (first_key.to(tl.int64) * HEADS + head) * HEAD_DIM
    values = value + (first_key.to(tl.int64) * HEADS + head) * HEAD_DIM
    plain = length // TILE * TILE
    for at in tl.range(0, plain, TILE):
        output0, output1, highest, total = tiles.absorb(
            queries0, queries1, output0, output1, highest, total, keys, values,
            (at + column).to(tl.int64) * (HEADS * HEAD_DIM), there, there, scale, HEAD_DIM, FIRST, SECOND, False)
    if plain < length:
        known = plain + column < length
        output0, output1, highest, total = tiles.absorb(
            queries0, queries1, output0, output1, highest, total, keys, values,
            (plain + column).to(tl.int64) * (HEADS * HEAD_DIM), known, known[None, :], scale, HEAD_DIM, FIRST, SECOND,
            True)
    factor = (1.0 / total)[:, None]
    tiles.store_rows(output, output0 * factor, rows, there, HEAD_DIM, 0, FIRST)
    if SECOND > 0:
        tiles.store_rows(output, output1 * factor, rows, there, HEAD_DIM, FIRST, SECOND)


def power_of_two(number):
    return 1 << max(int(number) - 1, 0).bit_length()


def candidates(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale):
    """rows of a tile of queries, tokens of a tile of keys (safe_tile of them), warps, stages of the pipeline."""
    found = []
    for rows, tile, warps, stages in ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2),
                                      (128, 32, 8, 3), (64, 32, 4, 3), (32, 64, 4, 3)):
        rows = max(16, min(rows, power_of_two(max_seqlen)))
        if query.shape[2] > 128:  # of both parts of the output and two stages of keys: as much as fits
            tile, stages = min(tile, 64), 2
        if query.shape[2] > 256:
            rows, tile = min(rows, 32), 32
        config = {"rows": rows, "tile": tile, "warps": min(warps, max(4, rows // 16)), "stages": stages}
        if config not in found:
            found.append(config)
    return found


def run_with(config, query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    num_tokens, heads, head_dim = query.shape
    num_seqs = len(cu_seqlens_q) - 1
    if num_tokens == 0:
        return
    first, second = tiles.parts_of(head_dim)
    derby_attention_forward[(num_tokens // config["rows"] + num_seqs, heads)](
        query, key, value, cu_seqlens_q, cu_seqlens_k, output, float(sm_scale) * LOG2_E, num_seqs, HEADS=heads,
        HEAD_DIM=head_dim, FIRST=first, SECOND=second, ROWS=config["rows"],
        TILE=tiles.safe_tile(config["rows"], config["tile"]),
        num_warps=config["warps"], num_stages=config["stages"])
