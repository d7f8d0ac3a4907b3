"""The order in which the CTAs of a GEMM take tiles: neighbours on the GPU get tiles that share rows.

What several multiprocessors of a GPC read at about the same time leaves L2 once. Tiles are numbered in bands of `group`
units of rows, column after column within a band; the best group is the one whose GPCs read the fewest rows. Where the
hardware puts a CTA was read from %smid on an H200 (docs/lab/gemm_and_experts_sm90.md). On another GPU the figures below
may be less fitting; they change no result.
"""

import functools

GROUPS = 8, 4, 2, 1
FILLED = 8, 16, 32, 48, 64, 80, 96, 114, 132  # CTAs without a cluster fill one GPC after the other: the end of each
FIRST = 4.0  # how much a row counts that any CTA reads, over one that a GPC reads: it may come from memory


def gpc_of(unit, size):
    """The GPC of a unit, a cluster of `size` CTAs, by its number among those at work. Clusters are dealt out in turn.
    The first four pairs lie by themselves; after four more pairs on each, one GPC of an H200 is full."""
    if size == 1:
        return next(i for i, end in enumerate(FILLED) if unit % FILLED[-1] < end)
    if size == 2:
        return 8 if unit < 4 else (unit - 4) % 8 if unit < 36 else 1 + (unit - 36) % 7
    return unit % 8


@functools.lru_cache(1 << 15)
def read_rows(down, across, group, at_work, size):
    """Rows and columns of units, of down x across, that each GPC reads while `at_work` units run, summed over the GPCs;
    and how many of them all GPCs read together: (rows, columns, rows of all, columns of all), for each unit."""
    rows, columns = set(), set()
    for unit in range(at_work):
        band, within = divmod(unit, group * across)
        column, row = divmod(within, min(group, down - band * group))
        place = gpc_of(unit, size)
        rows.add((place, band * group + row))
        columns.add((place, column))
    every = len({row for _, row in rows}), len({column for _, column in columns})
    return tuple(count / at_work for count in (len(rows), len(columns), *every))


def best_group(down, across, at_work, size, row, column):
    """(the group, what the GPCs read by it for each unit). row, column: what a row and a column of units take."""
    found = []
    for group in GROUPS:
        rows, columns, every_row, every_column = read_rows(down, across, group, at_work, size)
        read = rows * row + columns * column
        cost = read + FIRST * (every_row * row + every_column * column)
        found.append((cost, group if across < down else -group, group, read))  # if equal, the shorter side first
    return min(found)[2:]
