"""derby_moe_topk_gating_softmax: a Triton kernel for few tokens, a CUDA C++ kernel (kernel.cu) for many.

In Triton a warp sees whole rows, so nothing goes through shared memory. Logits become integers of the same order. Each
of TOP_K rounds finds the largest, then the lowest index that has it: two reductions of 32-bit integers, each of which
is one instruction of a whole warp (redux). The largest of the first round is also the softmax's maximum, so the row is
read only once. With many tokens the instructions of these rounds take most of the time; kernel.cu has about half of
them.
"""

import importlib
import os

import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
choice = importlib.import_module(f"{__name__}.choice")
contract = importlib.import_module(f"{__name__}.contract")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_moe_topk_gating_softmax", "kernel.cu", [POINTER] * 3 + [INT] * 4)
MANY_LOGITS = 1 << 19  # from here on the CUDA kernel


@triton.jit
def flipped(bits):
    """The bits of a float32 as an integer of the same order, or back: it is its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def derby_moe_topk_gating_softmax(logits, weights, ids, tokens, experts, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
                                  ROWS: tl.constexpr):
    """EXPERTS: experts rounded up to a power of two."""
    LOWEST: tl.constexpr = -2147483648
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)[None, :]
    there = (row < tokens)[:, None] & (expert < experts)
    values = tl.load(logits + row[:, None].to(tl.int64) * experts + expert, mask=there, other=float("-inf"))
    # + 0.0 makes -0 a 0: equal logits must have equal keys.
    keys = tl.where(expert < experts, flipped((values + 0.0).to(tl.int32, bitcast=True)), LOWEST)
    slot = tl.arange(0, TOP_K)[None, :]
    best_keys = tl.zeros([ROWS, TOP_K], tl.int32)
    best_ids = tl.zeros([ROWS, TOP_K], tl.int32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.zeros([ROWS], tl.float32)
    for k in tl.static_range(TOP_K):
        largest = tl.max(keys, axis=1)
        chosen = tl.min(tl.where(keys == largest[:, None], expert, EXPERTS), axis=1)
        keys = tl.where(expert == chosen[:, None], LOWEST, keys)
        best_keys = tl.where(slot == k, largest[:, None], best_keys)
        best_ids = tl.where(slot == k, chosen[:, None], best_ids)
        if k == 0:
            top = flipped(largest).to(tl.float32, bitcast=True)
            total = tl.sum(tl.exp(values - top[:, None]), axis=1)
    best = tl.exp(flipped(best_keys).to(tl.float32, bitcast=True) - top[:, None]) / total[:, None]
    place = row[:, None].to(tl.int64) * TOP_K + slot
    tl.store(weights + place, best, mask=(row < tokens)[:, None])
    tl.store(ids + place, best_ids, mask=(row < tokens)[:, None])


def tuning_key(gating_logits):
    tokens, experts = gating_logits.shape
    return f"experts={experts} tokens<={triton.next_power_of_2(max(tokens, 1))}"


def candidates(gating_logits):
    tokens, experts = gating_logits.shape
    if experts > 128:  # Triton would spread such a row over several warps
        pairs = [(2, 1), (1, 1), (4, 1)]
    elif tokens <= 512:
        pairs = [(1, 1), (2, 2), (2, 1), (4, 4)]
    else:
        pairs = [(4, 4), (2, 1), (2, 2), (4, 2), (8, 8)]
    triton_ones = [{"rows": rows, "warps": warps} for rows, warps in pairs]
    if gating_logits.device.type == "cpu" or not 8 <= experts <= 1024:
        return triton_ones
    cuda_ones = [{"threads": threads} for threads in (128, 256, 64)]
    return cuda_ones + triton_ones if tokens * experts >= MANY_LOGITS else triton_ones + cuda_ones


choose = choice.Choice(tuned.FOUND, tuning_key, candidates)


def run_with(config, gating_logits, topk_weights, topk_ids):
    tokens, experts = gating_logits.shape
    if tokens == 0:
        return
    if "threads" in config:
        width = 4 if experts % 4 == 0 and gating_logits.data_ptr() % 16 == 0 else 1
        library(gating_logits.device, gating_logits, topk_weights, topk_ids, tokens, experts, width, config["threads"])
        return
    derby_moe_topk_gating_softmax[(triton.cdiv(tokens, config["rows"]),)](
        gating_logits, topk_weights, topk_ids, tokens, experts, EXPERTS=triton.next_power_of_2(experts),
        TOP_K=topk_ids.shape[1], ROWS=config["rows"], num_warps=config["warps"])


check = contract.Contract("derby_moe_topk_gating_softmax", on_current=True, where=("num_experts >= 8",),
    gating_logits="float32 num_tokens num_experts", topk_weights="float32 num_tokens 8",
    topk_ids="int32 num_tokens 8")


def run(gating_logits, topk_weights, topk_ids):
    """gating_logits float32 [num_tokens, num_experts] -> topk_weights float32, topk_ids int32 [num_tokens, top_k];
    top_k is a power of two."""
    check(gating_logits, topk_weights, topk_ids)
    run_with(choose(gating_logits), gating_logits, topk_weights, topk_ids)
