"""Estimates how long the forms of paged decode take, in microseconds, from sizes that the host knows.

Clusters (paged_decode.cu): for each round of clusters that fit on the GPU together, the time in which a warp waits for
its pages, one after the other, and sends its part, or the time to read the cache from memory, if that is longer; in
addition a start, and the time to add all warps' parts. Stretches (paged_decode_long.cu): a start, the time to read the
cache from memory, the parts of neighbours. Constants: NVIDIA H200, 2026-11-24, calls as CUDA graphs behind an L2 flush,
32 sizes of 1 to 256 sequences, 1 to 8 key heads, 256 to 65,536 tokens, equal and ragged, 12 to 15 forms of each; fitted
by least squares of logarithms and of the cost of a wrong choice. On these same sizes the chosen forms take 2.0 % longer
than the best ones in the mean, and 17 % at worst.
"""

from math import ceil, log2

# head_dim rounded up, columns of 8 query heads -> warps whose registers fit on a multiprocessor
RESIDENT = {(64, 1): 18, (64, 2): 14, (128, 1): 12, (128, 2): 8, (256, 1): 8}
FITS = 0.94  # of multiprocessors: clusters stay within a part of the GPU, whose sizes are no powers of two
START, DOUBLING, PART = 2.37, 0.17, 0.028  # of a call; for each doubling of blocks; for each warp's part in a cluster
FIRST = 0.7  # of a round
PAGE = {64: (0.78, 0.05), 128: (0.9, 0.05), 256: (1.5, 0.35)}  # of a page alone, and how much more beside 7 others
SEND, LEAVE = 0.1, 0.025  # of a warp's 8 x 128 sums, in a cluster and in a block
COLD, COLD_RATE, RATE = 50, 2.9, 4.2  # megabytes that push dirty lines out of the L2; TB/s of these and of the others
RAGGED, LEAST = 0.56, 0.25  # of what the longest context lets expect: in a ragged batch, and at least
BEND = 2.7  # how sharply the longer of waiting and memory decides
LONG_START, LONG_COLD_RATE, LONG_RATE = 9.8, 2.6, 3.9
LONG_WIDE, LONG_DEEP = 4.5, 4.0  # more of a start with over 8 rows; with over 128 values (four sizes, 2026-11-30)
# Of the time of stretches, where several key heads are read at once, which makes longer runs of memory, from so many
# megabytes on (unified attention, 120 sizes, 2026-11-29).
RUNS, MUCH = 0.92, 50
# Of a page alone, where head_dim is not the kernel's (three fresh sizes of 80 and 96, 2026-11-30).
ODD = 1.5
OF = 132  # multiprocessors of that GPU


def fills(most):
    """Parts of what the longest context lets expect, held to be equally likely: equal lengths and ragged ones. A cache
    that has only `most` of the pages of equal lengths has ragged ones, or some that sequences share."""
    return (1, RAGGED) if most >= 1 else (max(most, LEAST),)


def of_memory(megabytes, processors, cold_rate, rate):
    return (min(megabytes, COLD) / cold_rate + max(megabytes - COLD, 0) / rate) * OF / processors


def of_clusters(units, pages, rows, head_dim, megabytes, fills, splits, warps, processors):
    """units: contexts of a key head and up to 8 or 16 query heads, of which `rows` is the greatest number. megabytes:
    of keys and values where all contexts are as long as the longest, of `pages`. fills: as of fills()."""
    size = 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256
    each = max(RESIDENT[size, 2 if rows > 8 else 1] // warps, 1)
    at_once = each * processors if splits == 1 else max(int(FITS * each * processors / splits), 1)
    blocks = min(max(units * splits / processors, 1), each)
    page, crowd = PAGE[size]
    page *= 1 if head_dim == size else ODD
    sent = (SEND if splits > 1 else LEAVE) * warps * rows * size / 1024 * blocks
    waits = FIRST + page * (1 + crowd * blocks * warps / 8) * ceil(pages / (splits * warps)) + sent
    parts = DOUBLING * log2(splits) + PART * splits * warps * (splits > 1)
    rounds, times = units / at_once, []
    for fill in fills:
        whole = ceil(rounds) if rounds <= 3 else rounds + 0.5
        turns = whole if fill == 1 else 1 + max(rounds - 1, 0) * fill
        memory = of_memory(fill * megabytes, processors, COLD_RATE, RATE)
        times.append(START + parts + ((turns * waits) ** BEND + memory**BEND) ** (1 / BEND))
    return sum(times) / len(fills)


def of_stretches(rows, head_dim, megabytes, fills, together, processors):
    """together: key heads that are read at once."""
    start = LONG_START + LONG_WIDE * (rows > 8) + LONG_DEEP * (head_dim > 128)
    times = [start + of_memory(fill * megabytes, processors, LONG_COLD_RATE, LONG_RATE) for fill in fills]
    return sum(times) / len(fills) * (RUNS if together > 1 and megabytes >= MUCH else 1)
