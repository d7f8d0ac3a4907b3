"""derby_gated_delta_rule_varlen_sm90: CUDA C++ for Hopper (kernel.cu)."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
segments = importlib.import_module(f"{__name__}.delta_rule_segments")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_gated_delta_rule_varlen", "kernel.cu", [POINTER] * 13 + [INT] * 7)

RECORD_BYTES = 2 * 64 * 64 * 2 + 4 * 64 * 4  # delta_rule_prepare.cuh
RECURRENT = 8  # tokens up to which a sequence runs token by token


check = contract.Contract("derby_gated_delta_rule_varlen_sm90", aligned=16,
    where=("num_v_heads a multiple of num_q_heads", "len_cu_seqlens == num_seqs + 1"),
    A_log="float32 num_v_heads", a="bfloat16 num_tokens num_v_heads", dt_bias="bfloat16 num_v_heads",
    q="bfloat16 num_tokens num_q_heads 128", k="bfloat16 num_tokens num_q_heads 128",
    v="bfloat16 num_tokens num_v_heads 128", b="bfloat16 num_tokens num_v_heads",
    initial_state="float32 state_count num_v_heads 128 128", initial_state_indices="int32 num_seqs",
    cu_seqlens="int32 len_cu_seqlens", output="bfloat16 num_tokens num_v_heads 128",
    final_state="float32 state_count num_v_heads 128 128")


def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, 128]; v bf16 [num_tokens, num_v_heads, 128]; initial_state float32 [state_count, num_v_heads, 128,
    128]. Writes output, as v, and final_state, as initial_state: in place where both are the same memory.

    The host reads nothing back from the GPU: if there are as many tokens as sequences, all take the recurrence,
    whatever their lengths.
    """
    check(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state)
    (tokens, heads), sequences = v.shape[:2], len(initial_state_indices)
    scratch, length = None, segments.UNCUT
    if tokens > max(sequences, RECURRENT):
        chunks, places = -(-tokens // segments.CHUNK), tokens // segments.CHUNK + sequences
        length = segments.chunks_of_segment(chunks, sequences, heads, 2, segments.processors_of(q.device))
        parts = places // length + sequences if length < chunks else 0
        scratch = torch.empty((places * RECORD_BYTES + parts * segments.STATE_BYTES) * heads, dtype=torch.uint8,
                              device=q.device)
    library(q.device, q, k, v, a, b, dt_bias, A_log, initial_state, initial_state_indices, cu_seqlens, output,
            final_state, scratch, tokens, sequences, q.shape[1], heads, len(initial_state), RECURRENT, length)
