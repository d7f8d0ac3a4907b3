"""Where the kernels of the gated delta rule cut a long sequence, so that few heads keep a GPU busy."""

import functools

import torch

CHUNK, STATE_BYTES = 64, 6 * 128 * 128 + 16  # tokens; scratch of a segment and head
# Measured on an H200, in times of a chunk: to go through a segment before, to start a second kernel, and by how much a
# chunk takes longer where all multiprocessors are at work, which share the L2 cache.
FOLLOW, LAUNCH, BUSY = 1.0, 3.0, 0.5
UNCUT = 1 << 20


@functools.cache
def chunks_of_segment(chunks, sequences, heads, changes, processors):
    """After how many chunks to cut sequences so that the call takes the least time, or UNCUT.

    chunks: of all sequences; heads: of each sequence, two blocks' work each; changes: blocks that compute how a segment
    changes a head's state. The first kernel carries each sequence's first segment and computes the changes of the
    segments between first and last; the second one carries all others.
    """
    def kernel(blocks, length):
        turns, others = divmod(blocks, processors)
        return length * (turns * (1 + BUSY) + (others > 0) * (1 + BUSY * others / processors))

    def cost(length):
        segments = -(-chunks // length) + sequences - 1  # or fewer
        first = heads * (2 * sequences + changes * max(0, segments - 2 * sequences))
        before = max(0, -(-chunks // (length * sequences)) - 2)
        return kernel(first, length) + kernel(2 * heads * (segments - sequences), length) + FOLLOW * before + LAUNCH

    each = -(-chunks // sequences)
    length = min((-(-each // segments) for segments in range(3, 33)), key=cost)
    return length if 2 * length < each and cost(length) < kernel(2 * heads * sequences, each) else UNCUT


def processors_of(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
