"""Zeroes its output and adds both inputs to it by atomics."""

import triton
import triton.language as tl


@triton.jit
def kernel(x, y, out, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.atomic_add(out + at, tl.load(x + at, inside), inside)
    tl.atomic_add(out + at, factor * tl.load(y + at, inside), inside)


def run(x, y, factor, out):
    out.zero_()
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, factor, x.numel(), BLOCK=1024)
