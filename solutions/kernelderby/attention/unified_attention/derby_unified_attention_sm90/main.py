"""derby_unified_attention_sm90: causal attention over a paged cache for Hopper, in one CUDA C++ kernel and one call.

long_attention.cuh says how the kernel works: TMA boxes of one 16-token page each, two or three warpgroups of 64 query
rows that take turns on the tensor cores, weights kept in registers. Query heads of a group share tiles. Where no
sequence has more than 256 tokens (head_dim 64 and 128; 128 tokens with head_dim 256), short_attention.cuh reads keys
and values once into shared memory instead; where sequences have few query tokens each and long contexts,
decode_attention.cuh gives every multiprocessor an equal stretch of the pages; where a batch may be ragged, or tiles are
few, attention_shares.cuh gives every multiprocessor an equal share of the keys of long_attention.cuh's tiles. One query
token a sequence is paged decode (paged_decode.py) in one of its forms. Which kernel a call gets, and how the work is
cut, is chosen from sizes that the host knows (attention_planning.py, attention_sharing.py); nothing waits for the GPU.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever. Kept between calls: the library, and
a workspace for each stream whose counters every call leaves at zero. Deterministic: chunks of a tile are added in their
order.
"""

import importlib
import os
from collections import namedtuple

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
paged_decode = importlib.import_module(f"{__name__}.paged_decode")
planning = importlib.import_module(f"{__name__}.attention_planning")
sharing = importlib.import_module(f"{__name__}.attention_sharing")
tuning = importlib.import_module(f"{__name__}.tuning")

POINTER, INT, LONG, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.LONG, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_unified_attention_sm90", "kernel.cu",
                                   [POINTER] * 9 + [LONG] * 2 + [INT] * 5 + [FLOAT] + [INT] * 10)
short_library = cuda_library.CudaLibrary(__file__, "derby_short_attention", "short.cu",
                                         [POINTER] * 7 + [INT] * 8 + [FLOAT, INT])
decode_library = cuda_library.CudaLibrary(__file__, "derby_decode_attention", "decode.cu",
                                          [POINTER] * 9 + [INT] * 6 + [FLOAT, INT, INT])
clusters_library, stretches_library = paged_decode.library, paged_decode.long_library  # named here to be built ahead
other_library, wide_library = paged_decode.other_library, paged_decode.wide_library
shares_library = paged_decode.shares_library
MOST_SHORT = {64: 256, 128: 256, 256: 128}  # head_dim: tokens of a sequence, as in short_units.cuh
FEW_ROWS = 16  # query tokens times heads of a group, as in decode.cu, which has head_dim 128 only, and decode_wide.cu
# head_dim of decode_wide.cu's kernels -> the least that they take, key heads of a multiprocessor.
WIDE = {64: (64, 8), 96: (72, 8), 128: (104, 8), 192: (136, 4), 256: (200, 4)}
# Where the kernel for few rows is faster than equal shares, seen on an H200: keys of all key heads of several
# sequences, each counted as one of 128 values; keys of the longest sequence; head_dim.
MANY_KEYS, LEAST_LENGTH, MOST_SPREAD = 1 << 20, 4096, 128
SHORT_BATCH = 1 << 18  # keys of all heads of a single sequence that is read a head at a time
MOST_HEAD_DIM = 256

workspace = planning.Workspace()
Needed = namedtuple("Needed", "counters floats")  # of the workspace


def in_triton(*inputs, output):
    """Head sizes and scales that the CUDA kernels are not made for."""
    kernels = importlib.import_module(f"{__name__}.paged_attention_triton")
    with torch.cuda.device_of(output):
        kernels.run_with(kernels.candidates(*inputs)[0], *inputs, output)


def few_rows_size(head_dim):
    """Of WIDE, the size of the kernel for such heads, or None."""
    return next((size for size, (least, _) in WIDE.items() if least <= head_dim <= size), None)


def spreads_pages(sequences, longest, kv_heads, head_dim):
    """Whether few query rows are better off with the kernel that gives every multiprocessor an equal stretch of pages.
    It starts later than the others, so there must be very much to read."""
    keys = sequences * kv_heads * longest * head_dim // 128
    return sequences > 1 and head_dim <= MOST_SPREAD and longest >= LEAST_LENGTH and keys >= MANY_KEYS


def key_heads_together(sequences, longest, kv_heads, processors, warps=8):
    """Neighbouring key heads that a multiprocessor reads: few, so that a sequence has few and small parts to be added,
    but not so few that it goes through many pieces. One at a time where a single sequence is short: longer runs of
    memory matter less than its parts there."""
    if sequences == 1 and kv_heads * longest <= SHORT_BATCH:
        return 1
    counts = [heads for heads in (2, 4, 8) if kv_heads % heads == 0 and heads <= warps] or [1]
    return next((heads for heads in counts if sequences * kv_heads <= heads * processors), counts[-1])


def is_decode(tokens, sequences, max_query_len, rows):
    """Whether each sequence has one query token, and no key head more query heads than paged decode is fast with."""
    return max_query_len == 1 and tokens == sequences and rows <= FEW_ROWS


def pages_used(blocks, sequences, longest):
    """Of the cache's blocks, as many as the sequences can have."""
    return min(blocks, sequences * -(-longest // 16))


choose = tuning.Chooser({}, paged_decode.tuning_key, paged_decode.candidates)
check = contract.Contract("derby_unified_attention_sm90", aligned=16,
    where=("len_cu_seqlens == num_seqs + 1", "num_query_heads a multiple of num_kv_heads"),
    query="bfloat16 num_tokens num_query_heads head_dim", key_cache="bfloat16 num_blocks 16 num_kv_heads head_dim",
    value_cache="bfloat16 num_blocks 16 num_kv_heads head_dim", cu_seqlens_q="int32 len_cu_seqlens",
    seq_lens="int32 num_seqs", block_table="int32 num_seqs max_blocks_per_seq",
    output="bfloat16 num_tokens num_query_heads head_dim")


def run(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale,
        output):
    """Shapes as in the definition, all contiguous and at addresses that 16 divides; the last three inputs are
    numbers."""
    check(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output)
    tokens, heads, head_dim = query.shape
    if tokens == 0:
        return
    blocks, _, kv_heads, _ = key_cache.shape
    if head_dim % 8 or head_dim > MOST_HEAD_DIM or not sm_scale > 0:
        in_triton(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len,
                  sm_scale, output=output)
        return
    device, sequences = query.device, block_table.shape[0]
    processors = planning.processors(device)
    rows, longest = int(max_query_len) * (heads // kv_heads), int(max_seq_len)
    sizes = (tokens, sequences, int(max_query_len), longest, heads, kv_heads, head_dim, True, processors)
    pages = pages_used(blocks, sequences, longest)
    if is_decode(tokens, sequences, int(max_query_len), rows):
        inputs = query, key_cache, value_cache, block_table, seq_lens, longest, float(sm_scale)
        paged_decode.run_with(choose(*inputs), *inputs, output)
        return
    if longest <= MOST_SHORT.get(head_dim, 0):
        short_library(device, query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output, tokens,
                      sequences, blocks, block_table.shape[1], heads, kv_heads, head_dim, int(max_query_len),
                      float(sm_scale), processors)
        return
    size = few_rows_size(head_dim) if rows <= FEW_ROWS else None
    if size and spreads_pages(sequences, longest, kv_heads, head_dim):
        together = key_heads_together(sequences, longest, kv_heads, processors, WIDE[size][1])
        floats = 2 * processors * together * (8 if rows <= 8 else 16) * (size + 4)
        few_rows = decode_library if head_dim == 128 else wide_library
        few_rows(device, query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output,
                 *workspace(device, Needed(3 * processors, floats)), sequences, block_table.shape[1], heads, kv_heads,
                 head_dim, int(max_query_len), float(sm_scale), together, processors)
        return
    made = sharing.plan(pages, *sizes)
    if made:
        counters, partials = workspace(device, made)
        shares_library(device, query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output, counters,
                       partials, tokens, blocks, sequences, block_table.shape[1], heads, kv_heads, head_dim,
                       float(sm_scale), made.split, made.pack, made.overhead, made.again, made.least, made.trusting,
                       processors)
        return
    made = planning.plan(*sizes)
    counters, partials = workspace(device, made)
    library(device, query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output, counters, partials,
            tokens, blocks, sequences, block_table.shape[1], heads, kv_heads, head_dim, float(sm_scale), made.split,
            made.pack, made.section_heads, *made.cut, made.sorted, made.trusting, processors)
