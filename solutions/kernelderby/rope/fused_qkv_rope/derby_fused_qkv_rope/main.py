"""derby_fused_qkv_rope: one kernel; a thread rotates a few pairs of columns, in CUDA C++ (kernel.cu) those of several
heads.

The frequency is computed in float64 while the position and the heads are loaded, so the angle is exact to float32 at
any position; in float32 it would already be off by 5e-4 at position 8192. With many tokens that arithmetic takes time,
so a thread of the CUDA kernel computes an angle once for several heads. In the Triton kernel the heads of all tokens
are rows, and it computes the angle for each. Value heads are copied by the same threads, and stay where they are when
the output is the input.
"""

import ctypes
import functools
import importlib
import math
import os

import torch
import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
choice = importlib.import_module(f"{__name__}.choice")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_fused_qkv_rope", "kernel.cu",
                                   [POINTER] * 3 + [INT] * 5 + [ctypes.c_double] + [INT] * 3)


@triton.jit
def power_of_two(exponent):
    """2 ** exponent in float64, to 1e-11: an integer into the exponent bits, the Taylor series of the rest."""
    whole = tl.floor(exponent + 0.5)
    z = (exponent - whole) * 0.6931471805599453
    series = z * (1.0 / 362880.0) + (1.0 / 40320.0)
    series = series * z + (1.0 / 5040.0)
    series = series * z + (1.0 / 720.0)
    series = series * z + (1.0 / 120.0)
    series = series * z + (1.0 / 24.0)
    series = series * z + (1.0 / 6.0)
    series = series * z + 0.5
    series = series * z + 1.0
    series = series * z + 1.0
    return series * ((whole.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def quarter_turns(rest, whole):
    """Cosine and sine of whole + rest quarter turns, |rest| <= 1/2, to 1e-7. tl.cos and tl.sin would include a path for
    large angles, with a table in memory."""
    z = rest * 1.5707963267948966
    square = z * z
    cos = ((square * (1.0 / 40320.0) - 1.0 / 720.0) * square + 1.0 / 24.0) * square - 0.5
    cos = cos * square + 1.0
    sin = ((square * (1.0 / 362880.0) - 1.0 / 5040.0) * square + 1.0 / 120.0) * square - 1.0 / 6.0
    sin = sin * square * z + z
    odd = (whole & 1) == 1
    cos, sin = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    return tl.where(((whole + 1) & 2) == 0, cos, -cos), tl.where((whole & 2) == 0, sin, -sin)


@triton.jit
def derby_fused_qkv_rope(qkv, positions, output, rows, rotated_heads, slope_high, slope_low,
                         NUM_HEADS: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr):
    """slope: log2(rope_base) / HALF in two float32 numbers. rows: tokens x heads."""
    element = tl.arange(0, HEADS * HALF)
    column = element % HALF
    row = tl.program_id(0) * HEADS + element // HALF
    there = row < rows
    token = row // NUM_HEADS
    place = row.to(tl.int64) * (2 * HALF) + column
    first = tl.load(qkv + place, mask=there, other=0.0)
    second = tl.load(qkv + place + HALF, mask=there, other=0.0)
    position = tl.load(positions + token, mask=there, other=0)
    slope = tl.full([HEADS * HALF], 0.0, tl.float64) + slope_high + slope_low
    # In quarter turns, not radians: log2(2 / pi) = -0.6514961294723188.
    frequency = power_of_two(column.to(tl.float64) * -slope - 0.6514961294723188)
    turns = position.to(tl.float64) * frequency
    whole = tl.floor(turns + 0.5)
    cos, sin = quarter_turns((turns - whole).to(tl.float32), whole.to(tl.int64).to(tl.int32))
    low, high = first.to(tl.float32), second.to(tl.float32)
    rotated = row % NUM_HEADS < rotated_heads
    tl.store(output + place, tl.where(rotated, (low * cos - high * sin).to(first.dtype), first), mask=there)
    tl.store(output + place + HALF, tl.where(rotated, (high * cos + low * sin).to(first.dtype), second), mask=there)


MANY = 1024  # heads of all tokens, from which on arithmetic counts
CUDA_SIZES = ((4, 4, 128), (2, 4, 128), (2, 4, 256), (2, 2, 256), (4, 2, 128), (4, 2, 256), (4, 4, 256), (4, 8, 128),
              (8, 2, 128), (8, 4, 128))  # pairs and heads of a thread, threads


@functools.cache
def slope_of(rope_base, half):
    """log2(rope_base) / half as two numbers: the float32 nearest to it, and the remainder."""
    slope = math.log2(rope_base) / half
    high = float(torch.tensor(slope, dtype=torch.float32))
    return high, slope - high


def tuning_key(qkv, positions, num_q_heads, num_kv_heads, rope_base):
    return f"rows<={triton.next_power_of_2(max(qkv.shape[0] * qkv.shape[1], 1))}"


def candidates(qkv, positions, num_q_heads, num_kv_heads, rope_base):
    few = qkv.shape[0] * qkv.shape[1] <= MANY
    sizes = [(2, 1), (1, 1), (4, 1), (4, 2)] if few else [(16, 4), (8, 2), (4, 1)]
    triton_ones = [{"heads": heads, "warps": warps} for heads, warps in sizes]
    if not qkv.is_cuda:
        return triton_ones
    if qkv.shape[2] & (qkv.shape[2] - 1):  # of Triton's tiles every side is a power of two
        few, triton_ones = False, []
    cuda_ones = [{"pairs": pairs, "heads": heads, "threads": threads} for pairs, heads, threads in CUDA_SIZES]
    return triton_ones + cuda_ones if few else cuda_ones + triton_ones


choose = choice.Choice(tuned.FOUND, tuning_key, candidates)


def run_with(config, qkv, positions, num_q_heads, num_kv_heads, rope_base, output):
    tokens, heads, head_dim = qkv.shape
    rotated, half = num_q_heads + num_kv_heads, head_dim // 2
    rows = tokens * heads
    if rows == 0:
        return
    if "pairs" in config:
        at, to = qkv.data_ptr(), output.data_ptr()
        pairs = next(pairs for pairs in (8, 4, 2, 1)
                     if pairs <= config["pairs"] and not half % pairs and not (at | to) % (2 * pairs))
        library(qkv.device, at, positions, to, tokens, heads, rotated if at == to else heads, rotated, half,
                math.log2(rope_base) / half, pairs, config["heads"], config["threads"])
        return
    slope_high, slope_low = slope_of(rope_base, half)
    derby_fused_qkv_rope[(triton.cdiv(rows, config["heads"]),)](
        qkv, positions, output, rows, rotated, slope_high, slope_low, NUM_HEADS=heads, HALF=half,
        HEADS=config["heads"], num_warps=config["warps"])


check = contract.Contract("derby_fused_qkv_rope", on_current=True, where=("head_dim % 2 == 0",),
                          qkv="float16 num_tokens num_heads head_dim", positions="int32 num_tokens",
                          output="float16 num_tokens num_heads head_dim")


def run(qkv, positions, num_q_heads, num_kv_heads, rope_base, output):
    """qkv float16 [num_tokens, num_heads, head_dim], positions int32 [num_tokens], heads in the order query, key, value
    -> output, as qkv, which it may be."""
    check(qkv, positions, output)
    if not 0 <= num_q_heads <= num_q_heads + num_kv_heads <= qkv.shape[1]:
        raise ValueError(f"derby_fused_qkv_rope: num_q_heads {num_q_heads} and num_kv_heads {num_kv_heads} are not "
                         f"among the {qkv.shape[1]} heads of qkv; pass what qkv holds")
    run_with(choose(qkv, positions, num_q_heads, num_kv_heads, rope_base), qkv, positions, num_q_heads, num_kv_heads,
             rope_base, output)
