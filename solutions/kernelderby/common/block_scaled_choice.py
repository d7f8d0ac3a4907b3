"""Chooses the form of the block-scaled GEMM for a shape: the one with the least time by a model.

The model holds no table of shapes. CTAs run in waves, as many at a time as there is room for. A wave takes as long as
its products or its reads, whichever is longer; reads are slower if too few bytes are on their way. Its constants are
fitted to times on an H200 at 1.755 GHz (docs/lab/gemm_and_experts_sm90.md).
"""

import functools
from dataclasses import dataclass

import torch

BLOCK = 128
L2 = 50e6      # bytes
MANY = 16384   # rows from which the tail does not matter
FEW = {5: 1, 6: 2, 7: 4, 8: 8}  # variants of block_scaled_few.cuh: CTAs that share a tile's k blocks
MOST_BLOCKS = 40  # of each, as there


@dataclass(frozen=True)
class Form:
    """A form of block_scaled_launch.cuh: rows and columns that a cluster computes at a time, its CTAs, the bytes that a
    stage of all of them loads, stages, cycles of a k block."""

    rows: int
    columns: int
    ctas: int
    loaded: int
    stages: int
    block: float


FORMS = {0: Form(256, 256, 2, 128 * 512, 4, 1212.6), 1: Form(192, 256, 2, 128 * 448, 4, 922.5),
         2: Form(128, 128, 1, 128 * 256, 6, 654.3), 3: Form(64, 128, 1, 128 * 192, 6, 480.7),
         4: Form(128, 128, 2, 128 * 256, 6, 560.0)}
FEW_ROWS, FEW_COLUMNS, FEW_STAGES, FEW_BLOCK = 64, 128, 4, 550.3
# Cycles, bytes and bytes a cycle, of a CTA or multiprocessor unless something else is said.
BEGIN = 4882     # until the first products
END = 1277       # from a tile's last product until its output has left, without what follows
OUT = 26.07      # bytes of output
JOIN, WIDER = 1423, 427  # cluster barriers of CTAs that share a tile, and for each of these CTAs
BOTH = 1.962     # how much longer two CTAs on one multiprocessor take
AGAIN = 9142     # a whole wave of such CTAs more
HALF = 0.567     # a turn of tiles of half the rows
MEMORY = 2307    # bytes from memory, of the whole GPU
DIRTY = 0.3035   # bytes written back for each of the first that L2 takes in
IN_FLIGHT, THIN = 7.941e6, 0.3547  # bytes on their way that keep memory busy; a power


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def divided(a, b):
    return -(-a // b)


def fits(variant, k):
    """Whether the kernel takes k values with this variant."""
    splits = FEW.get(variant, 1)
    return variant not in FEW or (splits <= k // BLOCK and divided(k // BLOCK, splits) <= MOST_BLOCKS)


def waves_of_few(m, n, splits, blocks, count):
    """(CTAs in all, cycles of a tile's end, bytes of a CTA on their way, [(waves, CTAs of each, cycles)])."""
    ctas = divided(m, FEW_ROWS) * divided(n, FEW_COLUMNS) * splits
    end = END + FEW_ROWS * FEW_COLUMNS * 4 / splits / OUT + (JOIN + WIDER * splits if splits > 1 else 0)
    loaded = 128 * (min(FEW_ROWS, divided(m, 8) * 8) + FEW_COLUMNS) * min(FEW_STAGES, blocks)
    whole, rest = divmod(ctas, 2 * count)
    busy = blocks * FEW_BLOCK
    last = busy * BOTH if rest > count else busy
    return ctas, end, loaded, [(whole, 2 * count, busy * BOTH + AGAIN), (1, rest, last)]


def waves_of(form, m, n, blocks, count):
    """The same of a form whose CTAs stay, in clusters."""
    units, room = divided(m, form.rows) * divided(n, form.columns), max(count // form.ctas, 1)
    end = END + form.rows * form.columns // form.ctas * 4 / OUT
    whole, rest = divmod(units, room)
    busy = blocks * form.block
    last = busy * HALF if form.rows == 256 and 2 * rest <= room else busy
    return units, end, form.loaded * min(form.stages, blocks), [(whole, room, busy), (1, rest, last)]


def cycles(variant, m, n, k, count):
    """Cycles of one call on a GPU of `count` multiprocessors, by the model."""
    splits = FEW.get(variant)
    blocks = divided(k // BLOCK, splits or 1)
    units, end, loaded, waves = (waves_of_few(m, n, splits, blocks, count) if splits
                                 else waves_of(FORMS[variant], m, n, blocks, count))
    moved = m * k + n * k + 4 * m * n
    moved += DIRTY * min(moved, L2)
    total = BEGIN
    for times, together, busy in waves:
        if times and together:
            read = moved * together / units / MEMORY / min(1.0, (together * loaded / IN_FLIGHT) ** THIN)
            total += times * (max(busy, read) + end)
    return total


@functools.lru_cache(4096)
def ranked(m, n, k, count):
    """Variants, the one with the least cycles first."""
    every = [variant for variant in (*FORMS, *FEW) if fits(variant, k)]
    return tuple(sorted(every, key=lambda variant: cycles(variant, m, n, k, count)))


def rounded(m):
    """Rows, rounded so that numbers for which the choice is the same become one."""
    return divided(m, 8) * 8 if m <= 64 else divided(m, 64) * 64 if m <= MANY else 1 << (m - 1).bit_length()


def tuning_key(x, x_scale, weight, weight_scale):
    return f"n={weight.shape[0]} k={x.shape[1]} m<={rounded(x.shape[0])}"


def candidates(x, x_scale, weight, weight_scale):
    m = rounded(x.shape[0])
    if m > MANY:
        return [{"variant": variant, "group": group} for variant in (0, 1) for group in (8, 4)]
    order = ranked(m, weight.shape[0], x.shape[1], multiprocessors(x.device))[:4]
    return [{"variant": variant, "group": group}
            for variant in order for group in ((8,) if variant in FEW else (8, 4))]
