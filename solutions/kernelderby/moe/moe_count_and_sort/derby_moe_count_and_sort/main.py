"""derby_moe_count_and_sort: one CUDA C++ kernel, a cluster of up to 16 blocks (kernel.cu, expert_sort.cuh)."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_moe_count_and_sort", "kernel.cu", [POINTER] * 4 + [INT] * 3)


def tuning_key(topk_ids):
    return f"tokens<={1 << max(topk_ids.shape[0] - 1, 0).bit_length()}"


def candidates(topk_ids):
    """A thread of the first takes eight pairs; the others share the work among fewer blocks or smaller ones."""
    work = topk_ids.numel() // 8
    ladder = [(128, 1), (256, 1), (256, 8), (512, 8), (512, 16), (1024, 16)]
    fit = next((i for i, (threads, blocks) in enumerate(ladder) if threads * blocks >= work), len(ladder) - 1)
    more = [(256, 4), (256, 16)]
    order = [ladder[fit], *reversed(ladder[:fit]), *ladder[fit + 1:], *more]
    near = [(t, b) for t, b in order if work // 2 <= t * b <= 16 * max(work, 128)]
    return [{"threads": threads, "blocks": blocks} for threads, blocks in near or order[:1]]


choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)


def run_with(config, topk_ids, sorted_pairs, expert_counts, expert_offsets):
    library(topk_ids.device, topk_ids, sorted_pairs, expert_counts, expert_offsets, topk_ids.numel(),
            config["threads"], config["blocks"])


check = contract.Contract("derby_moe_count_and_sort", aligned=16,
    topk_ids="int32 num_tokens 8", sorted_pairs="int32 num_tokens 8", expert_counts="int32 128",
    expert_offsets="int32 129")


def run(topk_ids, sorted_pairs, expert_counts, expert_offsets):
    """topk_ids int32 [num_tokens, 8] of 128 experts -> sorted_pairs, as topk_ids, expert_counts int32 [128],
    expert_offsets int32 [129]. Within an expert in any order."""
    check(topk_ids, sorted_pairs, expert_counts, expert_offsets)
    run_with(choose(topk_ids), topk_ids, sorted_pairs, expert_counts, expert_offsets)
