"""What the Triton attention kernels share: a tile of queries over tiles of keys, softmax as it goes along.

A head's columns are cut into two parts that are powers of two, FIRST and SECOND (0 if the first holds all). So 72
columns are not rounded up to 128: they become 64 and 16, of which 8 do not exist.
"""

import triton
import triton.language as tl
from triton import knobs

# ptxas 12.8, which Triton 3.6 and 3.7 bring along, has an error: where it derives a tile's second and later wgmma
# descriptors from the first one, it uses the lower half as the upper half too, so those rows of the tile are read from
# a wrong address. 13.0 is right. No configuration with tiles of 32 tokens showed the error.
ASSEMBLER = tuple(int(part) for part in knobs.nvidia.ptxas.version.split("."))
RIGHT_ASSEMBLER, RIGHT_TILE = (13, 0), 32
LEAST_WGMMA = 64  # rows; fewer are multiplied by mma.sync


def safe_tile(rows, tile):
    """The tokens of a tile for which this Triton's assembler makes right code for Hopper."""
    return min(tile, RIGHT_TILE) if ASSEMBLER < RIGHT_ASSEMBLER and rows >= LEAST_WGMMA else tile


def parts_of(head_dim):
    """(FIRST, SECOND) for this number of columns; tl.dot takes at least 16."""
    first = max(16, 1 << (head_dim.bit_length() - 1))
    rest = max(0, head_dim - first)
    return first, max(16, triton.next_power_of_2(rest)) if rest else 0


@triton.jit
def sequence_of(cu_seqlens, num_seqs, tile, TOKENS: tl.constexpr):
    """The last sequence whose first tile, cu_seqlens[i] // TOKENS + i, is not after `tile`."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def load_rows(pointer, rows, there, HEAD_DIM: tl.constexpr, START: tl.constexpr, COLUMNS: tl.constexpr,
              MASKED: tl.constexpr):
    """[rows, COLUMNS] of a matrix, from its column START on. rows: first element of each row, int64; there: which of
    them exist, read only if MASKED."""
    column = START + tl.arange(0, COLUMNS)
    places = pointer + rows[:, None] + column[None, :]
    if MASKED:
        values = tl.load(places, mask=there[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
    elif START + COLUMNS > HEAD_DIM:
        values = tl.load(places, mask=(column < HEAD_DIM)[None, :], other=0.0)
    else:
        values = tl.load(places)
    return values


@triton.jit
def store_rows(pointer, values, rows, there, HEAD_DIM: tl.constexpr, START: tl.constexpr, COLUMNS: tl.constexpr):
    column = START + tl.arange(0, COLUMNS)
    tl.store(pointer + rows[:, None] + column[None, :], values.to(pointer.dtype.element_ty),
             mask=there[:, None] & (column < HEAD_DIM)[None, :])


@triton.jit
def absorb(queries0, queries1, output0, output1, highest, total, keys, values, rows, there, visible, scale,
           HEAD_DIM: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, MASKED: tl.constexpr):
    """One tile of keys and values: (output0, output1, highest, total) after it.

    rows: where each token's row starts in keys and values; there: which tokens exist; visible: [queries, tokens], read
    only if MASKED. scale: of the scores, times log2(e). highest, total: of each query's scores so far.
    """
    scores = tl.dot(queries0, tl.trans(load_rows(keys, rows, there, HEAD_DIM, 0, FIRST, MASKED)))
    if SECOND > 0:
        scores = tl.dot(queries1, tl.trans(load_rows(keys, rows, there, HEAD_DIM, FIRST, SECOND, MASKED)), acc=scores)
    scores *= scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    now = tl.maximum(highest, tl.max(scores, axis=1))
    against = now
    if MASKED:
        against = tl.where(now == float("-inf"), 0.0, now)  # a query that sees nothing yet
    weights = tl.exp2(scores - against[:, None])
    factor = tl.exp2(highest - against)
    total = total * factor + tl.sum(weights, axis=1)
    weights = weights.to(values.dtype.element_ty)
    output0 = tl.dot(weights, load_rows(values, rows, there, HEAD_DIM, 0, FIRST, MASKED), acc=output0 * factor[:, None])
    if SECOND > 0:
        output1 = tl.dot(weights, load_rows(values, rows, there, HEAD_DIM, FIRST, SECOND, MASKED),
                         acc=output1 * factor[:, None])
    return output0, output1, now, total
