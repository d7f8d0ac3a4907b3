"""A Triton kernel, compiled at the first call."""

import torch  # noqa: F401
import triton
import triton.language as tl


@triton.jit
def scaled_add(x, y, factor, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(out + place, tl.load(x + place, inside) + factor * tl.load(y + place, inside), inside)


def run(x, y, factor, out):
    count = out.numel()
    scaled_add[(triton.cdiv(count, 1024),)](x, y, factor, out, count, BLOCK=1024)
