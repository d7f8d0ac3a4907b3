"""derby_paged_attention_decode_sm90: one CUDA C++ kernel (kernel.cu), one launch."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_paged_attention_decode_sm90", "kernel.cu",
                                   [POINTER] * 6 + [INT] * 6 + [FLOAT] + [INT] * 3)
# Of kernel.cu; bytes of an address and of 8 values; multiprocessors of an H200.
PAGE, MOST_DIM, MOST_SPLITS, MOST_WARPS, VECTOR, SMS = 16, 256, 16, 8, 16, 132
PAGE_DIMS = 64, 128, 256  # of heads, in one_page.cuh


def sizes(query, key_cache, max_context_len):
    """(blocks without splits, pages of the longest context), both at least 1."""
    kv_heads = key_cache.shape[2]
    group = query.shape[1] // kv_heads
    heads = 16 if group > 8 and query.shape[2] <= 128 else 8  # of a block, as in kernel.cu
    return max(query.shape[0] * kv_heads * -(-group // heads), 1), max(-(-max_context_len // PAGE), 1)


def power(number):
    """The least power of two from `number` on, and 1."""
    return 1 << max(number - 1, 0).bit_length()


def tuning_key(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    units, pages = sizes(query, key_cache, max_context_len)
    return f"units<={power(units)} pages<={power(pages)} group={query.shape[1] // key_cache.shape[2]} " \
           f"dim={query.shape[2]}"


def candidates(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    """splits: blocks that share a context; warps: of a block, each at a page at a time; sliced: whether each block
    reads all keys and a slice of the values, or some pages, in a cluster.

    First what the H200 showed: a warp for each page where the GPU holds them all at once, over as many multiprocessors
    as there are, sliced where these are too few for 8 to a context and groups are large or keys small; a warp for each
    context where contexts are short and fill the GPU twice; else blocks of 4 warps, three to a multiprocessor, or of 8,
    one to each.
    """
    units, pages = sizes(query, key_cache, max_context_len)
    group, head_dim = query.shape[1] // key_cache.shape[2], query.shape[2]
    sliced = 0
    page_each = 2 < pages <= 8 and group <= 8 and head_dim in PAGE_DIMS
    if page_each and (units < 16 * SMS if pages <= 4 else units * pages <= SMS * MOST_WARPS):
        parts = power(pages)
        splits = min(parts, 1 << max((SMS // units).bit_length() - 1, 0))
        sliced = int(parts == 8 and 1 < splits < 8 and (group > 4 or head_dim == 64))
        best = (min(splits, head_dim // 32), 8) if sliced else (splits, parts // splits)
    elif pages <= MOST_SPLITS * MOST_WARPS and units * pages <= SMS * MOST_WARPS:
        pages_each = 1 if query.shape[2] > 128 else 2
        splits = min(max(power(pages) // pages_each, 1), MOST_SPLITS, power(SMS // units // 2 + 1))
        while splits * MOST_WARPS < pages:
            splits *= 2
        best = splits, -(-pages // splits)
    elif pages <= 8 and units >= 16 * SMS:
        best = 1, 1
    else:
        splits = min(power(-(-3 * SMS // units)), MOST_SPLITS, max(power(pages) // 8, 1))
        best = splits, min(pages, 4 if splits * units > SMS else MOST_WARPS)
    pairs = [(splits, warps) for splits in (1, 2, 4, 8, 16) for warps in (1, 2, 4, 8)
             if splits * warps < 2 * pages and (splits == 1 or splits * units <= 8 * SMS)]
    found = [(*best, sliced)] + [(*pair, 0) for pair in pairs]
    if page_each:
        found += [(splits, 8, 1) for splits in (2, 4) if 32 * splits <= head_dim]
    return [{"splits": splits, "warps": warps, "sliced": sliced} for splits, warps, sliced in dict.fromkeys(found)]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def padded(tensor):
    """Heads of a multiple of 8 values, at an address that is a multiple of 16: the tensor itself where it is so."""
    if tensor.shape[-1] % 8 == 0 and tensor.data_ptr() % VECTOR == 0:
        return tensor
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % 8)).clone()


def run_with(config, query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    if not query.numel():
        return
    if query.shape[2] > MOST_DIM:
        kernels = importlib.import_module(f"{__name__}.paged_decode_triton")
        inputs = query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale
        with torch.cuda.device_of(output):
            kernels.run_with(kernels.candidates(*inputs)[0], *inputs, output)
        return
    if query.shape[2] % 8 or any(one.data_ptr() % VECTOR for one in (query, key_cache, value_cache, output)):
        wide = torch.empty_like(padded(query))
        run_with(config, padded(query), padded(key_cache), padded(value_cache), block_table, context_lens,
                 max_context_len, sm_scale, wide)
        output.detach().copy_(wide[..., :output.shape[-1]])
        return
    (sequences, heads, head_dim), kv_heads = query.shape, key_cache.shape[2]
    library(query.device, query, key_cache, value_cache, block_table, context_lens, output, sequences, heads, kv_heads,
            head_dim, block_table.shape[1], -(-max_context_len // PAGE), sm_scale, config["splits"].bit_length() - 1,
            config["warps"], config["sliced"])


check = contract.Contract("derby_paged_attention_decode_sm90",
    where=("num_query_heads a multiple of num_kv_heads",),
    query="bfloat16 num_seqs num_query_heads head_dim", key_cache="bfloat16 num_blocks 16 num_kv_heads head_dim",
    value_cache="bfloat16 num_blocks 16 num_kv_heads head_dim", block_table="int32 num_seqs max_blocks_per_seq",
    context_lens="int32 num_seqs", output="bfloat16 num_seqs num_query_heads head_dim")


def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim], block_table int32
    [num_seqs, columns], context_lens int32 [num_seqs] -> output, as query."""
    check(query, key_cache, value_cache, block_table, context_lens, output)
    if not query.numel():
        return
    inputs = query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
