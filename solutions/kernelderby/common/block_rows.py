"""Rows of bfloat16 normalized in CUDA, a block a row (rows.cuh): the configurations, and the call.

A configuration is a dict:
    threads    of a block, whole warps
    stream     what asks to leave the second-level cache first, as in rowwise.py
    ahead      how many waves of blocks before its own a row is fetched into the second-level cache
"""

from math import ceil

WIDTH = 8  # bfloat16 numbers of a vector
MOST_VECTORS = 8  # of one thread
STREAMS = {"": 0, "loads": 1, "both": 2}


def threads_of(columns, vectors):
    """Of a block whose threads have `vectors` vectors each."""
    return 32 * ceil(columns / (WIDTH * vectors * 32))


def candidates(x):
    """None where a block cannot take a row of x [rows, columns]."""
    columns = x.shape[1]
    if not x.is_cuda or not columns or columns % WIDTH:
        return []
    found = []
    for vectors, stream, ahead in ((1, "", 0), (2, "loads", 0), (2, "", 1), (4, "loads", 1)):
        config = {"threads": threads_of(columns, vectors), "stream": stream, "ahead": ahead}
        if config["threads"] <= (1024 if vectors <= 2 else 512) and config not in found:
            found.append(config)
    return found


def aligned(tensors):
    """Whether all lie at multiples of 16 bytes, as rows.cuh reads them."""
    return not any(tensor.data_ptr() % 16 for tensor in tensors)


def launch(library, config, multiprocessors, tensors, rows, columns, eps):
    ahead = config["ahead"] * multiprocessors * 2048 // config["threads"]
    library(tensors[0].device, *tensors, rows, columns // WIDTH, eps, config["threads"], STREAMS[config["stream"]],
            ahead)
