"""derby_gemm_bf16_sm90: one CUDA C++ kernel for Hopper (dense_gemm.cuh says how it works), its tiles chosen by a cost
model (dense_choice.py)."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
dense_choice = importlib.import_module(f"{__name__}.dense_choice")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
contract = importlib.import_module(f"{__name__}.contract")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_gemm_bf16_sm90", "kernel.cu", [POINTER] * 4 + [INT] * 7)

check = contract.Contract("derby_gemm_bf16_sm90", aligned=16, where=("bias_rows <= 1",), x="bfloat16 m k",
                          weight="bfloat16 n k", bias="bfloat16 bias_rows n", output="bfloat16 m n")


def candidates(x, weight, bias):
    """Those worth trying, the model's choice first."""
    return dense_choice.configs(x, weight)


def run_with(config, *arguments):
    dense_choice.run_with(library, config, *arguments)


def run(x, weight, bias, output):
    """x bf16 [m, k], weight bf16 [n, k], bias bf16 [0 or 1, n] -> output bf16 [m, n]. Contiguous, at addresses that 16
    divides."""
    check(x, weight, bias, output)
    run_with(candidates(x, weight, bias)[0], x, weight, bias, output)
