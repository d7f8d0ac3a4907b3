"""Chooses a call's form of the dense GEMM, and how many CTAs share a tile: those with the least time by a model.

The model holds no table of shapes. It counts what a multiprocessor multiplies and loads from L2, and what all of them
read from memory; the slowest of these counts most. Its constants, and each form's pace relative to the model, are
fitted to times on an H200 at 1.755 GHz (docs/lab/gemm_and_experts_sm90.md).
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import torch

BLOCK = 64          # values of a stage along k
SPLITS = range(1, 9)  # CTAs that share a tile's k blocks: a portable cluster has eight at most
ALIGNED = 8         # values: TMA takes rows of a multiple of 16 bytes
L2 = 50e6           # bytes
# Multiprocessors, of an H200's 132, with a place for a CTA of a cluster of 1 to 8; in each GPC some are left over.
PLACED = 132, 132, 117, 120, 110, 102, 105, 120
GROUP = 8           # units of rows whose tiles follow one another: they share both operands in L2


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

    products: float = 1597      # multiply-adds
    l2: float = 58.44           # bytes from L2
    block: float = 227.7        # a block along k takes at least this: waiting, starting the next product
    pairs: float = 0.8575       # how many of these two CTAs of a multiprocessor do at a time
    idle: float = 0.4591        # how much faster a block is if all multiprocessors but one are idle: a share
    memory: float = 3169        # bytes from memory, of the whole GPU
    dirty: float = 0.4823       # bytes written back for each of the first that L2 takes in
    thin: float = 0.453         # how much too few bytes on their way slow memory down: a power
    in_flight: float = 9.322e+06  # bytes on their way that keep memory busy
    power: float = 2.534        # of several times that overlap the longest counts most: a power mean
    begin: float = 3508         # until a CTA's first products: the launch, barriers, tensor maps, the first load
    cluster: float = 543.7      # what CTAs of a cluster wait for each other at both ends
    again: float = 1620         # `begin` of a CTA that follows another one on its place
    end: float = 1314           # from a tile's last product until its output has left, where nothing hides it
    out: float = 30.04          # bytes of output, as they leave at the end
    hidden_end: float = 1092    # the same where the next tile's products hide it
    join: float = 1036          # two cluster barriers
    joined: float = 5.46        # bytes of sums that a CTA hands to the others of its cluster


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
    cluster share tiles: both are too slow. If 8 does not divide n, warps store by hand, and the first one of a
    warpgroup gives a turned tile's stages back for all: only where no CTA has a second tile."""
    if problem.beside and (form.later or (splits > 1 and form.cluster > 1)):
        return False
    if form.turned and problem.n % 8 and splits == 1 and form.resident == 1:
        return False
    shared = form.cluster * splits <= SPLITS[-1] and not form.later and form.sums <= 104
    return splits == 1 or (shared and divided(problem.k, BLOCK * form.deep) >= splits)


def cycles(form, splits, problem, multiprocessors, rates):
    """Cycles of one call, by the model."""
    m, n, k_blocks = problem.m, problem.n, divided(problem.k, BLOCK)
    high, wide = (n, m) if form.turned else (m, n)
    down, across = divided(high, form.rows), divided(wide, form.columns)
    below = form.cluster // form.side_by_side
    down, across = divided(down, below) * below, divided(across, form.side_by_side) * form.side_by_side
    ctas, blocks = down * across * splits, divided(divided(k_blocks, form.deep), splits) * form.deep
    a, b = min(form.rows, divided(high, 8) * 8), min(form.columns, divided(wide, 8) * 8)  # rows that are loaded
    loaded = 128 * (a / form.side_by_side + b / below)
    tile, alone = form.rows * form.columns, splits > 1 or form.resident > 1

    def overlapping(*times):
        return sum(time**rates.power for time in times) ** (1 / rates.power)

    # CTAs run in waves, as many at a time as there is room for; those of the last wave are spread over the
    # multiprocessors.
    size = form.cluster * splits
    places = max(multiprocessors * PLACED[size - 1] // PLACED[0] // size * size, size)
    waves, rest = divmod(ctas, places * form.resident)
    turns = waves * form.resident + divided(rest, places)
    block = overlapping(tile * BLOCK / rates.products, loaded / rates.l2,
                        rates.block / (rates.pairs if form.resident > 1 else 1))
    block *= form.pace * (1 - rates.idle * (1 - ctas / (places * turns)))
    join = rates.join + tile * 4 * (splits - 1) / splits / rates.joined if splits > 1 else 0.0
    last = rates.end + tile * (2 + problem.beside) / splits / rates.out + join
    # The time between two tiles of a CTA that stays, or between two CTAs on one place if each has a single tile.
    between = rates.hidden_end if form.later and not alone else last + (rates.again if alone else 0.0)
    ends = (turns - 1) * between / form.resident
    # Memory: everything is read once, more slowly if too few bytes are on their way.
    moved = 2 * (m * problem.k + n * problem.k + m * n) + problem.beside * m * n
    moved += rates.dirty * min(moved, L2)
    stage = 128 * (a + b) * min(form.stages * form.deep, blocks) / form.cluster
    memory = 0.0
    for share, together in ((ctas - rest, places * form.resident), (rest, rest)):
        flying = together * stage / rates.in_flight
        memory += moved * share / ctas / rates.memory / min(1.0, flying**rates.thin) if share else 0.0
    begin = rates.begin + (rates.cluster if size > 1 else 0.0)
    return begin + overlapping(turns * blocks * block + ends, memory) + last


@functools.lru_cache(4096)
def ranked(problem, multiprocessors, rates=Rates()):
    """(number of the form, splits), the one with the least cycles first. Tiles are shared only if no multiprocessor
    gets a third CTA by it."""
    every = []
    for number, form in enumerate(FORMS):
        high, wide = (problem.n, problem.m) if form.turned else (problem.m, problem.n)
        most = 2 * multiprocessors // max(divided(high, form.rows) * divided(wide, form.columns), 1)
        every += [(number, splits) for splits in SPLITS[:max(most, 1)] if fits(form, splits, problem)]
    return tuple(sorted(every, key=lambda one: cycles(FORMS[one[0]], one[1], problem, multiprocessors, rates)))


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def configs(x, weight, beside=0):
    """Configurations worth trying, the model's choice first. beside: bytes that are read for each output. Any
    configuration if there is nothing to multiply."""
    problem = Problem(max(x.shape[0], 1), max(weight.shape[0], 1), max(x.shape[1], 1), beside)
    order = ranked(problem, multiprocessors(x.device))[:8]
    return [{"form": form, "splits": splits, "group": GROUP} for form, splits in order]


def run_with(library, config, x, weight, *others):
    """others: the arguments after x and the weight; the output is the last of them."""
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    if k == 0 or k % ALIGNED:  # two launches more, if rows cannot be loaded as they lie
        x, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED or ALIGNED)) for rows in (x, weight))
    library(x.device, x, weight, *others, m, n, x.shape[1], config["form"], config["group"], config["splits"],
            multiprocessors(x.device))
