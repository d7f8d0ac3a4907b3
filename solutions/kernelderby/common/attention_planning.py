"""How a call of the attention kernels is cut into work for the multiprocessors: from sizes that the host knows.

Tiles are rows of queries of one head, or of a group of heads that read the same keys (`pack`). An item of work is a
tile with all its keys or with a chunk of them; items are given out one after the other, longest first, to whoever is
nearly through. A few hundred tiles do not come out even over 132 multiprocessors, and in a short causal sequence the
longest tile alone takes longer than a fair share of all: there tiles are cut into chunks, for the price of results that
go through memory. Of several sequences the host knows the longest alone; the kernel puts them in order.
"""

import functools
import heapq
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from . import workspaces

MOST_FLOATS = 1 << 26  # of memory for chunks: 256 MB
L2_SHARE = 24e6  # bytes of keys and values that are worked on at the same time, of 50 to 60 MB of L2
MOST_TILES = 4096  # with more, what the last ones cost does not show
# Seen on an H200: terabyte/s from the L2; microseconds of a launch, of an item, and of a chunk's way through memory, in
# all and for each 128 x 64 values.
L2_SPEED, START, ITEM, CHUNK, VALUES = 6.5, 7.0, 1.2, 2.0, 2.0
# For the longest tiles in two: more for every item of a multiprocessor but its first, a half's way through memory (they
# are given out first, so others work meanwhile), what they must save.
NEXT, HALF, HALF_VALUES, WORTH = 1.8, 1.0, 0.7, 1.01
# Sequences that the kernel puts in order, which takes it some 20 ns each: at most, and for each tile of keys of the
# longest, so that it is no more than a third of that one's time.
MOST_SORTED, SORTED = 256, 17
# Keys of the longest sequence from which weights may be those of a near score instead of the largest one: 10 to 14 %
# faster, with an error 1 to 9 % above FlashAttention 3's (docs/lab/attention_sm90.md).
TRUSTED = 8000

# For equal shares (attention_shares.cuh): most sequences, tiles of a head and tiles for each multiprocessor; keys of all
# tiles, which a CTA counts in 32 bits; blocks of the smallest chunk; microseconds of the way to a CTA's share and of its
# second item; terabyte/s of keys that a single tile reads; of a batch's pages, how many may be missing until it is taken
# to be ragged; what equal shares may cost a batch that may have equal lengths.
MOST_IN_SHARES, MOST_TILES_OF_HEAD, MOST_ROUNDS, MOST_KEYS, LEAST_BLOCKS = 256, 4096, 8, 1 << 30, 2
SHARED, SECOND, READ_SPEED = 1.5, 2.8, 4.4
RAGGED, NO_WORSE = 0.75, 1.02


@dataclass(frozen=True)
class Kernel:
    """rows of queries and keys in a tile; teraflop/s that it reaches with many tiles on an H200."""

    rows: int
    keys: int
    speed: float


# As in attention_shape.cuh: of each head size the kernel for many rows, and the one for few (`split`), for which large
# heads leave too few registers.
WIDE = {64: Kernel(192, 128, 520), 72: Kernel(192, 128, 580), 80: Kernel(192, 112, 600), 96: Kernel(192, 96, 560),
        128: Kernel(128, 128, 700), 192: Kernel(128, 112, 680), 256: Kernel(128, 80, 740)}
SPLIT = {64: Kernel(64, 64, 280), 72: Kernel(64, 64, 310), 80: Kernel(64, 64, 320), 96: Kernel(64, 64, 340),
         128: Kernel(64, 64, 420)}


class Cut(NamedTuple):
    """Tiles whose keys are cut: so many from the first one on, into so many chunks at most, of so many blocks."""

    first: int
    tiles: int
    chunks: int
    chunk_blocks: int


UNCUT = Cut(0, 0, 1, 1 << 20)


@dataclass(frozen=True)
class Plan:
    """What the C function takes; the counters of cut tiles and the floats of memory that their chunks need."""

    split: int
    pack: int
    section_heads: int
    cut: Cut
    sorted: int
    trusting: int
    counters: int
    floats: int


@dataclass(frozen=True)
class Shares:
    """What the C function for equal shares takes; the counters and the floats of memory that any lengths need."""

    split: int
    pack: int
    overhead: int
    again: int
    least: int
    trusting: int
    counters: int
    floats: int


@dataclass(frozen=True)
class Call:
    """Sizes of a call. longest_query, longest_keys: of a sequence."""

    tokens: int
    sequences: int
    longest_query: int
    longest_keys: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    processors: int

    @property
    def size(self):
        """The head size of the kernels that take head_dim: columns past it are zeros."""
        return next(size for size in WIDE if self.head_dim <= size)

    def works(self):
        return [self.work(split) for split in (0, 1) if self.size in (WIDE, SPLIT)[split]]

    def tile_lengths(self, tile_tokens):
        """Keys that each tile of one head sees, the last rows first. Of several sequences all are taken to be as long
        as the longest, as many as there are tokens for."""
        queries = self.tokens if self.sequences == 1 else self.longest_query
        one = [self.longest_keys - (behind if self.causal else 0) for behind in range(0, queries, tile_tokens)]
        tiles = len(one) if self.sequences == 1 else self.tokens // tile_tokens + self.sequences
        return [one[tile % len(one)] for tile in range(tiles)]

    def work(self, split):
        """The call's work for one of the two kernels."""
        size, group = self.size, self.heads // self.kv_heads
        kernel = (SPLIT if split else WIDE)[size]
        pack = group if self.causal and group <= kernel.rows else 1
        blocks = tuple(-(-length // kernel.keys) for length in self.tile_lengths(kernel.rows // pack)
                       for _ in range(self.heads // pack))
        return Work(self, kernel, split, pack, size, blocks)


@dataclass(frozen=True)
class Work:
    """A call's tiles in one kernel. size: the kernel's head size. blocks: tiles of keys that each tile sees, in the
    order in which they are given out."""

    call: Call
    kernel: Kernel
    split: int
    pack: int
    size: int
    blocks: tuple

    @property
    def owners(self):
        """Warpgroups with rows of their own."""
        return 1 if self.split else self.kernel.rows // 64

    @property
    def key(self):
        """Microseconds that a multiprocessor takes for a key of a tile, while all others work too."""
        computed = 4 * self.kernel.rows * self.size / self.kernel.speed * 1e-6
        return self.call.processors * max(computed, 4 * self.size / L2_SPEED * 1e-6)

    @property
    def chunk(self):
        """Microseconds of a chunk's way through memory."""
        return CHUNK + VALUES * self.kernel.rows * self.size / (128 * 64)

    def floats(self, cut):
        return cut.tiles * cut.chunks * self.owners * 128 * (self.size // 2 + 4)

    def cuts(self):
        """Cuts worth trying: none, all tiles, those that do not fill the last round."""
        yield UNCUT
        if len(self.blocks) > MOST_TILES:
            return
        longest, rounds = max(self.blocks), len(self.blocks) // self.call.processors * self.call.processors
        for first in sorted({0, rounds} - {len(self.blocks)} if len(set(self.blocks)) == 1 else {0}):
            for chunks in range(2, min(longest, 16) + 1):
                cut = Cut(first, len(self.blocks) - first, chunks, -(-longest // chunks))
                if self.floats(cut) <= MOST_FLOATS:
                    yield cut

    def halves(self):
        """The longest tiles of a causal sequence in two."""
        longest = max(self.blocks)
        if not self.call.causal or self.call.sequences > 1 or len(self.blocks) > MOST_TILES:
            return
        for least in range(longest, longest // 2, -max(1, longest // 16)):
            cut = Cut(0, sum(count >= least for count in self.blocks), 2, -(-longest // 2))
            if cut.tiles < len(self.blocks) and self.floats(cut) <= MOST_FLOATS:
                yield cut

    def in_halves(self):
        """Of an uncut call: the best of `halves`, or UNCUT where none ends sooner."""
        halves = [(self.estimate(cut, NEXT) * WORTH, cut) for cut in self.halves()]
        return min([(self.estimate(UNCUT, NEXT), UNCUT), *halves])[1]

    def estimate(self, cut, between=0.0, key=None):
        """Microseconds of the whole call. between: of a multiprocessor's items. key: of a key, if not `key`."""
        kernel, processors = self.kernel, self.call.processors
        block = kernel.keys * (key or self.key)
        if len(self.blocks) > MOST_TILES:
            return START + sum(self.blocks) * block / processors
        values = kernel.rows * self.size / (128 * 64)
        halves = cut.first == 0 and 0 < cut.tiles < len(self.blocks)
        chunk = HALF + HALF_VALUES * values if halves else self.chunk
        items = []
        for tile, count in enumerate(self.blocks):
            inside = cut.first <= tile < cut.first + cut.tiles
            parts = max(1, min(cut.chunks, -(-count // cut.chunk_blocks))) if inside else 1
            items += [ITEM + block * -(-count // parts) + (chunk if parts > 1 else 0.0)] * parts
        return START + makespan(items, processors, between)

    @property
    def tile_tokens(self):
        return self.kernel.rows // self.pack

    @property
    def heads(self):
        """Tiles of the same rows."""
        return self.call.heads // self.pack

    def without_spare(self):
        """The work without tiles that a batch cannot have if its queries are equally long."""
        most = self.call.sequences * -(-self.call.longest_query // self.tile_tokens) * self.heads
        return replace(self, blocks=self.blocks[:most])

    @property
    def key_in_shares(self):
        """As `key`, where CTAs read keys at other times: from memory, but for the tiles of one sequence."""
        tiles = -(-self.call.longest_query // self.tile_tokens)
        return max(self.key, self.call.processors * 4 * self.size / (READ_SPEED * tiles) * 1e-6)

    def takes_shares(self):
        """Whether the kernel for equal shares counts right, whatever the lengths are, and the tiles are few."""
        call, tiles = self.call, len(self.blocks) // self.heads
        keys = len(self.blocks) * (call.longest_keys + self.shares().overhead)
        return (1 < call.sequences <= MOST_IN_SHARES and tiles <= MOST_TILES_OF_HEAD and keys < MOST_KEYS
                and len(self.blocks) <= MOST_ROUNDS * call.processors)

    def shares(self):
        call, owners = self.call, self.owners
        return Shares(self.split, self.pack, max(1, round(ITEM / self.key_in_shares)),
                      round(SECOND / self.key_in_shares), LEAST_BLOCKS, int(call.longest_keys >= TRUSTED),
                      4 * call.processors * owners, 2 * call.processors * owners * 128 * (self.size // 2 + 4))

    def estimate_in_shares(self, filled):
        """Microseconds of the call in equal shares. filled: of the keys that all sequences may have; 1: all are equally
        long, so the kernel gives each tile as many CTAs where that is better."""
        block, processors = self.kernel.keys * self.key_in_shares, self.call.processors
        share = (sum(self.blocks) * block * filled + len(self.blocks) * ITEM) / processors
        best, of_tile = share + self.chunk + SECOND, processors // self.heads * self.heads // len(self.blocks)
        if filled == 1 and of_tile:
            whole = -(-max(self.blocks) // of_tile) * block + ITEM + (self.chunk if of_tile > 1 else 0.0)
            best = min(best, whole)
        return START + SHARED + best

    def estimate_ragged(self, cut, filled):
        """Microseconds of the call with this cut, where sequences have so many of the keys that they may have: between
        the time of the longest item and that of equal lengths."""
        equal, longest = self.estimate(cut, key=self.key_in_shares), max(self.blocks)
        parts = min(cut.chunks, -(-longest // cut.chunk_blocks)) if cut.tiles else 1
        block = self.kernel.keys * self.key_in_shares
        alone = START + ITEM + block * -(-longest // parts) + (self.chunk if parts > 1 else 0.0)
        return filled * equal + (1 - filled) * min(alone, equal)

    def sorted(self, cut):
        """1: the sequences with most keys first. Not where tiles are cut or small, which come out even anyway."""
        few = self.call.sequences <= min(MOST_SORTED, SORTED * max(self.blocks))
        return int(1 < self.call.sequences and few and cut == UNCUT and not self.split)

    def plan(self, cut):
        call = self.call
        together = max(1, min(call.kv_heads, int(L2_SHARE // max(1, 4 * call.longest_keys * call.head_dim))))
        return Plan(self.split, self.pack, together * (call.heads // call.kv_heads // self.pack), cut,
                    self.sorted(cut), int(call.longest_keys >= TRUSTED), cut.tiles * self.owners, self.floats(cut))


def makespan(items, processors, between=0.0):
    """Microseconds until all items are done, each taken by the first that is free. between: one item and the next."""
    free = [0.0] * min(processors, max(1, len(items)))
    for item in items:
        heapq.heapreplace(free, free[0] + item + (between if free[0] else 0.0))
    return max(free)


@functools.lru_cache(maxsize=16)
def best_cut(call):
    """(work, cut) that should take the least time."""
    works = call.works()
    best = min((work.estimate(cut), work.split, cut) for work in works for cut in work.cuts())
    work, cut = works[best[1]], best[2]
    return work, work.in_halves() if cut == UNCUT else cut


@functools.lru_cache(maxsize=4096)
def plan(*sizes):
    """The plan that should take the least time. sizes: of a Call. Remembered: calls of the same sizes look it up."""
    work, cut = best_cut(Call(*sizes))
    return work.plan(cut)


@functools.lru_cache(maxsize=4096)
def plan_shares(pages, *sizes):
    """Shares, where several sequences are better off with them, or None. pages: of 16 tokens that there are. Fewer than
    equal sequences need mean a ragged batch; otherwise lengths may be equal, which must not take longer than before."""
    call = Call(*sizes)
    works = [work.without_spare() for work in call.works() if work.takes_shares()]
    if not works:
        return None
    filled = min(1.0, pages * 16 / (call.sequences * call.longest_keys))
    filled = filled if filled < RAGGED else 1
    best = min(works, key=lambda work: work.estimate_in_shares(filled))
    work, cut = best_cut(call)
    work = work.without_spare()
    cut = cut._replace(tiles=max(0, min(cut.tiles, len(work.blocks) - cut.first)))
    before = work.estimate_ragged(cut, filled) * (NO_WORSE if filled == 1 else 1)
    return best.shares() if best.estimate_in_shares(filled) <= before else None


class Workspace:
    """Counters, and memory for chunks."""

    def __init__(self):
        self.workspace = workspaces.Workspace(torch.float32)

    def __call__(self, device, made):
        """(counters int32, partials float32) for a call by a plan."""
        return self.workspace(device, 2 + made.counters, max(made.floats, 1)).tensors


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count
