"""derby_mla_decode_attention_sm90: one CUDA C++ kernel (kernel.cu), one launch."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_mla_decode_attention_sm90",
                                   ["kernel.cu", "one_tile.cuh", "decode_loads.cuh", "decode_mma.cuh",
                                    "once_a_device.cuh"],
                                   [POINTER] * 4 + [INT] * 4 + [FLOAT] + [INT] * 3)
MOST_SPLITS, SMS = 16, 132
SHAPES = [(1, 16), (1, 32), (2, 16), (2, 32), (2, 64), (4, 32), (8, 32)]  # groups of 8 heads, tokens, as in kernel.cu


def power(number):
    """The least power of two from `number` on."""
    return 1 << max(number - 1, 0).bit_length()


def splits_for(units, tiles):
    """Blocks of a cluster: as many as have tiles and still fit the GPU at once."""
    splits = min(power(tiles), MOST_SPLITS)
    while splits > 1 and units * splits > SMS:
        splits //= 2
    return splits


def tuning_key(query, kv_cache, context_lens, max_context_len, sm_scale):
    batch, heads, _ = query.shape
    return f"batch<={power(batch)} heads<={power(heads)} longest<={power(max_context_len)}"


def candidates(query, kv_cache, context_lens, max_context_len, sm_scale):
    """groups: of 8 heads to a block; tokens: of a tile; splits: blocks of a cluster that share a context.

    First what the H200 showed: 8 heads and one tile to a block where all fit the GPU at once; 8 heads where that leaves
    two tiles or less to each; else as many as still give every multiprocessor a block, since they share what is read of
    the cache.
    """
    batch, heads, _ = query.shape
    one_tile = [(1, tokens, power(-(-max_context_len // tokens))) for tokens in (32, 64)]
    one_tile = [choice for choice in one_tile if choice[2] <= 8 and batch * -(-heads // 8) * choice[2] <= SMS]
    few = batch * -(-heads // 8) * -(-max_context_len // 32) <= 2 * SMS
    found = []
    for groups, tokens in SHAPES:
        units, tiles = batch * -(-heads // (8 * groups)), -(-max_context_len // tokens)
        splits = splits_for(units, tiles)
        if groups > 1 and 4 * groups >= heads:
            continue
        idle = not few and units * splits < 3 * SMS // 4
        rank = (idle, tokens != 32, groups if few or idle else -groups)
        found += [(rank, groups, tokens, splits)]
        found += [((2, other), groups, tokens, other) for other in (splits // 2, splits * 2)
                  if 1 <= other <= min(MOST_SPLITS, power(tiles))]
    found = dict.fromkeys([*one_tile, *(choice[1:] for choice in sorted(found))])
    return [{"groups": groups, "tokens": tokens, "splits": splits} for groups, tokens, splits in found]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def aligned(tensor):
    """The tensor where its address is a multiple of 16, else a copy."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def run_with(config, query, kv_cache, context_lens, max_context_len, sm_scale, output):
    batch, heads, _ = query.shape
    if not query.numel():
        return
    library(query.device, aligned(query), aligned(kv_cache), context_lens, output, batch, heads, kv_cache.shape[1],
            max_context_len, sm_scale, config["splits"], config["groups"], config["tokens"])


@torch.no_grad()
def run(query, kv_cache, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [batch, slots, 576], context_lens int32 [batch] -> output bf16
    [batch, heads, 512]."""
    if not query.numel():
        return
    inputs = query, kv_cache, context_lens, max_context_len, sm_scale
    run_with(choose(*inputs), *inputs, output)
