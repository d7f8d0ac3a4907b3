"""derby_chunk_delta_rule_output_sm90: one CUDA C++ kernel for Hopper (kernel.cu)."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_chunk_delta_rule_output", "kernel.cu", [POINTER] * 6 + [INT] * 3)


check = contract.Contract("derby_chunk_delta_rule_output_sm90", aligned=16,
    where=("num_chunks == -(-num_tokens // 64)", "num_v_heads a multiple of num_q_heads"),
    q="bfloat16 num_tokens num_q_heads 128", k="bfloat16 num_tokens num_q_heads 128",
    v="bfloat16 num_tokens num_v_heads 128", h="bfloat16 num_chunks num_v_heads 128 128",
    g="float32 num_tokens num_v_heads", output="bfloat16 num_tokens num_v_heads 128")


def run(q, k, v, h, g, output):
    """q, k bf16 [num_tokens, num_q_heads, 128], v bf16 [num_tokens, num_v_heads, 128], h bf16 [num_chunks, num_v_heads,
    128, 128], g float32 [num_tokens, num_v_heads] -> output, as v. All at addresses that 16 divides."""
    check(q, k, v, h, g, output)
    if len(v):
        library(q.device, q, k, v, h, g, output, len(v), q.shape[1], v.shape[1])
