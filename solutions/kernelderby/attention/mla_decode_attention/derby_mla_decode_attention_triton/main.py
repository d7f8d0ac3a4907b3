"""Latent attention, decode: a program takes up to 16 query heads of one sequence and every n-th tile of tokens.

split_context.py, which lies beside this file once it is packed, puts the parts of a context together.
"""

import importlib
import os

import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
split_context = importlib.import_module(f"{__name__}.split_context")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")

ROWS, LATENT, ROTARY = 16, 512, 64  # query heads of a program; parts of a key


@triton.jit
def derby_mla_decode_attention(query, kv_cache, context_lens, output, parts, counters, heads, chunks, slots, scale,
                               TOKENS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, LATENT: tl.constexpr,
                               ROTARY: tl.constexpr):
    unit, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    sequence = tl.cast(unit // chunks, tl.int64)
    length = tl.load(context_lens + sequence)
    rows, columns, rotary = unit % chunks * ROWS + tl.arange(0, ROWS), tl.arange(0, LATENT), tl.arange(0, ROTARY)
    mask = (rows < heads)[:, None]
    from_query = (query + (sequence * heads + rows) * (LATENT + ROTARY))[:, None]
    latent_query = tl.load(from_query + columns[None, :], mask=mask, other=0)
    rotary_query = tl.load(from_query + LATENT + rotary[None, :], mask=mask, other=0)
    sums = tl.zeros([ROWS, LATENT], tl.float32)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(split, tl.cdiv(length, TOKENS), SPLITS):
        token = tile * TOKENS + tl.arange(0, TOKENS)
        valid = token < length
        slot = (kv_cache + (sequence * slots + token) * (LATENT + ROTARY))[:, None]
        latent = tl.load(slot + columns[None, :], mask=valid[:, None], other=0)
        rotary_key = tl.load(slot + LATENT + rotary[None, :], mask=valid[:, None], other=0)
        scores = tl.zeros([ROWS, TOKENS], tl.float32)
        scores = split_context.product(rotary_query, tl.trans(rotary_key), scores)
        scores = split_context.product(latent_query, tl.trans(latent), scores)
        scores = tl.where(valid[None, :], scores * scale, float("-inf"))
        sums, most, total = split_context.weigh(scores, latent, sums, most, total)
    places = (output + (sequence * heads + rows) * LATENT)[:, None] + columns[None, :]
    split_context.finish(sums, most, total, places, mask, parts, counters, unit, split, SPLITS, ROWS, LATENT)


def tuning_key(query, kv_cache, context_lens, max_context_len, sm_scale):
    power = split_context.power
    return f"batch<={power(query.shape[0])} heads<={power(query.shape[1])} longest<={power(max_context_len)}"


def candidates(query, kv_cache, context_lens, max_context_len, sm_scale):
    """tokens: of a tile; splits: programs that share a context; warps: of a program."""
    units, programs = query.shape[0] * -(-query.shape[1] // ROWS), split_context.multiprocessors(query)
    found = []
    for tokens, warps in ((32, 4), (16, 4), (64, 8), (32, 8), (16, 8)):
        choices = split_context.split_choices(units, -(-max_context_len // tokens), programs)
        found += [{"tokens": tokens, "splits": splits, "warps": warps} for splits in choices[:3]]
    return found


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, query, kv_cache, context_lens, max_context_len, sm_scale, output):
    batch, heads, _ = query.shape
    if not query.numel():
        return
    chunks, splits = -(-heads // ROWS), config["splits"]
    parts, counters = split_context.workspace(query, batch * chunks, splits, ROWS, LATENT)
    derby_mla_decode_attention[batch * chunks * splits,](
        query, kv_cache, context_lens, output, parts, counters, heads, chunks, kv_cache.shape[1],
        sm_scale * split_context.LOG2E, TOKENS=config["tokens"], SPLITS=splits, ROWS=ROWS, LATENT=LATENT,
        ROTARY=ROTARY, num_warps=config["warps"], num_stages=2)


check = contract.Contract("derby_mla_decode_attention_triton", on_current=True,
                          query="bfloat16 batch_size num_heads 576", kv_cache="bfloat16 batch_size cache_len 576",
                          context_lens="int32 batch_size", output="bfloat16 batch_size num_heads 512")


def run(query, kv_cache, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [batch, slots, 576], context_lens int32 [batch] -> output bf16
    [batch, heads, 512]."""
    check(query, kv_cache, context_lens, output)
    if not query.numel():
        return
    inputs = query, kv_cache, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
