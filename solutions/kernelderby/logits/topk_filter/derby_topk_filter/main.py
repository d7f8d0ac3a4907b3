"""derby_topk_filter: one CUDA C++ kernel; a row is held in the registers of a block or of a cluster of blocks.

One launch and no atomics on memory: a vocabulary of 150 thousand goes to a cluster of 16 blocks, which exchange their
lists of candidates through distributed shared memory, about a microsecond cheaper than a second launch. select.cuh says
how the k-th largest is found. Ties with it stay, NaN counts as the largest value, as in the reference's sort.
"""

import importlib
import os
from math import log2

__path__ = [os.path.dirname(__file__)]
choice = importlib.import_module(f"{__name__}.choice")
contract = importlib.import_module(f"{__name__}.contract")
tuned = importlib.import_module(f"{__name__}.tuned")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")

POINTER, INT, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_topk_filter", "kernel.cu",
                                   [POINTER, POINTER, INT, INT, INT, FLOAT, INT, INT, INT, INT])
# (threads of a block, values that each holds), as kernel.cu compiles them, the smallest block first.
HELD = [(128, 16), (256, 8), (128, 32), (256, 16), (512, 8), (1024, 4), (1024, 8), (1024, 12), (1024, 20)]
CLUSTERS = [1, 2, 4, 8, 16]
LONG = 1 << 13  # values of a row from which on it is worth trying to leave it in memory
FEW_ROWS = 132  # a multiprocessor a row: then latency counts, and each row gets as many threads as it can use


def tuning_key(logits, top_k, filter_value):
    tokens, vocab = logits.shape
    size = 1 << max(tokens - 1, 0).bit_length()
    return f"vocab={vocab} tokens<={size} k<={1 << max(top_k - 1, 0).bit_length()}"


def candidates(logits, top_k, filter_value):
    """Every compiled size that holds a row with few idle threads, by the blocks it needs; else rows stay in memory."""
    tokens, vocab = logits.shape
    few = tokens <= FEW_ROWS
    choices = []
    for threads, items in HELD:
        for cluster in CLUSTERS if threads == 1024 else [1]:
            part = -(-vocab // cluster)
            if threads * items // 4 < part <= threads * items - 4 * (cluster > 1) or \
                    (part <= threads * items and cluster == 1 and (threads, items) == HELD[0]):
                choices.append({"threads": threads, "items": items, "cluster": cluster})
    if few:  # a cluster only if a block would hold more than 12 values a thread
        choices.sort(key=lambda c: (c["cluster"] > 8, c["items"] > 12, c["cluster"], -c["threads"], c["items"]))
    else:  # blocks of 256 threads, of which enough fit on a multiprocessor to hide the search of one
        choices.sort(key=lambda c: (c["cluster"], abs(c["threads"] - 256), c["items"]))
    # Rows in memory: they are read three times rather than once, but no cluster of 16 blocks has to wait for room.
    # About 64 blocks in all were fastest at 16 and at 32 rows.
    parts = [cluster for cluster in CLUSTERS if vocab >= LONG * cluster] or [1]
    filling = sorted(parts, key=lambda cluster: abs(log2(max(tokens, 1) * cluster / (FEW_ROWS / 2))))
    from_memory = [{"threads": 1024, "items": 0, "cluster": cluster} for cluster in filling[:3]]
    choices = choices if few else choices[:4]
    if vocab < LONG:
        from_memory = from_memory if not choices else []
    waits = not choices or choices[0]["cluster"] > 1 and 2 * choices[0]["cluster"] * tokens > FEW_ROWS
    return from_memory + choices if waits else choices + from_memory


choose = choice.Choice(tuned.FOUND, tuning_key, candidates, also=(1,))


def run_with(config, logits, top_k, filter_value, output):
    tokens, vocab = logits.shape
    if top_k < 1:
        raise ValueError(f"top_k: {top_k} is below 1")
    if tokens == 0 or vocab == 0:
        return
    width = 4 if vocab % 4 == 0 and (logits.data_ptr() | output.data_ptr()) % 16 == 0 else 1
    library(logits.device, logits, output, tokens, vocab, min(top_k, vocab), filter_value, config["threads"],
            config["items"], width, config["cluster"])


check = contract.Contract("derby_topk_filter",
    logits="float32 num_tokens vocab_size", output="float32 num_tokens vocab_size")


def run(logits, top_k, filter_value, output):
    """logits float32 [num_tokens, vocab_size], top_k and filter_value numbers -> output, as logits."""
    check(logits, output)
    run_with(choose(logits, top_k, filter_value), logits, top_k, filter_value, output)
