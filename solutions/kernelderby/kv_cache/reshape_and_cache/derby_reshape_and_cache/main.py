"""derby_reshape_and_cache: one CUDA C++ kernel that writes every row of the new caches at most once (kernel.cu).

A row comes from the token that goes there or from the old cache, which moves about 2/3 of the bytes of copying the
caches first. If the new caches lie in the old ones, only tokens move. It is CUDA rather than Triton because the slots
that no token goes to are found by marking bytes in shared memory.
"""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
choice = importlib.import_module(f"{__name__}.choice")
contract = importlib.import_module(f"{__name__}.contract")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT = cuda_library.POINTER, cuda_library.INT
library = cuda_library.CudaLibrary(__file__, "derby_reshape_and_cache", "kernel.cu",
                                   [POINTER] * 7 + [INT, cuda_library.LONG] + [INT] * 7)
THREADS, MOST_SLOTS = 256, 1024  # as in kernel.cu


def width_of(row_bytes, addresses):
    """Bytes that a thread moves at once: the largest width to which all rows are aligned."""
    return next(width for width in (16, 8, 4, 2) if not any(number % width for number in (row_bytes, *addresses)))


def shares(tokens, slots, row_bytes, width, items, keepers_vectors):
    """(keepers, slots_each, mostly, tokens_each) of kernel.cu. keepers_vectors: how many vectors of a cache one thread
    of a keeper copies if as many slots are free as possible."""
    length = row_bytes // width
    free = max(slots - tokens, 0)
    mostly = free * 4 > slots * 3
    # Enough keepers for the free slots, but not so many that one reads more bytes of slot_mapping than it copies.
    keepers = -(-free * length // (THREADS * keepers_vectors))
    slots_each = max(-(-slots // max(keepers, 1)), tokens * 8 * slots // max(free * 4 * row_bytes, 1), 1)
    if not free:
        slots_each = MOST_SLOTS
    slots_each = min(slots_each, MOST_SLOTS, max(slots, 1))
    tokens_each = max(THREADS * items // length, 1)
    return -(-slots // slots_each), slots_each, mostly, tokens_each


def tuning_key(key, value, key_cache, value_cache, slot_mapping):
    row_bytes = key.shape[1] * key.shape[2] * key.element_size()
    tokens, slots = key.shape[0], key_cache.shape[0] * key_cache.shape[1]
    return f"row={row_bytes} tokens<={1 << max(tokens - 1, 0).bit_length()} " \
           f"slots<={1 << max(slots - 1, 0).bit_length()}"


def candidates(key, value, key_cache, value_cache, slot_mapping):
    small = key.numel() * key.element_size() <= 1 << 20
    pairs = [(1, 1), (2, 1), (4, 1)] if small else [(4, 1), (1, 1), (2, 1), (4, 4)]
    return [{"items": items, "keepers_vectors": vectors} for items, vectors in pairs]


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, also=(2,))


def run_with(config, key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out):
    tokens, slots = key.shape[0], key_cache.shape[0] * key_cache.shape[1]
    row_bytes = key.shape[1] * key.shape[2] * key.element_size()
    if slots == 0 or row_bytes == 0:
        return
    tensors = key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out
    addresses = [tensor.data_ptr() for tensor in tensors]
    width = width_of(row_bytes, [*addresses[:4], *addresses[5:]])
    items = config["items"]
    keepers, slots_each, mostly, tokens_each = shares(tokens, slots, row_bytes, width, items,
                                                      config["keepers_vectors"])
    if addresses[5:] == addresses[2:4]:  # in place: every old row stays where it is
        keepers = 0
        if tokens == 0:
            return
    library(key.device, *addresses, tokens, slots, row_bytes, width, items, keepers, slots_each, mostly, tokens_each)


check = contract.Contract("derby_reshape_and_cache",
    key="bfloat16 num_tokens num_heads head_dim", value="bfloat16 num_tokens num_heads head_dim",
    key_cache="bfloat16 num_blocks 16 num_heads head_dim", value_cache="bfloat16 num_blocks 16 num_heads head_dim",
    slot_mapping="int64 num_tokens", key_cache_out="bfloat16 num_blocks 16 num_heads head_dim",
    value_cache_out="bfloat16 num_blocks 16 num_heads head_dim")


def run(key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out):
    """key, value bfloat16 [num_tokens, num_heads, head_dim], caches [num_blocks, block_size, num_heads, head_dim],
    slot_mapping int64 [num_tokens], distinct or negative -> new caches."""
    check(key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out)
    inputs = key, value, key_cache, value_cache, slot_mapping
    run_with(choose(*inputs), *inputs, key_cache_out, value_cache_out)
