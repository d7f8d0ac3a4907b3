"""Which batches the kernel for equal shares takes (attention_shares.cuh), from sizes that the host
knows.

That kernel finds its cut from the lengths, and a second one adds what several multiprocessors have computed of a tile.
Both cost a call a few microseconds more, so it gets them only if it is expected to take clearly less time than by
attention_planning.py. A cache with fewer pages than equal sequences need means a ragged batch. With enough pages it may
be a server's, which has more than a batch needs: equal and ragged sequences then count as equally likely. A batch that
is certainly ragged, with as many query tokens for each sequence, stays with attention_planning.py where that one cuts
nothing and begins with the longest sequences, which comes out even.
"""

import functools
from dataclasses import dataclass, replace

from . import attention_planning as planning
from .attention_planning import CHUNK, ITEM, L2_SPEED, START, TRUSTED, VALUES, Kernel

# The kernels for few rows: of large heads there are some for equal shares alone.
FEW = {**planning.SPLIT, 192: Kernel(64, 64, 400), 256: Kernel(64, 64, 400)}

# Most sequences, tiles of a head and tiles for each multiprocessor; keys of all tiles, which a CTA counts in 32 bits.
MOST_SEQUENCES, MOST_TILES_OF_HEAD, MOST_ROUNDS, MOST_KEYS = 256, 4096, 3, 1 << 30
MOST_PROCESSORS = 256  # a thread of attention_combine.cuh each
LEAST_BLOCKS = 2  # of keys, of the smallest chunk
BEGUN = 12  # numbers about the tile that a CTA has begun
# Seen on an H200. Microseconds of the way to a CTA's share, of its second item, and of 128 x 64 values of a chunk on
# their way through memory; terabyte/s of keys that a single tile reads; what a key of the kernels for few rows takes of
# the time that it is expected to.
FOUND, SECOND, SHARED_VALUES, READ_SPEED, FEW_KEY = 1.5, 2.8, 0.5, 4.4, 0.85
RAGGED = 0.75  # of the pages that equal sequences need: with fewer the batch is ragged; of the query tokens likewise
RAGGED_KEYS = 0.56  # of an equal batch's, in a ragged one
WORTH = 0.85  # of the time that the host's plan is expected to take, what equal shares may take


@dataclass(frozen=True)
class Shares:
    """What the C function takes; the counters and the floats of memory that any lengths need."""

    split: int
    pack: int
    overhead: int
    again: int
    least: int
    trusting: int
    counters: int
    floats: int


@dataclass(frozen=True)
class Shared:
    """A call's work for one of the two kernels (planning.Work), without tiles that equal queries cannot have.

    tile_tokens, heads: query tokens of a tile, tiles of the same tokens. key: microseconds that a multiprocessor takes
    for a key of a tile while all others work too; keys come from memory, but for the further tiles of one sequence.
    chunk: of a chunk's way through memory as planned, shared_chunk: in equal shares.
    """

    work: planning.Work
    filled: float

    def __post_init__(self):
        work, call = self.work, self.work.call
        tokens, heads = work.kernel.rows // work.pack, call.heads // work.pack
        tiles = -(-call.longest_query // tokens)
        runs = first_of(work.runs, call.sequences * tiles * heads)
        computed = 4 * work.kernel.rows * work.size / work.kernel.speed
        read = 4 * work.size * max(1 / L2_SPEED, 1 / (READ_SPEED * tiles))
        values = work.kernel.rows * work.size / (128 * 64)
        for name, value in [("tile_tokens", tokens), ("heads", heads), ("work", replace(work, runs=runs)),
                            ("key", call.processors * max(computed, read) * 1e-6),
                            ("chunk", CHUNK + VALUES * values), ("shared_chunk", CHUNK + SHARED_VALUES * values)]:
            object.__setattr__(self, name, value)

    def plan(self):
        work, call = self.work, self.work.call
        places = 2 * call.processors * work.owners
        return Shares(work.split, work.pack, max(1, round(ITEM / self.key)), round(SECOND / self.key), LEAST_BLOCKS,
                      int(call.longest_keys >= TRUSTED), 0,
                      places * 128 * (work.size // 2 + 4) + BEGUN * call.processors)

    def takes(self):
        """Whether the kernel counts right, whatever the lengths are, and the tiles are few."""
        call, tiles = self.work.call, self.work.tiles
        keys = tiles * (call.longest_keys + self.plan().overhead)
        return (call.sequences <= MOST_SEQUENCES and call.processors <= MOST_PROCESSORS
                and tiles // self.heads <= MOST_TILES_OF_HEAD and keys < MOST_KEYS
                and tiles <= MOST_ROUNDS * call.processors)

    def estimate(self):
        """Microseconds of the call in equal shares. If all sequences may be equally long, the kernel gives each tile as
        many CTAs where that is better."""
        work, processors = self.work, self.work.call.processors
        block = work.kernel.keys * self.key * (FEW_KEY if work.split else 1)
        share = (work.blocks * block * self.filled + work.tiles * ITEM) / processors
        best, of_tile = share + self.shared_chunk + SECOND, processors // self.heads * self.heads // work.tiles
        if self.filled == 1 and of_tile:
            alone = -(-work.longest // of_tile) * block + ITEM + (self.shared_chunk if of_tile > 1 else 0.0)
            best = min(best, alone)
        return START + FOUND + best

    def estimate_planned(self, cut):
        """Microseconds of the call as planned for equal lengths: between the time of the longest item and that of
        equal lengths."""
        work, block = self.work, self.work.kernel.keys * self.key
        items = work.items(work.runs, cut, block, self.chunk)
        equal = planning.makespan(items, work.call.processors)
        parts = max(1, min(cut.chunks, -(-work.longest // cut.chunk_blocks))) if cut.tiles else 1
        longest = ITEM + block * -(-work.longest // parts) + (self.chunk if parts > 1 else 0.0)
        return START + self.filled * equal + (1 - self.filled) * min(equal, longest)


def first_of(runs, tiles):
    """The runs of the first tiles."""
    found = []
    for count, number in runs:
        found.append((count, min(number, tiles)))
        tiles -= found[-1][1]
    return tuple(run for run in found if run[1])


@functools.lru_cache(maxsize=4096)
def plan(pages, *sizes):
    """Shares, where a call is better off with them, or None. pages: of 16 tokens that there are. sizes: of
    a planning.Call. Remembered: calls of the same sizes look it up."""
    call = planning.Call(*sizes)
    filled = min(1.0, pages * 16 / max(call.sequences * call.longest_keys, 1))
    ragged = filled < RAGGED
    fills = (filled,) if ragged else (1.0, RAGGED_KEYS) if call.sequences > 1 else (1.0,)
    shared = [each for each in ([Shared(work, fill) for fill in fills] for work in call.works(FEW)) if each[0].takes()]
    if not shared:
        return None

    def expected(every):
        return sum(map(Shared.estimate, every))

    best = min(reversed(shared), key=expected)  # of two as good ones that for few rows
    work, cut = planning.planned(call)
    if ragged and call.tokens >= RAGGED * call.sequences * call.longest_query and work.sorted(cut):
        return None
    planned = sum(Shared(work, fill).estimate_planned(cut) for fill in fills)
    return best[0].plan() if expected(best) <= WORTH * planned else None
