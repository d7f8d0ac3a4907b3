"""derby_chunk_gated_delta_rule_state_sm90: CUDA C++ for Hopper (kernel.cu): one kernel, or two."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
segments = importlib.import_module(f"{__name__}.delta_rule_segments")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_chunk_gated_delta_rule_state", "kernel.cu",
                                   [POINTER] * 10 + [INT] * 4)


check = contract.Contract("derby_chunk_gated_delta_rule_state_sm90", aligned=16,
    where=("num_chunks == -(-num_tokens // 64)", "num_v_heads a multiple of num_k_heads"),
    k="bfloat16 num_tokens num_k_heads 128", w="bfloat16 num_tokens num_v_heads 128",
    u="bfloat16 num_tokens num_v_heads 128", g="float32 num_tokens num_v_heads",
    initial_state="float32 state_count num_v_heads 128 128", initial_state_indices="int32 1",
    chunk_starts="int32 num_chunks", h="bfloat16 num_chunks num_v_heads 128 128",
    v_new="bfloat16 num_tokens num_v_heads 128", final_state="float32 1 num_v_heads 128 128")


def run(k, w, u, g, initial_state, initial_state_indices, chunk_starts, h, v_new, final_state):
    """k bf16 [num_tokens, num_k_heads, 128], w and u bf16 [num_tokens, num_v_heads, 128], g float32 [num_tokens,
    num_v_heads], initial_state float32 [state_count, num_v_heads, 128, 128] -> h bf16 [num_chunks, num_v_heads, 128,
    128], v_new as u, final_state float32 [1, num_v_heads, 128, 128]. All at addresses that 16 divides."""
    check(k, w, u, g, initial_state, initial_state_indices, chunk_starts, h, v_new, final_state)
    chunks, heads, scratch = len(h), u.shape[1], None
    length = segments.chunks_of_segment(chunks, 1, heads, 4, segments.processors_of(k.device)) if chunks else 1
    if length < chunks:
        parts = -(-chunks // length) - 1
        scratch = torch.empty(parts * heads * segments.STATE_BYTES, dtype=torch.uint8, device=k.device)
    library(k.device, k, w, u, g, initial_state, initial_state_indices, h, v_new, final_state, scratch, len(u),
            k.shape[1], heads, length)
