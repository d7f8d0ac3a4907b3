"""Rows of bfloat16 normalized in CUDA, one row a block (rows.cuh): the configurations, and the call.

A configuration is a dict, one of the forms that kernel.cu is compiled in:
    threads    of a block, whole warps
    stream     what asks to leave the second-level cache first, as in rowwise.py
    ahead      how many waves of blocks before its own a row is fetched into the second-level cache, 0 or 1
"""

STREAMS = {"": 0, "loads": 1, "both": 2}
RESIDENT = 2048  # threads of a multiprocessor, which make up a wave


def candidates(x, forms):
    """Those of `forms` (columns, threads, stream, ahead) that are compiled for the columns of x [rows, columns]."""
    if not x.is_cuda:
        return []
    return [{"threads": threads, "stream": stream, "ahead": ahead}
            for columns, threads, stream, ahead in forms if columns == x.shape[1]]


def aligned(tensors):
    """Whether all lie at multiples of 16 bytes, as rows.cuh reads them."""
    return not any(tensor.data_ptr() % 16 for tensor in tensors)


def launch(library, config, multiprocessors, tensors, rows, columns, eps):
    ahead = config["ahead"] * multiprocessors * (RESIDENT // config["threads"])
    library(tensors[0].device, *tensors, rows, columns, eps, config["threads"], STREAMS[config["stream"]], ahead)
