"""How a call of the attention kernels is cut into work for the multiprocessors: from sizes that the host knows.

Tiles are rows of queries of one head, or of a group of heads that read the same keys (`pack`). An item of work is a
tile with all its keys or with a chunk of them; items are given out one after the other, longest first, to whoever is
nearly through. A few hundred tiles do not come out even over 132 multiprocessors, and in a short causal sequence the
longest tile alone takes longer than a fair share of all: there tiles are cut into chunks, for the price of results that
go through memory. Of several sequences the host knows the longest alone; the kernel puts them in order.
"""

import functools
import heapq
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from . import workspaces

MOST_FLOATS = 1 << 26  # of memory for chunks: 256 MB
L2_SHARE = 24e6  # bytes of keys and values that are worked on at the same time, of 50 to 60 MB of L2
MOST_TILES = 4096  # with more, what the last ones cost does not show
ROUNDED = 1 - 1e-9  # a sum of times may be off by so much
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

    def works(self, few=None):
        """The call's work for each kernel of its head size. few: those for few rows, if not SPLIT."""
        kernels = WIDE, few or SPLIT
        return [self.work(split, kernels[split][self.size]) for split in (0, 1) if self.size in kernels[split]]

    def tile_lengths(self, tile_tokens):
        """Keys that each tile of one head sees, the last rows first. Of several sequences all are taken to be as long
        as the longest, as many as there are tokens for."""
        queries = self.tokens if self.sequences == 1 else self.longest_query
        one = [self.longest_keys - (behind if self.causal else 0) for behind in range(0, queries, tile_tokens)]
        tiles = len(one) if self.sequences == 1 else self.tokens // tile_tokens + self.sequences
        return [one[tile % len(one)] for tile in range(tiles)]

    def work(self, split, kernel):
        """The call's work for one of the two kernels."""
        size, group = self.size, self.heads // self.kv_heads
        pack = group if self.causal and group <= kernel.rows else 1
        blocks = itertools.groupby(-(-length // kernel.keys) for length in self.tile_lengths(kernel.rows // pack))
        runs = tuple((count, sum(1 for _ in alike) * (self.heads // pack)) for count, alike in blocks)
        return Work(self, kernel, split, pack, size, runs)


@dataclass(frozen=True)
class Work:
    """A call's tiles in one kernel. size: the kernel's head size. runs: (tiles of keys that a tile sees, neighbouring
    tiles that see as many), in the order in which they are given out."""

    call: Call
    kernel: Kernel
    split: int
    pack: int
    size: int
    runs: tuple

    @functools.cached_property
    def tiles(self):
        return sum(number for _, number in self.runs)

    @functools.cached_property
    def counted(self):
        """As runs, but each count once."""
        found = {}
        for count, number in self.runs:
            found[count] = found.get(count, 0) + number
        return tuple(found.items())

    @functools.cached_property
    def longest(self):
        return max(count for count, _ in self.runs)

    @functools.cached_property
    def blocks(self):
        """Tiles of keys that all tiles see."""
        return sum(count * number for count, number in self.runs)

    @property
    def owners(self):
        """Warpgroups with rows of their own."""
        return 1 if self.split else self.kernel.rows // 64

    def floats(self, cut):
        return cut.tiles * cut.chunks * self.owners * 128 * (self.size // 2 + 4)

    def cuts(self):
        """Cuts worth trying: none, all tiles, those that do not fill the last round."""
        yield UNCUT
        if self.tiles > MOST_TILES:
            return
        longest, rounds = self.longest, self.tiles // self.call.processors * self.call.processors
        for first in sorted({0, rounds} - {self.tiles} if len(self.counted) == 1 else {0}):
            for chunks in range(2, min(longest, 16) + 1):
                cut = Cut(first, self.tiles - first, chunks, -(-longest // chunks))
                if self.floats(cut) <= MOST_FLOATS:
                    yield cut

    def halves(self):
        """The longest tiles of a causal sequence in two."""
        longest = self.longest
        if not self.call.causal or self.call.sequences > 1 or self.tiles > MOST_TILES:
            return
        for least in range(longest, longest // 2, -max(1, longest // 16)):
            tiles = sum(number for count, number in self.runs if count >= least)
            cut = Cut(0, tiles, 2, -(-longest // 2))
            if cut.tiles < self.tiles and self.floats(cut) <= MOST_FLOATS:
                yield cut

    def in_halves(self):
        """Of an uncut call: the best of `halves`, or UNCUT where none ends sooner."""
        halves = [(self.estimate(cut, NEXT) * WORTH, cut) for cut in self.halves()]
        return min([(self.estimate(UNCUT, NEXT), UNCUT), *halves])[1]

    def estimate(self, cut, between=0.0, enough=math.inf):
        """Microseconds of the whole call; infinity where they are certainly more than `enough`. between: of a
        multiprocessor's items."""
        kernel, processors = self.kernel, self.call.processors
        computed = 4 * kernel.rows * self.size / kernel.speed * 1e-6
        block = kernel.keys * processors * max(computed, 4 * self.size / L2_SPEED * 1e-6)
        if self.tiles > MOST_TILES:
            return START + self.blocks * block / processors
        values = kernel.rows * self.size / (128 * 64)
        halves = cut.first == 0 and 0 < cut.tiles < self.tiles
        chunk = HALF + HALF_VALUES * values if halves else CHUNK + VALUES * values
        in_any_order = self.counted if cut.tiles in (0, self.tiles) else self.runs
        items = self.items(in_any_order, cut, block, chunk)
        least = max(sum(duration * number for duration, number in items) / processors, max(items)[0])
        if (START + least) * ROUNDED > enough:
            return math.inf
        return START + makespan(self.items(self.runs, cut, block, chunk), processors, between)

    def items(self, runs, cut, block, chunk):
        """[(microseconds, neighbouring items that take as long)] of all tiles. block: microseconds of a tile of keys.
        chunk: of a chunk's way through memory."""
        found, place = [], 0
        for count, number in runs:
            parts = max(1, min(cut.chunks, -(-count // cut.chunk_blocks)))
            begin, end = (min(max(edge - place, 0), number) for edge in (cut.first, cut.first + cut.tiles))
            whole = ITEM + block * count
            part = ITEM + block * -(-count // parts) + (chunk if parts > 1 else 0.0)
            found += [(whole, begin), (part, (end - begin) * parts), (whole, number - end)]
            place += number
        return [run for run in found if run[1]]

    def sorted(self, cut):
        """1: the sequences with most keys first. Not where tiles are cut or small, which come out even anyway."""
        few = self.call.sequences <= min(MOST_SORTED, SORTED * self.longest)
        return int(1 < self.call.sequences and few and cut == UNCUT and not self.split)

    def plan(self, cut):
        call = self.call
        together = max(1, min(call.kv_heads, int(L2_SHARE // max(1, 4 * call.longest_keys * call.head_dim))))
        return Plan(self.split, self.pack, together * (call.heads // call.kv_heads // self.pack), cut,
                    self.sorted(cut), int(call.longest_keys >= TRUSTED), cut.tiles * self.owners, self.floats(cut))


def makespan(items, processors, between=0.0):
    """Microseconds until all items are done, each taken by the first processor that is free. items: (microseconds, how
    many of them in a row). between: one item and the next of a processor."""
    free = [(0.0, max(1, min(processors, sum(number for _, number in items))))]  # since when, how many processors
    for duration, number in items:
        while number:
            since, alike = heapq.heappop(free)
            taken = min(number, alike)
            number -= taken
            if taken < alike:
                heapq.heappush(free, (since, alike - taken))
            heapq.heappush(free, (since + duration + (between if since else 0.0), taken))
    return max(since for since, _ in free)


@functools.lru_cache(maxsize=4096)
def planned(call):
    """(work, cut) that should take the least time. Remembered, since equal shares are compared with it."""
    works, best = call.works(), (math.inf,)
    for work in works:
        for cut in work.cuts():
            best = min(best, (work.estimate(cut, enough=best[0]), work.split, cut))
    _, split, cut = best
    return works[split], works[split].in_halves() if cut == UNCUT else cut


@functools.lru_cache(maxsize=4096)
def plan(*sizes):
    """The plan that should take the least time. sizes: of a Call. Remembered: calls of the same sizes look it up."""
    work, cut = planned(Call(*sizes))
    return work.plan(cut)


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
