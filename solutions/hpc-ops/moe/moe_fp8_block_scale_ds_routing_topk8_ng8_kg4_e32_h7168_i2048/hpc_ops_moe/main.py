"""Tencent's hpc-ops: its fused FP8 block-scale mixture of experts, with a routing kernel of ours before it.

Stages
  route_kernel         sigmoid, groups, top 8, weights of a token; its activation scales from [blocks, tokens] to
                       [tokens, blocks], as the library reads them. Ids count from the first local expert, so that any
                       local_expert_offset works (the library knows multiples of the local experts only); one that is
                       not local is beyond the last.
  hpc::fuse_moe_blockwise
                       counts and gathers the rows of local pairs, GEMM 1, SwiGLU with one scale for each 128 columns,
                       GEMM 2, the weighted sum of a token's rows; written straight into the output.

The library has the gate before the up half of the first weight, the definition behind it: setup() swaps the halves of
weight and scales once. Without what setup() returned (flashinfer-bench) every call copies them: slow and right.
Rows of scales are padded to a multiple of four columns, as it asks for.

Library: github.com/Tencent/hpc-ops (hpc/fuse_moe.py, src/fuse_moe, src/group_gemm), sm_90 only, measured at 6e2eced;
scripts/build_hpc_ops.sh builds the part that this needs. It allocates its buffers in each call.
"""

import functools

import torch
import triton
import triton.language as tl

NUM_GROUPS = 8
TOP_GROUPS = 4
TOP_K = 8


@triton.jit
def route_kernel(logits_ptr, bias_ptr, scale_ptr, experts_ptr, weights_ptr, turned_ptr, num_tokens, first_local,
                 routed_scaling_factor, NUM_LOCAL: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUP: tl.constexpr,
                 TOP_GROUPS: tl.constexpr, TOP_K: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCKS_TILE: tl.constexpr):
    """One program a token. logits float32 [tokens, NUM_GROUPS * GROUP], scale float32 [NUM_BLOCKS, tokens].

    Writes experts int32 and weights float32 [tokens, TOP_K], best first, and turned float32 [tokens, NUM_BLOCKS]. An
    expert that is not local gets NUM_LOCAL. Equal scores go to the lower index, of a group and of an expert alike."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS_TILE)
    scales = tl.load(scale_ptr + block.to(tl.int64) * num_tokens + token, mask=block < NUM_BLOCKS, other=0.0)
    tl.store(turned_ptr + token * NUM_BLOCKS + block, scales, mask=block < NUM_BLOCKS)

    group = tl.arange(0, NUM_GROUPS)
    member = tl.arange(0, GROUP)
    index = group[:, None] * GROUP + member[None, :]
    logits = tl.load(logits_ptr + token * (NUM_GROUPS * GROUP) + index)
    affinity = 1.0 / (1.0 + tl.exp(-logits))
    selection = affinity + tl.load(bias_ptr + index).to(tl.float32)

    best = tl.max(selection, axis=1)
    is_best = member[None, :] == tl.argmax(selection, axis=1)[:, None]
    group_score = best + tl.max(tl.where(is_best, float("-inf"), selection), axis=1)
    allowed = group < 0
    for _ in tl.static_range(TOP_GROUPS):
        pick = tl.argmax(tl.where(allowed, float("-inf"), group_score), axis=0)
        allowed = allowed | (group == pick)

    candidates = tl.reshape(tl.where(allowed[:, None], selection, float("-inf")), [NUM_GROUPS * GROUP])
    affinity = tl.reshape(affinity, [NUM_GROUPS * GROUP])
    expert = tl.arange(0, NUM_GROUPS * GROUP)
    slot = tl.arange(0, TOP_K)
    chosen = tl.zeros([TOP_K], tl.int32)
    weight = tl.zeros([TOP_K], tl.float32)
    for k in tl.static_range(TOP_K):
        pick = tl.argmax(candidates, axis=0)
        chosen = tl.where(slot == k, pick, chosen)
        weight = tl.where(slot == k, tl.sum(tl.where(expert == pick, affinity, 0.0), axis=0), weight)
        candidates = tl.where(expert == pick, float("-inf"), candidates)
    weight = weight / tl.sum(weight, axis=0) * routed_scaling_factor

    local = chosen - first_local
    on_rank = (local >= 0) & (local < NUM_LOCAL)
    tl.store(experts_ptr + token * TOP_K + slot, tl.where(on_rank, local, NUM_LOCAL))
    tl.store(weights_ptr + token * TOP_K + slot, weight)


def gate_first(weights):
    """[experts, 2 * n, ...] with the two halves of its rows swapped, a copy. Bytes are moved, so any type will do."""
    half = weights.shape[1] // 2
    raw = weights.view(torch.uint8)
    return torch.cat([raw[:, half:], raw[:, :half]], dim=1).view(weights.dtype)


def padded(scale):
    """scale [experts, rows, columns] with its columns padded to a multiple of four."""
    return torch.nn.functional.pad(scale, (0, -scale.shape[2] % 4)).contiguous()


def setup(gemm1_weights, gemm1_weights_scale, gemm2_weights_scale, **others):
    """The weights' part that the library has in another order, once."""
    return {"gate_up": gate_first(gemm1_weights), "gate_up_scale": padded(gate_first(gemm1_weights_scale)),
            "down_scale": padded(gemm2_weights_scale)}


@functools.cache
def library():
    """The library's operator. ImportError in one line where it is missing."""
    try:
        import hpc
    except ImportError:
        raise ImportError("hpc_ops_moe needs Tencent's hpc-ops: scripts/build_hpc_ops.sh builds it from a checkout of "
                          "github.com/Tencent/hpc-ops") from None
    return hpc.fuse_moe_blockwise


@functools.lru_cache(maxsize=4)
def buffers(seq_len, num_blocks, device):
    """What route_kernel writes, for one number of tokens."""
    return (torch.empty(seq_len, TOP_K, dtype=torch.int32, device=device),
            torch.empty(seq_len, TOP_K, dtype=torch.float32, device=device),
            torch.empty(seq_len, num_blocks, dtype=torch.float32, device=device))


@torch.no_grad()
def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output, **prepared):
    """See the definition for the inputs, setup() for `prepared`. output bf16 [seq_len, hidden_size] is written."""
    seq_len = hidden_states.shape[0]
    if seq_len == 0:
        return
    if not prepared:
        prepared = setup(gemm1_weights, gemm1_weights_scale, gemm2_weights_scale)
    num_experts, num_local_experts, num_blocks = routing_logits.shape[1], len(gemm2_weights), len(hidden_states_scale)
    experts, weights, turned = buffers(seq_len, num_blocks, hidden_states.device)
    route_kernel[(seq_len,)](
        routing_logits, routing_bias, hidden_states_scale, experts, weights, turned, seq_len, int(local_expert_offset),
        float(routed_scaling_factor), NUM_LOCAL=num_local_experts, NUM_GROUPS=NUM_GROUPS,
        GROUP=num_experts // NUM_GROUPS, TOP_GROUPS=TOP_GROUPS, TOP_K=TOP_K, NUM_BLOCKS=num_blocks,
        BLOCKS_TILE=triton.next_power_of_2(num_blocks), num_warps=1)
    library()(hidden_states, turned, prepared["gate_up"], prepared["gate_up_scale"], gemm2_weights,
              prepared["down_scale"], experts, weights, 0, num_experts, None, output)
