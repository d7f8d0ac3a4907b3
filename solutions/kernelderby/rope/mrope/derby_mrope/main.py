"""derby_mrope: one kernel over the heads of queries and keys together, in Triton for heads of any size, in CUDA C++
(kernel.cu) for those of 128 columns.

The query and key heads of a token are rows beside each other; a program takes ROWS of them, whatever their number, so
no thread is idle if there is one key head. A thread rotates eight pairs of columns. It reads cos and sin only in the
row of its section; the token's other heads then find them in the L1 cache. Outputs may lie in the inputs: a program has
read its heads before it writes them.
"""

import importlib
import os

import triton
import triton.language as tl

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
choice = importlib.import_module(f"{__name__}.choice")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_mrope", "kernel.cu", [POINTER] * 6 + [INT] * 7)


@triton.jit
def derby_mrope(query, key, cos, sin, query_out, key_out, tokens, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
                TIME: tl.constexpr, HEIGHT: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr):
    """TIME, HEIGHT: sizes of the first two sections; constants, so that loads may be as wide as sections allow."""
    HEADS: tl.constexpr = Q_HEADS + KV_HEADS
    element = tl.arange(0, ROWS * HALF)
    column = element % HALF
    row = tl.program_id(0) * ROWS + element // HALF
    token = (row // HEADS).to(tl.int64)
    head = row % HEADS
    there = token < tokens
    in_query = head < Q_HEADS
    query_place = (token * Q_HEADS + head) * (2 * HALF) + column
    key_place = (token * KV_HEADS + head - Q_HEADS) * (2 * HALF) + column
    source = tl.where(in_query, query + query_place, key + key_place)
    target = tl.where(in_query, query_out + query_place, key_out + key_place)
    section = (column >= TIME).to(tl.int64) + (column >= TIME + HEIGHT).to(tl.int64)
    angle = (section * tokens + token) * HALF + column
    first = tl.load(source, mask=there, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    c = tl.load(cos + angle, mask=there, other=0.0)
    s = tl.load(sin + angle, mask=there, other=0.0)
    tl.store(target, (first * c - second * s).to(query.dtype.element_ty), mask=there)
    tl.store(target + HALF, (second * c + first * s).to(query.dtype.element_ty), mask=there)


def tuning_key(query, key, cos, sin, section_time, section_height, section_width):
    rows = query.shape[0] * (query.shape[1] + key.shape[1])
    return f"heads={query.shape[1]}+{key.shape[1]} rows<={triton.next_power_of_2(max(rows, 1))}"


def candidates(query, key, cos, sin, section_time, section_height, section_width):
    pairs = [(16, 4), (32, 8), (16, 2), (32, 4), (8, 2), (8, 1)]
    triton_ones = [{"rows": rows, "warps": warps} for rows, warps in pairs]
    if not query.is_cuda or not cuda_takes(query, section_time, section_height):
        return triton_ones
    cuda_ones = [{"heads": heads, "threads": threads}
                 for heads, threads in ((5, 64), (5, 128), (4, 64), (4, 128), (2, 128), (2, 64), (6, 64), (3, 128))]
    return cuda_ones + triton_ones


def cuda_takes(query, section_time, section_height):
    """Whether heads have 128 columns, sections end at multiples of eight, and a grid has room for the threads."""
    return query.shape[2] == 128 and not section_time % 8 and not section_height % 8 and query.numel() < 1 << 33


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, also=(1, 4, 5))


def run_with(config, query, key, cos, sin, section_time, section_height, section_width, query_out, key_out):
    tokens, q_heads, head_size = query.shape
    rows = tokens * (q_heads + key.shape[1])
    if rows == 0:
        return
    if "heads" in config:
        tensors = query, key, cos, sin, query_out, key_out
        aligned = not any(tensor.data_ptr() % 16 for tensor in tensors)
        if aligned and cuda_takes(query, section_time, section_height):
            library(query.device, *tensors, tokens, q_heads, key.shape[1], section_time, section_height,
                    config["heads"], config["threads"])
            return
        config = {"rows": 16, "warps": 4}
    # If there are more threads than pairs, two threads hold the same pair, and the second might read it after the first
    # wrote it.
    warps = min(config["warps"], max(1, config["rows"] * head_size // 64))
    derby_mrope[(triton.cdiv(rows, config["rows"]),)](
        query, key, cos, sin, query_out, key_out, tokens, Q_HEADS=q_heads, KV_HEADS=key.shape[1], TIME=section_time,
        HEIGHT=section_height, HALF=head_size // 2, ROWS=config["rows"], num_warps=warps)


check = contract.Contract("derby_mrope", on_current=True,
                          where=("head_size == 2 * half_head_size", "half_head_size & (half_head_size - 1) == 0"),
                          query="bfloat16 num_tokens num_q_heads head_size",
                          key="bfloat16 num_tokens num_kv_heads head_size", cos="float32 3 num_tokens half_head_size",
                          sin="float32 3 num_tokens half_head_size",
                          query_out="bfloat16 num_tokens num_q_heads head_size",
                          key_out="bfloat16 num_tokens num_kv_heads head_size")


def run(query, key, cos, sin, section_time, section_height, section_width, query_out, key_out):
    """query, key bfloat16 [num_tokens, heads, head_size], cos, sin float32 [3, num_tokens, head_size / 2] -> turned.
    head_size / 2 is a power of two."""
    check(query, key, cos, sin, query_out, key_out)
    if min(section_time, section_height, section_width) < 0 or (
            section_time + section_height + section_width != cos.shape[2]):
        raise ValueError(f"derby_mrope: section_time {section_time}, section_height {section_height} and section_width "
                         f"{section_width} are not {cos.shape[2]} together; pass sizes that are")
    inputs = query, key, cos, sin, section_time, section_height, section_width
    run_with(choose(*inputs), *inputs, query_out, key_out)
