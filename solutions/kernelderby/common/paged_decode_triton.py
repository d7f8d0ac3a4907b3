"""Decode attention over a paged cache in Triton, of any head size: a program takes up to 16 query heads of a key head,
every n-th tile; split_context.py puts the parts of a context together.
"""

import triton
import triton.language as tl

from . import split_context

ROWS = 16  # query heads of a program, the least that a product of the tensor cores takes


@triton.jit
def derby_paged_attention_decode(query, key_cache, value_cache, block_table, context_lens, output, parts, counters,
                                 kv_heads, group, chunks, table_width, scale, HEAD_DIM: tl.constexpr,
                                 COLUMNS: tl.constexpr, PAGE: tl.constexpr, TOKENS: tl.constexpr,
                                 SPLITS: tl.constexpr, ROWS: tl.constexpr):
    unit, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    head, sequence = unit // chunks % kv_heads, tl.cast(unit // chunks // kv_heads, tl.int64)
    length = tl.load(context_lens + sequence)
    rows, columns = unit % chunks * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = columns < HEAD_DIM
    mask = (rows < group)[:, None] & inside[None, :]
    place = ((sequence * kv_heads + head) * group + rows)[:, None] * HEAD_DIM + columns[None, :]
    queries = tl.load(query + place, mask=mask, other=0)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(split, tl.cdiv(length, TOKENS), SPLITS):
        token = tile * TOKENS + tl.arange(0, TOKENS)
        valid = token < length
        block = tl.load(block_table + sequence * table_width + token // PAGE, mask=valid, other=0)
        slot = (tl.cast(block, tl.int64) * PAGE + token % PAGE) * kv_heads + head
        cached = slot[:, None] * HEAD_DIM + columns[None, :]
        keys = tl.load(key_cache + cached, mask=valid[:, None] & inside[None, :], other=0)
        values = tl.load(value_cache + cached, mask=valid[:, None] & inside[None, :], other=0)
        scores = split_context.product(queries, tl.trans(keys), tl.zeros([ROWS, TOKENS], tl.float32))
        scores = tl.where(valid[None, :], scores * scale, float("-inf"))
        sums, most, total = split_context.weigh(scores, values, sums, most, total)
    split_context.finish(sums, most, total, output + place, mask, parts, counters, unit, split, SPLITS, ROWS, COLUMNS)


def sizes(query, key_cache):
    """(query heads of a key head, programs of a sequence's key head, programs without splits)."""
    kv_heads = key_cache.shape[2]
    group = query.shape[1] // kv_heads
    chunks = -(-group // ROWS)
    return group, chunks, query.shape[0] * kv_heads * chunks


def candidates(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    """tokens: of a tile; splits: programs that share a context; warps: of a program."""
    units, programs = sizes(query, key_cache)[2], split_context.multiprocessors(query)
    found = []
    sizes_of_tiles = ((64, 4), (32, 4), (128, 4), (16, 2), (64, 8)) if query.shape[2] <= 256 else ((16, 4), (32, 8))
    for tokens, warps in sizes_of_tiles:
        choices = split_context.split_choices(units, -(-max_context_len // tokens), programs)
        found += [{"tokens": tokens, "splits": splits, "warps": warps} for splits in choices[:3]]
    return found


def run_with(config, query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    if not query.numel():
        return
    (group, chunks, units), splits, head_dim = sizes(query, key_cache), config["splits"], query.shape[2]
    columns = max(split_context.power(head_dim), 16)
    parts, counters = split_context.workspace(query, units, splits, ROWS, columns)
    derby_paged_attention_decode[units * splits,](
        query, key_cache, value_cache, block_table, context_lens, output, parts, counters, key_cache.shape[2], group,
        chunks, block_table.shape[1], sm_scale * split_context.LOG2E, HEAD_DIM=head_dim, COLUMNS=columns,
        PAGE=key_cache.shape[1], TOKENS=config["tokens"], SPLITS=splits, ROWS=ROWS, num_warps=config["warps"])
