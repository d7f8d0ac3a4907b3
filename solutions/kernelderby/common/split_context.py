"""Decode attention in Triton: programs that share one context; the last of them puts their parts together.

A part is the result of softmax over some of the tokens: the sum of weighted values [ROWS, COLUMNS], and for each row
the greatest score `most` (for powers of two; -inf without a token) and the sum of weights. One launch: each program
stores its part and counts itself; the last one to do so reads all parts, in their order, so that results never change.
"""

import os

import torch
import triton
import triton.language as tl

from . import workspaces

LOG2E = 1.4426950408889634
# Triton's interpreter (3.7) multiplies the bits of bfloat16 as if they were integers.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def product(a, b, sums):
    """sums + a b in float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    else:
        return tl.dot(a, b, sums)


@triton.jit
def weigh(scores, values, sums, most, total):
    """Adds one tile: scores [ROWS, TOKENS] (-inf: does not count), values [TOKENS, COLUMNS] -> sums, most, total."""
    greatest = tl.maximum(most, tl.max(scores, axis=1))
    weights = tl.exp2(scores - greatest[:, None])
    factor = tl.exp2(most - greatest)
    sums = product(weights.to(values.dtype), values, sums * factor[:, None])
    return sums, greatest, total * factor + tl.sum(weights, axis=1)


@triton.jit
def finish(sums, most, total, places, mask, parts, counters, unit, split, SPLITS: tl.constexpr, ROWS: tl.constexpr,
           COLUMNS: tl.constexpr):
    """Writes sums / total to `places` [ROWS, COLUMNS], of all SPLITS programs of `unit` together.

    parts: float32 [units, SPLITS, ROWS, COLUMNS + 2]; counters: int32 [units], zero before and after.
    """
    if SPLITS == 1:
        tl.store(places, (sums / total[:, None]).to(places.dtype.element_ty), mask=mask)
    else:
        rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        first = parts + tl.cast(unit, tl.int64) * (SPLITS * ROWS * (COLUMNS + 2))
        mine = first + (split * ROWS + rows) * (COLUMNS + 2)
        tl.store(mine[:, None] + columns[None, :], sums)
        tl.store(mine + COLUMNS, most)
        tl.store(mine + COLUMNS + 1, total)
        tl.debug_barrier()  # all of the program's stores come before its count
        if tl.atomic_add(counters + unit, 1) == SPLITS - 1:
            tl.debug_barrier()
            sums = tl.zeros([ROWS, COLUMNS], tl.float32)
            most = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            for other in range(SPLITS):
                part = first + (other * ROWS + rows) * (COLUMNS + 2)
                their_most = tl.load(part + COLUMNS, cache_modifier=".cg")
                greatest = tl.maximum(most, their_most)
                factor = tl.where(most == float("-inf"), 0.0, tl.exp2(most - greatest))
                their_factor = tl.where(their_most == float("-inf"), 0.0, tl.exp2(their_most - greatest))
                theirs = tl.load(part[:, None] + columns[None, :], cache_modifier=".cg")
                sums = sums * factor[:, None] + theirs * their_factor[:, None]
                total = total * factor + tl.load(part + COLUMNS + 1, cache_modifier=".cg") * their_factor
                most = greatest
            tl.store(places, (sums / total[:, None]).to(places.dtype.element_ty), mask=mask)
            tl.store(counters + unit, 0)


_workspace = workspaces.Workspace(torch.float32)


def workspace(tensor, units, splits, rows, columns):
    """(parts, counters) on the tensor's device, for one call."""
    if splits == 1:
        return tensor, tensor  # not looked at
    counters, parts = _workspace(tensor.device, units, units * splits * rows * (columns + 2)).tensors
    return parts, counters


def power(number):
    """The least power of two from `number` on, and 1."""
    return 1 << max(number - 1, 0).bit_length()


def multiprocessors(tensor):
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 132


def split_choices(units, tiles, programs):
    """Powers of two up to the number of tiles of a context: first the least one that gives `programs` programs, then
    others."""
    most = power(tiles)
    best = min(most, power(-(-programs // max(units, 1))))
    return [best] + [other for other in (best // 2, best * 2, 1) if 1 <= other <= most and other != best]
