"""Which form of the dense GEMM a call uses, and how many CTAs share a tile: the least time that a model gives.

The model knows no shape. It counts what a multiprocessor multiplies, reads from shared memory and loads from L2, and
what all of them read from memory; the slowest counts most. Its constants, and each form's pace over the model's, are
fitted to times on an H200 at 1.755 GHz (docs/lab/gemm_and_experts_sm90.md).
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import torch

BLOCK = 64          # values of a stage along k
SPLITS = 1, 2, 4, 8  # CTAs of a cluster that share a tile's k blocks: a portable cluster has eight at most
ALIGNED = 8         # values: TMA takes rows of a multiple of 16 bytes
L2 = 50e6           # bytes
GROUP = 8           # units of rows whose tiles follow one another: they share both operands in L2


@dataclass(frozen=True)
class Form:
    """As in dense_tiles.cuh: outputs of a tile, consumer warpgroups, stages, CTAs that share the rows' operand
    (share_a) or the columns', whether a tile's output leaves under the next tile's products, whether its rows are the
    weight's."""

    rows: int
    columns: int
    groups: int
    stages: int
    cluster: int = 1
    share_a: bool = False
    later: bool = False
    turned: bool = False
    pace: float = 1.0  # cycles of its blocks along k, over the model's: measured

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
                 for each, pace in re.findall(r"^FORM\((.*)\) *// (.*)$", text, re.MULTILINE))


FORMS = forms()


@dataclass(frozen=True)
class Rates:
    """Cycles and bytes a cycle, of a multiprocessor where nothing else is said."""

    products: float = 1978      # multiply-adds
    shared: float = 224         # bytes of shared memory
    l2: float = 58.12           # bytes from L2
    block: float = 230.3        # a block along k takes at least that: waiting, asking for the next product
    pairs: float = 0.6224       # of which two CTAs of a multiprocessor do so many at a time
    memory: float = 3184        # bytes from memory, of the whole GPU
    dirty: float = 0.8622       # bytes written back for each of the first that L2 takes in
    thin: float = 0.2644        # how much too few bytes on their way slow memory down: a power
    in_flight: float = 7.688e+06  # bytes on their way that keep memory busy
    power: float = 4.31         # of several times that overlap the longest counts most: a power mean
    begin: float = 3373         # until a CTA's first products: the launch, barriers, tensor maps, the first load
    cluster: float = 1394       # what CTAs of a cluster wait for each other at both ends
    again: float = 5779         # begin for a CTA that follows another on its place
    end: float = 495            # from a tile's last product until its output has left, where nothing hides it
    out: float = 17.22          # bytes of output, as they leave at the end
    between: float = 9.558e-06  # after that until the next tile's first products, whose loads are there
    hidden_end: float = 1369    # both where the next tile's products hide them
    join: float = 194           # two cluster barriers
    joined: float = 7.202       # bytes of sums that a CTA hands to the others of its cluster
    four: float = 0.94          # share of the multiprocessors on which clusters of four find room, assumed
    eight: float = 0.91         # and of eight


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
    """Whether the kernel has this form for the problem: what start() in dense_launch.cuh refuses. Multipliers that come
    between the next tile's products come too slowly."""
    if form.later and problem.beside:
        return False
    shared = form.cluster == 1 and form.sums <= 64 and form.sums // 4 % splits == 0
    return splits == 1 or (shared and divided(problem.k, BLOCK) >= splits)


def cycles(form, splits, problem, multiprocessors, rates):
    """Of one call, as the model has it."""
    m, n, k_blocks = problem.m, problem.n, divided(problem.k, BLOCK)
    high, wide = (n, m) if form.turned else (m, n)
    down, across = divided(high, form.rows), divided(wide, form.columns)
    if form.share_a:
        across = divided(across, form.cluster) * form.cluster
    else:
        down = divided(down, form.cluster) * form.cluster
    ctas, blocks = down * across * splits, divided(k_blocks, splits)
    a, b = min(form.rows, divided(high, 8) * 8), min(form.columns, divided(wide, 8) * 8)  # rows that are loaded
    loaded = 128 * (a / form.cluster + b if form.share_a else a + b / form.cluster)
    read = form.rows // 64 * 4 * (64 + form.columns) * 32 + 128 * (a + b)
    tile, alone = form.rows * form.columns, splits > 1 or form.resident > 1

    def overlapping(*times):
        return sum(time**rates.power for time in times) ** (1 / rates.power)

    block = form.pace * overlapping(tile * BLOCK / rates.products, read / rates.shared, loaded / rates.l2,
                                    rates.block / (rates.pairs if form.resident > 1 else 1))
    # CTAs come in waves, of as many as find room; those of the last wave are spread over the multiprocessors.
    size = form.cluster * splits
    room = multiprocessors * (rates.eight if size == 8 else rates.four if size == 4 else 1.0)
    places = max(int(room) // size * size, size)
    waves, rest = divmod(ctas, places * form.resident)
    turns = waves * form.resident + divided(rest, places)
    join = rates.join + tile * 4 * (splits - 1) / splits / rates.joined if splits > 1 else 0.0
    last = rates.end + tile * (2 + problem.beside) / splits / rates.out + join
    # Between two tiles of a CTA that stays; between two CTAs of one place where each has a tile.
    between = rates.hidden_end if form.later and not alone else last + (rates.again if alone else rates.between)
    ends = (turns - 1) * between / form.resident
    # Memory: everything once; slower where too few bytes are on their way.
    moved = 2 * (m * problem.k + n * problem.k + m * n) + problem.beside * m * n
    moved += rates.dirty * min(moved, L2)
    stage = 128 * (a + b) * min(form.stages, blocks) / form.cluster
    memory = 0.0
    for share, together in ((ctas - rest, places * form.resident), (rest, rest)):
        flying = together * stage / rates.in_flight
        memory += moved * share / ctas / rates.memory / min(1.0, flying**rates.thin) if share else 0.0
    begin = rates.begin + (rates.cluster if size > 1 else 0.0)
    return begin + overlapping(turns * blocks * block + ends, memory) + last


@functools.lru_cache(4096)
def ranked(problem, multiprocessors, rates=Rates()):
    """(number of the form, splits), the one with the least cycles first."""
    every = [(number, splits) for number, form in enumerate(FORMS) for splits in SPLITS if fits(form, splits, problem)]
    return tuple(sorted(every, key=lambda one: cycles(FORMS[one[0]], one[1], problem, multiprocessors, rates)))


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def configs(x, weight, beside=0):
    """Those worth trying, the model's choice first. beside: bytes that are read for each output."""
    problem = Problem(x.shape[0], weight.shape[0], x.shape[1], beside)
    order = ranked(problem, multiprocessors(x.device))[:8]
    return [{"form": form, "splits": splits, "group": GROUP} for form, splits in order]


def run_with(library, config, x, weight, *others):
    """others: what follows x and the weight; the output is the last of them."""
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or n == 0:
        return
    if k == 0 or k % ALIGNED:  # two launches more, where rows cannot be loaded as they lie
        x, weight = (torch.nn.functional.pad(rows, (0, -k % ALIGNED or ALIGNED)) for rows in (x, weight))
    library(x.device, x, weight, *others, m, n, x.shape[1], config["form"], config["group"], config["splits"],
            multiprocessors(x.device))
