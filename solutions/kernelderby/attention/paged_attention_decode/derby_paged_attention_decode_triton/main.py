"""Decode attention over a paged cache: a program takes up to 16 query heads of a key head, every n-th tile.

split_context.py, which lies beside this file once it is packed, puts the parts of a context together.
"""

import importlib
import os

import torch
import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
split_context = importlib.import_module(f"{__name__}.split_context")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")

ROWS = 16  # query heads of a program, what a product of the tensor cores takes at the least


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


def tuning_key(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    return f"units<={split_context.power(sizes(query, key_cache)[2])} dim={query.shape[2]} " \
           f"longest<={split_context.power(max_context_len)}"


def candidates(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    """tokens: of a tile; splits: programs that share a context; warps: of a program."""
    units, programs = sizes(query, key_cache)[2], split_context.multiprocessors(query)
    found = []
    for tokens, warps in ((64, 4), (32, 4), (128, 4), (16, 2), (64, 8)):
        choices = split_context.split_choices(units, -(-max_context_len // tokens), programs)
        found += [{"tokens": tokens, "splits": splits, "warps": warps} for splits in choices[:3]]
    return found


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


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


check = contract.Contract("derby_paged_attention_decode_triton",
    query="bfloat16 num_seqs num_query_heads head_dim", key_cache="bfloat16 num_blocks 16 num_kv_heads head_dim",
    value_cache="bfloat16 num_blocks 16 num_kv_heads head_dim", block_table="int32 num_seqs max_blocks_per_seq",
    context_lens="int32 num_seqs", output="bfloat16 num_seqs num_query_heads head_dim")


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim], block_table int32
    [num_seqs, columns], context_lens int32 [num_seqs] -> output, as query."""
    check(query, key_cache, value_cache, block_table, context_lens, output)
    if not query.numel():
        return
    inputs = query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
