"""derby_moe_align_block_size: one CUDA C++ kernel, a cluster of up to 16 blocks (kernel.cu, expert_sort.cuh)."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_moe_align_block_size", "kernel.cu", [POINTER] * 4 + [INT] * 4)


def tuning_key(topk_ids, block_slots):
    return f"tokens<={1 << max(topk_ids.shape[0] - 1, 0).bit_length()}"


def candidates(topk_ids, block_slots):
    """A thread of the first takes four pairs; the others share the work among fewer blocks or smaller ones."""
    work = max(topk_ids.numel() // 4, block_slots.shape[0] * 8)  # a warp fills a block of slots in four stores a lane
    ladder = [(256, 1), (256, 2), (256, 4), (256, 8), (512, 8), (512, 16), (1024, 16)]
    fit = next((i for i, (threads, blocks) in enumerate(ladder) if threads * blocks >= work), len(ladder) - 1)
    more = [(512, 1), (1024, 1), (1024, 2), (1024, 4), (512, 4), (1024, 8), (256, 16)]
    order = [ladder[fit], *reversed(ladder[:fit]), *ladder[fit + 1:], *more]
    near = [(t, b) for t, b in order if work // 4 <= t * b <= 8 * max(work, 128)]
    return [{"threads": threads, "blocks": blocks} for threads, blocks in near or order[:1]]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, topk_ids, block_slots, sorted_token_ids, expert_ids, num_tokens_post_padded):
    library(topk_ids.device, topk_ids, sorted_token_ids, expert_ids, num_tokens_post_padded, topk_ids.numel(),
            block_slots.shape[0], config["threads"], config["blocks"])


check = contract.Contract("derby_moe_align_block_size", aligned=16,
    topk_ids="int32 num_tokens 8", block_slots="int32 num_blocks", sorted_token_ids="int32 num_blocks 128",
    expert_ids="int32 num_blocks", num_tokens_post_padded="int32 1")


def run(topk_ids, block_slots, sorted_token_ids, expert_ids, num_tokens_post_padded):
    """topk_ids int32 [num_tokens, 8] of 128 experts, block_slots [num_blocks] -> sorted_token_ids int32 [num_blocks,
    128], expert_ids int32 [num_blocks], num_tokens_post_padded int32 [1]. Within an expert in any order."""
    check(topk_ids, block_slots, sorted_token_ids, expert_ids, num_tokens_post_padded)
    run_with(choose(topk_ids, block_slots), topk_ids, block_slots, sorted_token_ids, expert_ids,
             num_tokens_post_padded)
