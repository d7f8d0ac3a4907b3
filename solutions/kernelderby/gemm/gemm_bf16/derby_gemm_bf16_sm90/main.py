"""derby_gemm_bf16_sm90: one CUDA C++ kernel for Hopper (dense_gemm.cuh says how it works), its tiles chosen by a cost
model (dense_choice.py)."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
dense_choice = importlib.import_module(f"{__name__}.dense_choice")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
contract = importlib.import_module(f"{__name__}.contract")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
ALIGNED = 8  # values: TMA takes rows of a multiple of 16 bytes
library = cuda_library.CudaLibrary(__file__, "derby_gemm_bf16_sm90", "kernel.cu", [POINTER] * 4 + [INT] * 7)

check = contract.Contract("derby_gemm_bf16_sm90", aligned=16, where=("bias_rows <= 1",), x="bfloat16 m k",
                          weight="bfloat16 n k", bias="bfloat16 bias_rows n", output="bfloat16 m n")


def candidates(x, weight, bias):
    """Those worth trying, the model's choice first."""
    problem = dense_choice.Problem(x.shape[0], weight.shape[0], x.shape[1])
    order = dense_choice.ranked(problem, dense_choice.multiprocessors(x.device))
    return [{"form": form, "splits": splits, "group": dense_choice.GROUP} for form, splits in order[:8]]


def run_with(config, x, weight, bias, output):
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    if k == 0 or k % ALIGNED:  # two launches more, where rows cannot be loaded as they lie
        x, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED or ALIGNED)) for rows in (x, weight))
    library(x.device, x, weight, bias, output, m, n, x.shape[1], config["form"], config["group"], config["splits"],
            dense_choice.multiprocessors(x.device))


def run(x, weight, bias, output):
    """x bf16 [m, k], weight bf16 [n, k], bias bf16 [0 or 1, n] -> output bf16 [m, n]. Contiguous, at addresses that 16
    divides."""
    check(x, weight, bias, output)
    run_with(candidates(x, weight, bias)[0], x, weight, bias, output)
