"""As many blocks as the GPU has processors, each going through its share."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, out, factor, count, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < count
        total = tl.load(x + at, inside) + factor * tl.load(y + at, inside)
        tl.store(out + at, total, inside)


def run(x, y, factor, out):
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    kernel[(processors,)](x, y, out, factor, x.numel(), BLOCK=1024)
