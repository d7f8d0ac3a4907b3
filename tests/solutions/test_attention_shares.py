"""Long attention of ragged batches in equal shares (attention_shares.cuh): every CTA's items, and whole calls on the
CPU, where attention_on_host stands for TMA, mbarriers and wgmma, and mutants fail; it compiles; on a GPU every size."""

import collections
import ctypes
import dataclasses
import functools
import os
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nvcc
import pytest
import torch
from on_host import FAST, in_a_fork, nvcc_of, recalled_for, share_of, shared_library
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

NAME, SOLUTION = "unified_attention", "derby_unified_attention_sm90"
COMMON = Path(__file__).resolve().parents[2] / "solutions" / "kernelderby" / "common"
HERE = Path(__file__).parent / "attention_on_host"
REPLACED = ("ptx.cuh", "tma.cuh", "wgmma.cuh")
HEADERS = ("attention_shares.cuh", "attention_tiles.cuh", "attention_order.cuh", "attention_shape.cuh", "lanes.cuh")
HEAD_DIMS = (64, 72, 80, 96, 128, 192, 256)
MOST_ERROR = 0.0026  # norm of FlashAttention 3's error over the result's, on its worst shape
Item = collections.namedtuple(
    "Item", "sequence head first_query queries first_key keys token blocks first_block chunk chunks slot"
)
Form = collections.namedtuple("Form", "split causal rows keys")
FORMS = [Form(1, 1, 64, 64), Form(0, 1, 128, 80), Form(0, 0, 128, 128)]  # of attention_on_host/items.cu


def on_host(source, headers, *how):
    """The library of a source, compiled by g++ beside these headers, without those that the CPU replaces."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(shutil.copy(path, folder)) for path in (source, *headers) if path.name not in REPLACED]
        for copy in copies:  # of the other kernels, which g++ cannot read
            copy.write_text(re.sub(r"[\w<>]+<<<.*?;", "", copy.read_text()))
        beside = [*copies[1:], *(HERE / name for name in REPLACED)]
        return shared_library(copies[0], *how, f"-I{HERE}", header="cuda_runtime.h", beside=beside)


# The items ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def items_of():
    headers = [COMMON / name for name in (*HEADERS, "launch.cuh")]
    function = ctypes.CDLL(str(on_host(HERE / "items.cu", headers, "-O1"))).items_run

    def call(lengths, heads, form, pack=1, overhead=40, again=90, least=2, shares=132):
        """lengths: (queries, keys) of each sequence. -> each CTA's items."""
        ends = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int()
        keys = torch.tensor([0, *(keys for _, keys in lengths)]).int()
        most = 4000
        found = torch.empty(shares, most, 12, dtype=torch.int32)
        counts = torch.full((shares,), -1, dtype=torch.int32)
        addresses = [ctypes.c_void_p(each.data_ptr()) for each in (ends, keys[1:].contiguous(), found, counts)]
        sizes = len(lengths), heads * pack, pack, form.split, form.causal, overhead, again, least, shares
        assert function(addresses[0], addresses[1], *sizes, addresses[2], addresses[3], most) == 0
        return [[Item(*row) for row in found[cta, : int(counts[cta])].tolist()] for cta in range(shares)]

    return call


def random_lengths(generator):
    count = generator.choice([1, 2, 5, 33, 64, 255, 256])
    most_queries, most = generator.choice([1, 4, 17, 300]), generator.choice([1, 70, 1000, 20000])
    found = []
    for _ in range(count):
        queries = generator.choice([0, 1, generator.randint(1, most_queries)])
        found.append((queries, queries + generator.choice([0, generator.randint(0, most)])))
    return found


def check_cover(lengths, heads, form, pack, found):
    """Every block of keys of every tile is one CTA's, chunks are numbered as combine() adds them, and no two chunks
    have one place in memory."""
    tiles, places, tokens = collections.defaultdict(list), set(), form.rows // pack
    for cta, items in enumerate(found):
        for item in items:
            tiles[item.sequence, item.head, item.token].append((cta, item))
            assert (item.queries, item.keys) == lengths[item.sequence]
            assert item.first_query == sum(queries for queries, _ in lengths[: item.sequence])
            if item.chunks > 1:
                place = 2 * (item.slot + item.chunk) + (item.chunk == 0)
                assert place == 2 * cta + (item.chunk == 0) and place not in places
                places.add(place)
    wanted = 0
    for sequence, (queries, keys) in enumerate(lengths):
        count = -(-queries // tokens)
        for head in range(heads):
            for number in range(count):
                token = queries - (count - number) * tokens if form.causal else number * tokens
                seen = min(keys, keys - queries + token + tokens) if form.causal else keys
                blocks, at = -(-seen // form.keys), 0
                chunks = tiles[sequence, head * pack, token]
                assert [item.chunk for _, item in chunks] == list(range(len(chunks))) and chunks
                for _, item in chunks:
                    assert item.chunks == len(chunks) and item.first_block == at
                    assert item.blocks > 0 or blocks == 0
                    at += item.blocks
                assert at == blocks, (sequence, head, number)
                wanted += 1
    assert len(tiles) == wanted


@pytest.mark.parametrize("form", FORMS)
def test_every_block_of_every_tile_is_one_ctas(items_of, form):
    generator = random.Random(form.keys)
    for _ in range(40):
        lengths, pack = random_lengths(generator), generator.choice([1, 3, 8]) if form.causal else 1
        heads, shares = generator.choice([1, 2, 5, 16]), generator.choice([3, 24, 132])
        knobs = {"overhead": generator.choice([1, 40, 200]), "again": generator.choice([0, 90, 400])}
        found = items_of(lengths, heads, form, pack, **knobs, least=generator.choice([1, 2, 4]), shares=shares)
        check_cover(lengths, heads, form, pack, found)


def test_shares_are_equal(items_of):
    """In keys with each tile's overhead, but for where cuts move."""
    generator, form, overhead, least = random.Random(1), FORMS[0], 50, 2
    for count, heads in [(40, 4), (200, 8), (3, 2), (64, 2)]:
        lengths = [(4, generator.randint(300, 30000)) for _ in range(count)]
        found = items_of(lengths, heads, form, 8, overhead, 0, least)
        loads = [sum(item.blocks * form.keys + overhead * (item.chunk == 0) for item in items) for items in found]
        assert max(loads) <= sum(loads) / len(loads) + (2 * least + 1) * form.keys + overhead, loads


@pytest.mark.parametrize("count, heads, chunks", [(4, 2, 16), (8, 8, 2), (32, 2, 2), (2, 2, 33), (16, 8, 1)])
def test_equal_sequences_are_cut_alike(items_of, count, heads, chunks):
    """Each CTA has one chunk, and each tile as many, as many as there are CTAs for."""
    found = items_of([(4, 40000)] * count, heads, FORMS[0], 8, again=1 << 20)
    assert all(len(items) <= 1 for items in found) and sum(map(len, found)) == count * heads * chunks
    assert {item.chunks for items in found for item in items} == {chunks}
    sizes = {item.blocks for items in found for item in items}
    assert max(sizes) - min(sizes) <= 1


def test_lengths_that_fill_ctas_unevenly_go_out_in_equal_shares(items_of):
    """100 tiles for 132 CTAs: one CTA each would leave 32 without work."""
    found = items_of([(4, 40000)] * 50, 2, FORMS[0], 8)
    sizes = [sum(item.blocks for item in items) for items in found]
    assert max(sizes) - min(sizes) <= 3 and max(sizes) < 500


# Whole calls on the CPU -----------------------------------------------------------------------------------------------


class Workspace:
    """Memory that holds no number, and counters that a call must leave as it finds them."""

    def __init__(self):
        self.counters = torch.zeros(4096, dtype=torch.int32)

    def __call__(self, device, needed):
        assert needed.counters + 2 <= len(self.counters)
        return self.counters, torch.full((max(needed.floats, 1),), float("nan"))


@functools.cache
def module(*edits):
    """The solution's module, its sources edited (old, new)."""
    solution = CATALOG.solution(SOLUTION)
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if old in text)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(NAME), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


ALL_KERNELS = "switch (rounded_head_dim(head_dim)) { DERBY_HEAD_DIMS_IN_SHARES(split, start, true, true) }"
FEW_KERNELS = "switch (rounded_head_dim(head_dim)) { DERBY_HEAD_DIM(64, split, start, true, true) SMALL }"


@functools.cache
def on_cpu(*edits):
    """The module with its kernels for heads of 64 and, unedited, 72 values, compiled by g++."""
    small = "" if edits else "DERBY_HEAD_DIM(72, split, start, true, true)"
    solution = module((ALL_KERNELS, FEW_KERNELS.replace("SMALL", small)), *edits)
    library = solution.shares_library
    source, *headers = (library.folder / name for name in library.sources)
    function = library.load(on_host(source, headers, *(FAST if edits else ("-O1",))))

    def call(device, *arguments):
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        assert function(*addresses, None) == 0, "cudaErrorInvalidValue"

    solution.shares_library, solution.workspace = call, Workspace()
    solution.MOST_SHORT = {}
    return solution


def force(solution, split, processors, replaced=setattr, again=0, least=1, overhead=20):
    """Every call takes equal shares, with this kernel where the head size has it. again: far below
    0 no CTA has just one chunk, far above all have."""

    def plan(pages, *sizes):
        works = solution.planning.Call(*sizes).works(solution.sharing.FEW)
        made = solution.sharing.Shared(works[min(split, len(works) - 1)], 1.0).plan()
        return dataclasses.replace(made, overhead=overhead, again=again, least=least)

    replaced(solution.sharing, "plan", plan)
    replaced(solution.planning, "processors", lambda device: processors)


def sizes(lengths, heads, kv_heads, head_dim, spare=3):
    """Axes of a batch of these (queries, keys)."""
    width = max(-(-keys // 16) for _, keys in lengths) + 1
    return {
        "num_tokens": sum(queries for queries, _ in lengths),
        "num_seqs": len(lengths),
        "len_cu_seqlens": len(lengths) + 1,
        "num_blocks": sum(-(-keys // 16) for _, keys in lengths) + spare,
        "max_blocks_per_seq": width,
        "num_query_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "max_query_len": max(queries for queries, _ in lengths),
        "max_seq_len": max(keys for _, keys in lengths),
        "sm_scale": head_dim**-0.5,
    }


def with_lengths(inputs, lengths):
    """The inputs of a batch with these lengths; keys behind a sequence's end are far off, and values no numbers."""
    ends = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int()
    inputs["cu_seqlens_q"].copy_(ends)
    inputs["seq_lens"].copy_(torch.tensor([keys for _, keys in lengths]).int())
    blocks = inputs["key_cache"].shape[0]
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).int()
    held = torch.zeros(blocks, 16, dtype=torch.bool)
    taken = 0
    inputs["block_table"].fill_(int(order[-1]))
    for sequence, (_, keys) in enumerate(lengths):
        count = -(-keys // 16)
        mine = order[taken : taken + count]
        taken += count
        inputs["block_table"][sequence, :count] = mine.to(inputs["block_table"].device)
        held[mine.long()] = torch.arange(count * 16).view(count, 16) < keys
    free = ~held.to(inputs["key_cache"].device)
    inputs["key_cache"][free], inputs["value_cache"][free] = 30, float("nan")
    return inputs


def error_of(inputs, outputs):
    """The definition's verdict, and the norm of the error over the result's. Where no token sees them, values are 0."""
    finite = {**inputs, "value_cache": inputs["value_cache"].nan_to_num(0)}
    wanted = reference(NAME).run(*finite.values())
    verdict = judge(CATALOG.definition(NAME), reference(NAME), finite, outputs)
    error = float((outputs["output"].double() - wanted.double()).norm() / wanted.double().norm())
    return verdict.status, error


def called(solution, lengths, heads, kv_heads, head_dim, device="cpu", scale=1):
    case = case_of(NAME, **sizes(lengths, heads, kv_heads, head_dim))
    inputs = with_lengths(inputs_of(NAME, case, device), lengths)
    inputs["query"] *= scale
    outputs = outputs_of(NAME, case, device)
    solution.run(*inputs.values(), *outputs.values())
    return inputs, outputs


def passes(solution, lengths, heads, kv_heads, head_dim, device="cpu"):
    status, error = error_of(*called(solution, lengths, heads, kv_heads, head_dim, device))
    return status is Status.PASSED and error <= MOST_ERROR


DRAFTS = [(4, 330), (4, 9), (3, 700), (1, 40), (4, 4), (2, 129)]
MIXED = [(1, 200), (37, 37), (90, 210), (1, 1), (2, 513)]
LONE = [(3, 1290), (2, 30)]  # the first has nearly all CTAs: several warps add its chunks
ONE = [(3, 1290)]
EQUAL = [(4, 640)] * 3
# (lengths, heads, key heads, head_dim, split, multiprocessors, again)
CALLS = [
    (DRAFTS, 8, 2, 64, 1, 7, -(1 << 20)),
    (DRAFTS, 8, 2, 64, 0, 7, 90),
    (MIXED, 4, 1, 72, 1, 5, 0),
    (MIXED, 4, 2, 64, 0, 3, 0),
    (LONE, 6, 1, 64, 1, 23, 0),
    (ONE, 6, 1, 64, 1, 23, 0),
    (EQUAL, 4, 2, 64, 1, 20, 1 << 20),
    (EQUAL, 70, 1, 72, 1, 9, 90),  # more heads a key head than a tile has rows
]


@pytest.mark.parametrize("order", ["", "reversed"])
@recalled_for(SOLUTION)
def test_ragged_batches(order, monkeypatch):
    monkeypatch.setenv("EMULATED_ORDER", order)
    solution = on_cpu()
    for lengths, heads, kv_heads, head_dim, split, processors, again in CALLS[::2] if order else CALLS:
        force(solution, split, processors, monkeypatch.setattr, again)
        assert passes(solution, lengths, heads, kv_heads, head_dim), (lengths, head_dim, split, processors)
        assert not solution.workspace.counters.any()


@recalled_for(SOLUTION)
def test_scores_far_apart_and_the_same_bits():
    """Chunks with other largest scores, weights near zero, and a second call."""
    solution = on_cpu()
    force(solution, 1, 23, again=0)
    for lengths in (LONE, DRAFTS):
        inputs, outputs = called(solution, lengths, 6, 1, 64, scale=30)
        status, error = error_of(inputs, outputs)
        assert error <= MOST_ERROR, lengths
        again = outputs_of(NAME, case_of(NAME, **sizes(lengths, 6, 1, 64)))
        solution.run(*inputs.values(), *again.values())
        assert torch.equal(outputs["output"], again["output"])


MUTANTS = [
    # attention_combine.cuh
    ("slot = 2 * (tile.slot + chunk) + (chunk == 0);", "slot = 2 * (tile.slot + chunk);"),
    ("max(-tile.token * call.pack, 0) / 16;", "(max(-tile.token * call.pack, 0) + 15) / 16;"),
    ("shared.before[share + step] <= round", "shared.before[share + step] < round"),
    ("if (threadIdx.x == 0) begin_no_tile<S>(call);", ""),
    ("int chunk = member * tile.chunks / team;", "int chunk = member * (tile.chunks / team);"),
    ("member == 0 && i < team; ++i", "member == 0 && i < team - 1; ++i"),
    ("if (i < warp) before += shared.of_warp[i];", ""),
    ("* GROUPS * team_of(tile.chunks)", "* GROUPS"),
    # attention_shares.cuh
    ("found.first_block = blocks * chunk / found.chunks;", "found.first_block = 0;"),
    ("return block < call.least ? 0 :", "return"),
    ("found.first_share = (place + none) / cut.share;", "found.first_share = place / cut.share;"),
    ("if (tile == line.tiles) {", "if (tile == line.tiles - 1) {"),
    ("if (i < warp) begin += of_warp;", ""),
    ("if (tile + step < line.tiles && line.before(tile + step) <= inside) tile += step;", ""),
    ("if (++head == call.all_heads) return false;", "return false;"),
    ("lengths = lengths_of<S>(call, sequence);\n", ""),
]
LONG = [(4, 500), (4, 530), (2, 460)]  # CTAs have the end of one and the begin of the next
TWO = [(4, 832)] * 2  # 13 chunks each, 4 warps for each row
MANY = [(1 + keys % 2, 20 + keys) for keys in range(40)]  # more than a warp counts
# (lengths, heads, key heads, head_dim, split, multiprocessors, again, least), in both orders
ON_MUTANTS = [
    (LONG, 8, 2, 64, 1, 9, -(1 << 20), 1),
    (TWO, 6, 1, 64, 1, 26, 1 << 20, 1),
    (MIXED, 4, 2, 64, 1, 3, 0, 2),
    (MANY, 4, 1, 64, 1, 5, 0, 1),
    (LONG, 8, 2, 64, 1, 40, 1 << 20, 1),
    (ONE, 6, 1, 64, 1, 23, 0, 1),
]


def mutant_passes(*edit):
    solution = on_cpu(edit)
    for order in ("", "reversed"):
        os.environ["EMULATED_ORDER"] = order
        for *call, split, processors, again, least in ON_MUTANTS:
            force(solution, split, processors, again=again, least=least)
            if not passes(solution, *call) or solution.workspace.counters.any():
                return 1
    return 0


@recalled_for(SOLUTION)
def test_calls_of_mutants_are_right():
    same = MUTANTS[0][0]
    assert in_a_fork(lambda: mutant_passes(same, same)) == 0


@recalled_for(SOLUTION)
@pytest.mark.parametrize("mutant", share_of(MUTANTS))
def test_mutants_fail(mutant):
    assert in_a_fork(lambda: mutant_passes(*mutant)) != 0


# Compiled, and on a GPU -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)  # nvcc takes two minutes on half a core
def test_it_compiles_without_spills():
    solution = module()
    made = nvcc.kernels_of(nvcc_of(solution), solution.library.folder / "attention_shares.cu")
    assert len(made) == 4 * len(HEAD_DIMS)
    names = "derby_long_attention_in_shares", "derby_combine_chunks"
    assert [sum(name in kernel.name for kernel in made) for name in names] == [2 * len(HEAD_DIMS)] * 2
    for kernel in made:
        size, few = map(int, re.search(r"AttentionShapeILi(\d+)E.*?Lb([01])E", kernel.name).groups())
        assert kernel.registers <= (232 if few and size > 128 else 168)
        assert kernel.spilled <= (0 if "combine" in kernel.name else 72), kernel


BATCH = [(8, 9000), (8, 70), (5, 30000), (1, 1), (37, 900), (90, 4000), (8, 12000)]


def counters_are_zero(solution):
    torch.cuda.synchronize()
    return not any(space.tensors[0].any() for space in solution.workspace.workspace.kept.values())


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("split", [0, 1])
def test_on_a_gpu(head_dim, split, monkeypatch):
    solution = module()
    for processors, again in [(132, 0), (132, 1 << 20), (132, -(1 << 20)), (5, 0)]:
        force(solution, split, processors, monkeypatch.setattr, again, 2, 80)
        for heads, kv_heads in [(8, 2), (24, 2), (7, 7)]:
            for lengths in (BATCH, LONE, ONE, [(4, 5000)] * 9):
                assert passes(solution, lengths, heads, kv_heads, head_dim, "cuda"), (processors, heads, lengths)
                assert counters_are_zero(solution)


@pytest.mark.gpu
def test_a_graph_takes_other_lengths(monkeypatch):
    """A captured call is right for any lengths up to the longest, with the same bits as a call of its own."""
    solution = module()
    force(solution, 1, 132, monkeypatch.setattr, 0, 2, 80)
    longest = [(8, 9000)] * 8
    inputs, outputs = called(solution, longest, 8, 2, 128, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution.run(*inputs.values(), *outputs.values())
    for seed in range(4):
        generator = random.Random(seed)
        lengths = [(8, generator.randint(8, generator.choice([8, 100, 9000]))) for _ in longest]
        with_lengths(inputs, lengths)
        inputs["key_cache"].copy_(torch.randn_like(inputs["key_cache"]))
        inputs["value_cache"].copy_(torch.randn_like(inputs["value_cache"]))
        graph.replay()
        status, error = error_of(inputs, outputs)
        assert status is Status.PASSED and error <= MOST_ERROR, lengths
        replayed = outputs["output"].clone()
        solution.run(*inputs.values(), *outputs.values())
        assert torch.equal(replayed, outputs["output"]) and counters_are_zero(solution)
