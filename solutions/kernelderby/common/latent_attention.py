"""Decode attention over a latent cache, with or without blocks: the host's side of latent_attention.cu and
latent_uncut.cu (sm_90a)."""

import functools

import torch

HEADS, LATENT = 64, 512  # query heads of a CTA, dimensions of the output
MOST_UNCUT = 320  # tokens of a context that latent_uncut.cu does not cut: one tile less than two pieces (SNAP) have


def parameters(cuda_library):
    """Of the C function, without the stream."""
    pointer, number = cuda_library.POINTER, cuda_library.INT
    return [pointer] * 6 + [number] * 6 + [cuda_library.FLOAT] + [number]


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@functools.cache
def on_hopper(device):
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def attend(workers, uncut, query, cache, context_lens, block_table, longest, sm_scale, output):
    """workers, uncut: CudaLibrary of latent_attention.cu and of latent_uncut.cu. query bf16 [batch, heads, 576] ->
    output bf16 [batch, heads, 512]. cache bf16 [batch, slots, 576], or with a block_table int32 [batch, columns]
    [blocks, block_size, 576]. No context is longer than `longest`; block_size is a power of two from 8 on. All at
    addresses that 16 divides."""
    batch, heads, _ = query.shape
    blocks, slots, _ = cache.shape
    head_blocks, rows = -(-heads // HEADS), -(-min(heads, HEADS) // 16) * 16
    count = max(multiprocessors(query.device) // head_blocks, 1)
    # Taken from torch's allocator in each call, so calls on other streams get other memory, and a capture gets its
    # graph's.
    floats = head_blocks * count * 2 * rows * (LATENT + 2) + count
    space = torch.empty(floats, dtype=torch.float32, device=query.device)
    table, columns = (0, 0) if block_table is None else (block_table, block_table.shape[1])
    library = uncut if longest <= MOST_UNCUT else workers
    library(query.device, query, cache, context_lens, table, output, space, batch, heads, blocks,
            slots, longest, columns, sm_scale, count)


def aligned(tensor):
    """The tensor if its address is a multiple of 16, else a copy."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
