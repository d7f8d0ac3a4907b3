"""Where the kernels of the gated delta rule cut a long sequence, so that few heads keep a GPU busy."""

import functools

import torch

CHUNK, STATE_BYTES = 64, 6 * 128 * 128 + 16  # tokens; scratch of a segment and head
FOLLOW, LAUNCH = 1.0, 4.0  # in times of a chunk: a segment before, and a second kernel
UNCUT = 1 << 20


@functools.cache
def chunks_of_segment(chunks, states, changes, processors):
    """Chunks after which to cut sequences of so many chunks, or UNCUT: what takes the least time.

    states: heads of all sequences, each the work of two blocks; changes: blocks for what a segment changes of a state.
    Of n segments the first kernel carries the first one and finds the changes of those between, the second one carries
    all others.
    """
    def turns(blocks):
        return -(-blocks * states // processors)

    def cost(length):
        segments = -(-chunks // length)
        both = turns(2 + changes * (segments - 2)) + turns(2 * segments - 2)
        return both * length + FOLLOW * (segments - 2) + LAUNCH

    length = min((-(-chunks // segments) for segments in range(3, 33)), key=cost)
    return length if 0 < 2 * length < chunks and cost(length) < 0.95 * turns(2) * chunks else UNCUT


def processors_of(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
