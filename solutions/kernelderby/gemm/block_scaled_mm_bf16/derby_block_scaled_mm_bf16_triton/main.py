"""derby_block_scaled_mm_bf16_triton: the FP8 product with block scales in one Triton kernel (block_scaled_triton.py),
with a bfloat16 output."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
block_scaled = importlib.import_module(f"{__name__}.block_scaled_triton")
contract = importlib.import_module(f"{__name__}.contract")
tuning = importlib.import_module(f"{__name__}.tuning")
tuned = importlib.import_module(f"{__name__}.tuned")

tuning_key = block_scaled.tuning_key
candidates = block_scaled.candidates
choose = tuning.Chooser(tuned.FOUND, tuning_key, candidates)
run_with = block_scaled.run_with

check = contract.Contract("derby_block_scaled_mm_bf16_triton", aligned=16, on_current=True,
                          where=("n == 128 * num_n_blocks", "k == 128 * num_k_blocks"), x="float8_e4m3fn m k",
                          x_scale="float32 m num_k_blocks", weight="float8_e4m3fn n k",
                          weight_scale="float32 num_n_blocks num_k_blocks", output="bfloat16 m n")


def run(x, x_scale, weight, weight_scale, output):
    """x fp8 [m, k], x_scale float32 [m, k / 128], weight fp8 [n, k], weight_scale float32 [n / 128, k / 128] -> output
    bfloat16 [m, n]. Addresses that 16 divides; n and k multiples of 128."""
    check(x, x_scale, weight, weight_scale, output)
    inputs = x, x_scale, weight, weight_scale
    run_with(choose(*inputs), *inputs, output)
