"""derby_linear_sigmoid_mul_sm90: one CUDA C++ kernel for Hopper (dense_gemm.cuh says how it works), its tiles chosen by
a cost model (dense_choice.py)."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
dense_choice = importlib.import_module(f"{__name__}.dense_choice")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
contract = importlib.import_module(f"{__name__}.contract")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_linear_sigmoid_mul_sm90", "kernel.cu", [POINTER] * 5 + [INT] * 7)

check = contract.Contract("derby_linear_sigmoid_mul_sm90", aligned=16,
                          hidden_states="bfloat16 num_tokens hidden_size", weight="bfloat16 out_features hidden_size",
                          bias="bfloat16 out_features", multiplier="bfloat16 num_tokens out_features",
                          output="bfloat16 num_tokens out_features")


def candidates(hidden_states, weight, bias, multiplier):
    """Those worth trying, the model's choice first."""
    return dense_choice.configs(hidden_states, weight, multiplier.element_size())


def run_with(config, *arguments):
    dense_choice.run_with(library, config, *arguments)


def run(hidden_states, weight, bias, multiplier, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [out_features, hidden_size], bias bf16 [out_features]
    -> output, as multiplier: bf16 [num_tokens, out_features]. Addresses that 16 divides."""
    check(hidden_states, weight, bias, multiplier, output)
    inputs = hidden_states, weight, bias, multiplier
    run_with(candidates(*inputs)[0], *inputs, output)
