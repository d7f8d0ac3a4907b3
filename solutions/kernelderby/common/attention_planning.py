"""How a call of the attention kernels is cut into work for the multiprocessors: from sizes that the host knows.

Tiles are rows of queries of one head, or of a group of heads that read the same keys (`pack`). An item of work is a tile
with all its keys or with a chunk of them; items are given out one after the other, longest first. A few hundred tiles
do not come out even over 132 multiprocessors, and in a short causal sequence the longest tile alone takes longer than a
fair share of all: there tiles are cut into chunks, for the price of results that go through memory.
"""

import functools
import heapq
from dataclasses import dataclass

import torch

MOST_FLOATS = 1 << 26  # of memory for chunks: 256 MB
L2_SHARE = 24e6  # bytes of keys and values that are worked on at the same time, of 50 to 60 MB of L2
MOST_TILES = 4096  # with more, what the last ones cost does not show
L2_SPEED = 5.0  # terabyte/s
START, ITEM, COMBINED = 7.0, 1.2, 1.6  # microseconds of a launch, of an item, of a chunk's way through memory a 128 x 64 part


@dataclass(frozen=True)
class Kernel:
    """rows of queries, keys in a tile; teraflop/s that it reaches with many tiles."""

    rows: int
    keys: int
    speed: float


# As in kernel.cu: of each head size the kernel for many rows, and the one for few (`split`).
WIDE = {64: Kernel(192, 128, 480), 72: Kernel(192, 128, 560), 80: Kernel(192, 112, 560), 96: Kernel(192, 96, 560),
        128: Kernel(128, 128, 660), 192: Kernel(128, 112, 620), 256: Kernel(128, 80, 620)}
SPLIT = {64: Kernel(64, 64, 170), 72: Kernel(64, 64, 190), 80: Kernel(64, 64, 200), 96: Kernel(64, 64, 230),
         128: Kernel(64, 64, 290), 192: Kernel(64, 64, 300), 256: Kernel(64, 48, 340)}


@dataclass(frozen=True)
class Plan:
    """What the C function takes; the counters of cut tiles and the floats of memory that their chunks need."""

    split: int
    pack: int
    section_heads: int
    whole_tiles: int
    chunks: int
    chunk_blocks: int
    counters: int
    floats: int


def rounded_head_dim(head_dim):
    return next(size for size in WIDE if head_dim <= size)


def tile_lengths(tile_tokens, tokens, sequences, longest_query, longest_keys, causal):
    """Keys that each tile of one head sees, the last rows first. Of several sequences all are taken to be as long as the
    longest, as many as there are tokens for."""
    queries = tokens if sequences == 1 else longest_query
    one = [longest_keys - (queries - min(queries, first + tile_tokens) if causal else 0)
           for first in range(0, queries, tile_tokens)]
    tiles = len(one) if sequences == 1 else tokens // tile_tokens + sequences
    return [one[tile % len(one)] for tile in range(tiles - 1, -1, -1)]


def makespan(items, processors):
    """Microseconds until all items are done, each taken by the first that is free."""
    free = [0.0] * min(processors, max(1, len(items)))
    for item in items:
        heapq.heappushpop(free, free[0] + item)
    return max(free)


def cuts(blocks, processors):
    """(whole_tiles, chunks, chunk_blocks) worth trying: none, all tiles, those that do not fill the last round."""
    yield len(blocks), 1, 1 << 20
    longest = max(blocks)
    rounds = len(blocks) // processors * processors
    for whole in sorted({0, rounds} if len(set(blocks)) == 1 else {0}):
        for chunks in range(2, min(longest, 16) + 1):
            yield whole, chunks, -(-longest // chunks)


@dataclass(frozen=True)
class Shape:
    """One kernel on one call: its tiles, and what an item of work costs in microseconds."""

    kernel: Kernel
    split: int
    pack: int
    head_dim: int
    blocks: tuple
    processors: int

    @property
    def owners(self):
        """Warpgroups with rows of their own."""
        return 1 if self.split else self.kernel.rows // 64

    def floats(self, whole, chunks):
        return (len(self.blocks) - whole) * chunks * self.owners * 128 * (self.head_dim // 2 + 4) if chunks > 1 else 0

    def estimate(self, whole, chunks, chunk_blocks):
        """Microseconds of the whole call."""
        kernel = self.kernel
        computed = 4 * kernel.rows * self.head_dim / kernel.speed * 1e-6
        block = kernel.keys * self.processors * max(computed, 4 * self.head_dim / L2_SPEED * 1e-6)
        if len(self.blocks) > MOST_TILES:
            return START + sum(self.blocks) * block / self.processors
        combined = COMBINED * kernel.rows * self.head_dim / (128 * 64)
        items = []
        for tile, count in enumerate(self.blocks):
            parts = 1 if tile < whole else max(1, min(chunks, -(-count // chunk_blocks)))
            items += [ITEM + block * count / parts + (combined if parts > 1 else 0.0)] * parts
        return START + makespan(items, self.processors)

    def best(self):
        """(microseconds, cut)"""
        found = list(cuts(self.blocks, self.processors)) if len(self.blocks) <= MOST_TILES else []
        whole = (len(self.blocks), 1, 1 << 20)
        return min((self.estimate(*cut), cut) for cut in [whole, *found] if self.floats(*cut[:2]) <= MOST_FLOATS)


@functools.lru_cache(maxsize=4096)
def plan(tokens, sequences, longest_query, longest_keys, heads, kv_heads, head_dim, causal, processors):
    """The plan that should take the least time. Remembered: calls of the same sizes look it up."""
    size, group = rounded_head_dim(head_dim), heads // kv_heads
    shapes = []
    for split, kernel in enumerate((WIDE[size], SPLIT[size])):
        pack = group if causal and group <= kernel.rows else 1
        lengths = tile_lengths(kernel.rows // pack, tokens, sequences, longest_query, longest_keys, causal)
        blocks = tuple(-(-length // kernel.keys) for length in lengths for _ in range(heads // pack))
        shapes.append(Shape(kernel, split, pack, size, blocks, processors))
    (_, (whole, chunks, chunk_blocks)), shape = min(((shape.best(), shape) for shape in shapes), key=lambda pair: pair[0])
    together = max(1, min(kv_heads, int(L2_SHARE // max(1, 4 * longest_keys * head_dim)))) * (group // shape.pack)
    counters = (len(shape.blocks) - whole) * shape.owners
    return Plan(shape.split, shape.pack, together, whole, chunks, chunk_blocks, counters, shape.floats(whole, chunks))


class Workspace:
    """What a stream keeps between calls: counters that every call leaves at zero, and memory for chunks. Two streams
    could use it at the same time, so each has its own. It grows to what is needed; what it had stays, since a captured
    graph may still use it."""

    def __init__(self):
        self.kept = {}

    def grown(self, place, name, count, make):
        held = self.kept.setdefault((*place, name), [])
        if not held or held[-1].numel() < count:
            held.append(make(max(1024, count, 2 * held[-1].numel() if held else 0)))
        return held[-1]

    def __call__(self, device, made):
        """(counters int32, partials float32) for the current stream and a plan."""
        place = device, torch.cuda.current_stream(device).cuda_stream
        counters = self.grown(place, "counters", 2 + made.counters,
                              lambda count: torch.zeros(count, dtype=torch.int32, device=device))
        return counters, self.grown(place, "partials", made.floats,
                                    lambda count: torch.empty(count, dtype=torch.float32, device=device))


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count
