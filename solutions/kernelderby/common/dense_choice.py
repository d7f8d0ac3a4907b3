"""Chooses a call's form of the dense GEMM, and how many CTAs share a tile: those with the least time by a model.

The model holds no table of shapes. It counts what a multiprocessor multiplies and loads from L2, and what all of them
read from memory; the slowest of these counts most. Its constants, and each form's pace relative to the model, are
fitted to times on an H200 at 1.755 GHz (docs/lab/gemm_and_experts_sm90.md). tile_order.py gives the order of the tiles.
"""

import functools
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

import torch

tile_order = importlib.import_module(f"{__package__}.tile_order")

BLOCK = 64          # values of a stage along k
SPLITS = range(1, 9)  # CTAs that share a tile's k blocks: a portable cluster has eight at most
ALIGNED = 8         # values: TMA takes rows of a multiple of 16 bytes
ROW = 128           # bytes of a row of a block
L2 = 50e6           # bytes
# Multiprocessors, of an H200's 132, with a place for a CTA of a cluster of 1 to 8; in each GPC some are left over.
PLACED = 132, 132, 117, 120, 110, 102, 105, 120
CLOSE = 24          # configurations whose order is looked for: those that would be the fastest with the best order


@dataclass(frozen=True)
class Form:
    """As in dense_tiles.cuh: outputs of a tile, consumer warpgroups, stages, CTAs of a cluster, how many of their tiles
    lie side by side (these share the operand of the rows, those one below the other that of the columns), whether a
    tile's output is stored while the next tile's products are computed, whether its rows are the weight's."""

    rows: int
    columns: int
    groups: int
    stages: int
    cluster: int = 1
    side_by_side: int = 1
    later: bool = False
    turned: bool = False
    deep: int = 1  # blocks along k of a stage
    pace: float = 1.0           # cycles of its blocks along k, over the model's: measured

    @property
    def resident(self):
        """CTAs of a multiprocessor."""
        return 2 if self.groups == 1 and self.cluster == 1 else 1

    @property
    def sums(self):
        """Of a thread."""
        return self.rows // 64 // self.groups * self.columns // 2


def forms():
    """Those of dense_forms.cuh, in its order."""
    text = (Path(__file__).parent / "dense_forms.cuh").read_text()
    values = {"true": True, "false": False}
    return tuple(Form(*(values[word] if word in values else int(word) for word in each.split(", ")), pace=float(pace))
                 for pace, each in re.findall(r"^FORM\(([\d.]+), (.*)\)$", text, re.MULTILINE))


FORMS = forms()


@dataclass(frozen=True)
class Rates:
    """Cycles and bytes a cycle, of a multiprocessor unless something else is said."""

    products: float = 1742      # multiply-adds
    l2: float = 36.85           # bytes from L2: of those that it loads and those that its GPC reads for it
    near: float = 0.6873        # how much the latter count: a power
    block: float = 269.6        # a block along k takes at least this: waiting, starting the next product
    pairs: float = 0.756        # how many of these two CTAs of a multiprocessor do at a time
    idle: float = 0.4645        # how much faster a block is if all multiprocessors but one are idle: a share
    memory: float = 3306        # bytes from memory, of the whole GPU
    dirty: float = 0.4598       # bytes written back for each of the first that L2 takes in
    thin: float = 0.4368        # how much too few bytes on their way slow memory down: a power
    in_flight: float = 1.07e+07 # bytes on their way that keep memory busy
    power: float = 2.729        # of several times that overlap the longest counts most: a power mean
    begin: float = 3308         # until a CTA's first products: the launch, barriers, tensor maps, the first load
    cluster: float = 543.5      # what CTAs of a cluster wait for each other at both ends
    again: float = 1620         # `begin` of a CTA that follows another one on its place
    end: float = 1302           # from a tile's last product until its output has left, where nothing hides it
    out: float = 27.93          # bytes of output, as they leave at the end
    hidden_end: float = 1071    # the same where the next tile's products hide it
    join: float = 1052          # two cluster barriers
    joined: float = 5.493       # bytes of sums that a CTA hands to the others of its cluster
    apart: float = 0.1055       # of the CTAs that share operands: how much slower a block is if others share k: a power


@dataclass(frozen=True)
class Problem:
    """A product [m, k] x [n, k]^T, and how many bytes are read for each output beside it."""

    m: int
    n: int
    k: int
    beside: int = 0


def divided(a, b):
    return -(-a // b)


def fits(form, splits, problem):
    """Whether the kernel takes this form for the problem: not what start() in dense_launch.cuh refuses, nor a
    multiplier with a form that loads it between the next tile's products or, value by value, where the CTAs of a
    cluster share tiles: both are too slow."""
    if problem.beside and (form.later or (splits > 1 and form.cluster > 1)):
        return False
    shared = form.cluster * splits <= SPLITS[-1] and not form.later and form.sums <= 104
    return splits == 1 or (shared and divided(problem.k, BLOCK * form.deep) >= splits)


@dataclass(frozen=True)
class Spread:
    """How a form's tiles are spread over the GPU."""

    form: Form
    splits: int
    down: int     # units, which a cluster does at a time, of down x across tiles
    across: int
    a: int        # rows that a tile loads of each operand
    b: int
    places: int   # CTAs at a time, but for those that share a multiprocessor

    @classmethod
    def of(cls, form, splits, problem, multiprocessors):
        high, wide = (problem.n, problem.m) if form.turned else (problem.m, problem.n)
        size = form.cluster * splits
        return cls(form, splits, divided(divided(high, form.rows), form.cluster // form.side_by_side),
                   divided(divided(wide, form.columns), form.side_by_side),
                   min(form.rows, divided(high, 8) * 8), min(form.columns, divided(wide, 8) * 8),
                   max(multiprocessors * PLACED[size - 1] // PLACED[0] // size * size, size))

    @property
    def ctas(self):
        return self.down * self.across * self.form.cluster * self.splits

    def loaded(self):
        """Bytes of a block that each CTA loads."""
        return ROW * (self.a / self.form.side_by_side + self.b * self.form.side_by_side / self.form.cluster)

    def least_read(self):
        """About the least that a GPC reads for it, in any order: its CTAs do 4 x 4 tiles."""
        return ROW * (self.a + self.b) / 4

    def ordered(self):
        """(the best order's group, what a GPC reads by it)."""
        size = self.form.cluster * self.splits
        return tile_order.best_group(
            self.down, self.across, min(self.down * self.across, self.places * self.form.resident // size), size,
            ROW * self.a / self.form.side_by_side, ROW * self.b * self.form.side_by_side / self.form.cluster)


def cycles(spread, problem, read, rates):
    """Cycles of one call, by the model. read: bytes of a block that a GPC reads for each CTA."""
    form, splits, ctas, places = spread.form, spread.splits, spread.ctas, spread.places
    m, n, k_blocks = problem.m, problem.n, divided(problem.k, BLOCK)
    blocks = divided(divided(k_blocks, form.deep), splits) * form.deep
    tile, alone, size = form.rows * form.columns, splits > 1 or form.resident > 1, form.cluster * splits

    def overlapping(*times):
        return sum(time**rates.power for time in times) ** (1 / rates.power)

    # CTAs run in waves, as many at a time as there is room for; those of the last wave are spread over the
    # multiprocessors.
    waves, rest = divmod(ctas, places * form.resident)
    turns = waves * form.resident + divided(rest, places)
    through_l2 = spread.loaded() ** (1 - rates.near) * read**rates.near
    block = overlapping(tile * BLOCK / rates.products, through_l2 / rates.l2,
                        rates.block / (rates.pairs if form.resident > 1 else 1))
    block *= form.pace * (1 - rates.idle * (1 - ctas / (places * turns)))
    if splits > 1:
        block *= form.cluster**rates.apart
    join = rates.join + tile * 4 * (splits - 1) / splits / rates.joined if splits > 1 else 0.0
    last = rates.end + tile * (2 + problem.beside) / splits / rates.out + join
    # The time between two tiles of a CTA that stays, or between two CTAs on one place if each has a single tile.
    between = rates.hidden_end if form.later and not alone else last + (rates.again if alone else 0.0)
    ends = (turns - 1) * between / form.resident
    # Memory: everything is read once, more slowly if too few bytes are on their way.
    moved = 2 * (m * problem.k + n * problem.k + m * n) + problem.beside * m * n
    moved += rates.dirty * min(moved, L2)
    stage = ROW * (spread.a + spread.b) * min(form.stages * form.deep, blocks) / form.cluster
    memory = 0.0
    for share, together in ((ctas - rest, places * form.resident), (rest, rest)):
        flying = together * stage / rates.in_flight
        memory += moved * share / ctas / rates.memory / min(1.0, flying**rates.thin) if share else 0.0
    begin = rates.begin + (rates.cluster if size > 1 else 0.0)
    return begin + overlapping(turns * blocks * block + ends, memory) + last


@functools.lru_cache(1 << 14)
def ranked(problem, multiprocessors, rates=Rates()):
    """(number of the form, splits, the order's group), the one with the least cycles first. Tiles are shared only if no
    multiprocessor gets a third CTA by it."""
    every = []
    for number, form in enumerate(FORMS):
        high, wide = (problem.n, problem.m) if form.turned else (problem.m, problem.n)
        most = 2 * multiprocessors // max(divided(high, form.rows) * divided(wide, form.columns), 1)
        every += [(number, Spread.of(form, splits, problem, multiprocessors))
                  for splits in SPLITS[:max(most, 1)] if fits(form, splits, problem)]
    every.sort(key=lambda one: cycles(one[1], problem, one[1].least_read(), rates))
    found = []
    for number, spread in every[:CLOSE]:
        group, read = spread.ordered()
        found.append((cycles(spread, problem, read, rates), number, spread.splits, group))
    return tuple(one[1:] for one in sorted(found))


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def configs(x, weight, beside=0):
    """Configurations worth trying, the model's choice first. beside: bytes that are read for each output. Any
    configuration if there is nothing to multiply."""
    rows = max(divided(x.shape[0], 8) * 8, 8)  # so that a server's calls of many lengths share a choice
    problem = Problem(rows, max(weight.shape[0], 1), max(x.shape[1], 1), beside)
    order = ranked(problem, multiprocessors(x.device))[:8]
    return [{"form": form, "splits": splits, "group": group} for form, splits, group in order]


def run_with(library, config, x, weight, *others):
    """others: the arguments after x and the weight; the output is the last of them."""
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    if k == 0 or k % ALIGNED:  # two launches more, if rows cannot be loaded as they lie
        x, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED or ALIGNED)) for rows in (x, weight))
    library(x.device, x, weight, *others, m, n, x.shape[1], config["form"], config["group"], config["splits"],
            multiprocessors(x.device))
