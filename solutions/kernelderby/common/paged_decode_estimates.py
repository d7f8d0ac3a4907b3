"""Estimates how long the forms of paged decode take, in microseconds, from sizes that the host knows.

Clusters (paged_decode.cu): for each round of clusters that fit on the GPU together, the time in which a warp waits for
its pages, one after the other, and sends its part, or the time to read the cache from memory, if that is longer; in
addition a start, and the time to add all warps' parts. Stretches (paged_decode_long.cu, paged_decode_other.cu,
decode_wide.cu): a start, the contexts of a multiprocessor, the warps' pages or the memory, the parts that the last
multiprocessor of a context adds. Shares (attention_shares.cuh): a start, the tensor cores or the memory, the rounds of
tiles, the parts of a tile.

Constants: NVIDIA H200, calls as CUDA graphs behind an L2 flush, fitted by least squares of logarithms. Clusters:
2026-11-24, 32 sizes of 1 to 256 sequences, 1 to 8 key heads, 256 to 65,536 tokens, 12 to 15 forms of each. The rest:
2026-11-30, 210 random sizes of 1 to 100 sequences, 1 to 16 key heads of 64 to 256 values, 900 to 128,000 tokens, 4 to 9
forms of each; the forms of a size against each other (docs/lab/attention_sm90.md).
"""

from math import ceil, log2
from typing import NamedTuple

SIZES = 64, 96, 128, 192, 256  # of heads
MANY_ROWS = 8  # query heads a key head; with more, a tile of the tensor cores has 16
COLD = 50  # megabytes that push dirty lines out of the L2
RAGGED, LEAST = 0.56, 0.25  # of what the longest context lets expect: in a ragged batch, and at least
MUCH = 50  # megabytes from which the cache's pages count
OF = 132  # multiprocessors of that GPU

# Clusters. head_dim rounded up, columns of 8 query heads -> warps whose registers fit on a multiprocessor.
RESIDENT = {(64, 1): 18, (64, 2): 14, (128, 1): 12, (128, 2): 8, (256, 1): 8}
FITS = 0.94  # of multiprocessors: clusters stay within a part of the GPU, whose sizes are no powers of two
START, DOUBLING, PART = 2.37, 0.17, 0.028  # of a call; for each doubling of blocks; for each warp's part in a cluster
FIRST = 0.7  # of a round
PAGE = {64: 0.78, 96: 0.74, 128: 0.9, 192: 1.26, 256: 1.5}  # of a page alone
ODD = 1.5  # of it, unless 32 divides head_dim
CROWD, DEEP_CROWD = 0.05, 0.35  # how much more beside 7 other warps
SEND, LEAVE = 0.1, 0.025  # of a warp's 8 x 128 sums, in a cluster and in a block
RATES = 2.9, 4.2  # TB/s of the first COLD megabytes and of the others
BEND = 2.7  # how sharply the longer of waiting and memory decides

# Stretches. A call; a context of a multiprocessor, twice with many rows; a warp's page; 8 rows of 128 sums of a part
# that 256 threads add, and what adding in two steps takes; of the memory's time, with several key heads.
LONG_START, LONG_CONTEXT, LONG_RUNS = 5.5, 1.5, 0.99
LONG_PAGE, LONG_ROWS = {64: 0.055, 96: 0.132, 128: 0.126, 192: 0.51, 256: 0.053}, 10
LONG_PART, LONG_STEPS, MOST_PARTS, NEIGHBOURS = 0.097, 2.2, 64, 16  # as in decode_attention.cuh
LONG_RATES = 2.3, 4.6

# Shares: the kernel for many rows and for few, an eighth of a page, a round of tiles, a doubling of a tile's parts.
SHARE_START, SHARE_PAGE = (6.7, 5.3), {64: 1.27, 96: 1.77, 128: 0.6, 192: 0.9, 256: 1.0}
SHARE_TILES, SHARE_PARTS, SHARE_RATES = 2.7, 0.63, (2.4, 4.3)


class Batch(NamedTuple):
    """group: query heads a key head. pages: of the longest context. fills: parts of the keys that equal contexts would
    have, held to be equally likely."""

    sequences: int
    kv_heads: int
    group: int
    head_dim: int
    pages: int
    fills: tuple
    processors: int

    @property
    def size(self):
        """Of heads, as kernels have it."""
        return next((size for size in SIZES if self.head_dim <= size), SIZES[-1])

    @property
    def megabytes(self):
        """Of keys and values where all contexts are as long as the longest."""
        return self.sequences * self.kv_heads * self.pages * 16 * self.head_dim * 4e-6

    def read(self, fill, rates):
        """Microseconds to read that part of keys and values from memory."""
        megabytes, (cold, rate) = fill * self.megabytes, rates
        return (min(megabytes, COLD) / cold + max(megabytes - COLD, 0) / rate) * OF / self.processors

    def each(self, fill):
        """Pages of a key head that each multiprocessor has."""
        return fill * self.pages * self.sequences * self.kv_heads / self.processors

    def mean(self, time_of):
        return sum(map(time_of, self.fills)) / len(self.fills)


def batch_of(sequences, kv_heads, group, head_dim, pages, most, processors):
    """most: of the pages of equal contexts, how many the cache has. With fewer than all there are ragged contexts, or
    some that sequences share; with few keys the longest context decides, not how much there is to read."""
    equal = Batch(sequences, kv_heads, group, head_dim, pages, (1,), processors)
    fills = (1, RAGGED) if most >= 1 or equal.megabytes < MUCH else (max(most, LEAST),)
    return equal._replace(fills=fills)


def together(one, other, bend):
    """The time of two things that go on at once, the longer the more it decides."""
    return (one**bend + other**bend) ** (1 / bend)


def of_clusters(batch, splits, warps):
    """splits: blocks that share a context; warps: of a block, each with a page at a time."""
    size = 64 if batch.head_dim <= 64 else 128 if batch.head_dim <= 128 else 256
    heads = 16 if batch.group > 8 and size <= 128 else 8  # of a block, as in paged_decode.cu
    units, rows = batch.sequences * batch.kv_heads * ceil(batch.group / heads), min(batch.group, heads)
    each = max(RESIDENT[size, 2 if rows > 8 else 1] // warps, 1)
    at_once = each * batch.processors if splits == 1 else max(int(FITS * each * batch.processors / splits), 1)
    blocks = min(max(units * splits / batch.processors, 1), each)
    sent = (SEND if splits > 1 else LEAVE) * warps * rows * size / 1024 * blocks
    page = PAGE[batch.size] * (ODD if batch.head_dim % 32 else 1)
    crowd = 1 + (DEEP_CROWD if size == 256 else CROWD) * blocks * warps / 8
    waits = FIRST + page * crowd * ceil(batch.pages / (splits * warps)) + sent
    parts = DOUBLING * log2(splits) + PART * splits * warps * (splits > 1)
    rounds = units / at_once
    whole = ceil(rounds) if rounds <= 3 else rounds + 0.5

    def time_of(fill):
        turns = whole if fill == 1 else 1 + max(rounds - 1, 0) * fill
        return START + parts + together(turns * waits, batch.read(fill, RATES), BEND)

    return batch.mean(time_of)


def of_stretches(batch, heads):
    """heads: key heads that a multiprocessor reads together."""
    many = batch.group > MANY_ROWS
    teams = 4 if batch.size > 128 else 8
    warps = 8 if batch.size == 256 and many else teams  # of a multiprocessor: decode_wide.cu has two a team
    contexts = batch.sequences * batch.kv_heads / (heads * batch.processors)
    parts = max(1 / contexts, 1)
    added = 0 if parts == 1 else parts if parts <= MOST_PARTS else NEIGHBOURS + parts / NEIGHBOURS
    add = LONG_PART * added * heads * batch.group * batch.size / 1024 * 8 / warps + LONG_STEPS * (parts > MOST_PARTS)
    page, runs = LONG_PAGE[batch.size] * (LONG_ROWS if many else 1), LONG_RUNS if heads > 1 else 1
    return LONG_START + LONG_CONTEXT * max(contexts, 1) * (1 + many) + add + batch.mean(
        lambda fill: together(page * batch.each(fill) / teams, batch.read(fill, LONG_RATES) * runs, 3))


def of_shares(batch, few):
    """few: whether by the kernel for few rows."""
    tiles = batch.sequences * batch.kv_heads / batch.processors
    ends = SHARE_TILES * max(tiles, 1) + SHARE_PARTS * log2(max(1 / tiles, 1))
    return SHARE_START[few] + ends + batch.mean(
        lambda fill: max(SHARE_PAGE[batch.size] * batch.each(fill) / 8, batch.read(fill, SHARE_RATES)))
