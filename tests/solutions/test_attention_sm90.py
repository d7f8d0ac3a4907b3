"""derby_unified_attention_sm90 and derby_attention_forward_sm90: they compile without spills; on a GPU, every size."""

import itertools
import math
import random
import re
import shutil
import subprocess
import sys

import nvcc
import on_host
import pytest
import torch
from rowwise_cases import CATALOG, ROOT, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.cases import case_of_workload, small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

OPERATORS = ("unified_attention", "attention_forward")
HEAD_DIMS = (64, 72, 80, 96, 128, 192, 256)
SPILLED = {64: 64, 72: 96, 256: 32}  # bytes, outside of the loop over the keys
MOST_ERROR = 0.0026  # norm of FlashAttention 3's error over the result's, on its worst shape


def module(operator):
    run = load_solution(CATALOG.definition(operator), CATALOG.solution(f"derby_{operator}_sm90"))
    return sys.modules[run.__module__]


def asked_registers(role, groups):
    """The registers of a thread by attention_shape.cuh, by its role and the number of computing warpgroups."""
    text = (module("attention_forward").library.folder / "attention_shape.cuh").read_text()
    (choice,) = re.findall(rf"{role}_REGISTERS = WARPGROUPS (.*?);", text)
    for compared, bound, given in re.findall(r"(<=|==) (\d) \? (\d+)", choice):
        if groups <= int(bound) if compared == "<=" else groups == int(bound):
            return int(given)
    return int(choice.split(":")[-1])


@pytest.mark.timeout(900)  # nvcc takes two minutes on half a core
@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles_without_spills(operator):
    solution = module(operator)
    made = nvcc.kernels_of(on_host.nvcc_of(solution), solution.library.folder / "kernel.cu")
    kernels = [(kernel.name, kernel.spilled, kernel.registers) for kernel in made]
    assert len(kernels) >= len(HEAD_DIMS)
    for name, spilled, registers in kernels:
        size = int(re.search(r"AttentionShapeILi(\d+)E", name).group(1))
        assert "derby_long_attention" in name and registers <= 168, (name, registers)
        assert spilled <= SPILLED.get(size, 8), (name, spilled)
        # setmaxnreg waits for ever where the warpgroups ask for more than the CTA starts with.
        groups = int(re.search(r"AttentionShapeILi\d+ELi\d+ELi(\d)E", name).group(1))
        asked = groups * asked_registers("CONSUMER", groups) + asked_registers("PRODUCER", groups)
        assert asked <= (groups + 1) * registers, (name, asked)


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_sources_are_named(operator):
    sources = CATALOG.solution(f"derby_{operator}_sm90").sources
    named = [path for path in sources if path.endswith((".cu", ".cuh"))]
    solution = module(operator)
    libraries = [solution.library]
    if operator == "unified_attention":
        decode = solution.paged_decode
        libraries += [solution.short_library, solution.decode_library, solution.shares_library]
        libraries += [decode.library, decode.long_library, decode.other_library, decode.wide_library]
    else:
        libraries.append(solution.few_library)
    assert {source for each in libraries for source in each.sources} == set(named)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_stage_names_the_kernel(operator):
    (stage,) = CATALOG.solution(f"derby_{operator}_sm90").stages
    assert all(
        re.search(pattern, "void derby::derby_long_attention<derby::AttentionShape<72, 128>>(CUtensorMap)")
        for pattern in stage.kernels
    )


def planning():
    return module("attention_forward").planning


def test_python_and_cuda_have_the_same_tiles():
    """Kernels of planning.py and of attention_shape.cuh: head size -> (keys, rows) of the wide and of the split one."""
    for operator in OPERATORS:
        text = (module(operator).library.folder / "attention_shape.cuh").read_text()
        for split, name, table in ((False, "WIDE", planning().WIDE), (True, "SPLIT", planning().SPLIT)):
            (forms,) = re.findall(rf"{name}_FORMS\[\] = (.*?);", text, re.DOTALL)
            tiles = {
                int(size): (int(keys), 64 * (1 if split else int(groups)))
                for size, keys, groups in re.findall(r"\{(\d+), (\d+), (\d), \d\}", forms)
            }
            table = {**(module("unified_attention").sharing.FEW if split else {}), **table}
            assert tiles == {size: (kernel.keys, kernel.rows) for size, kernel in table.items()}


def test_a_plan_covers_every_tile():
    """Chunks of each cut put together are all blocks of all tiles that it cuts; memory is enough for all chunks."""
    for sizes in [
        (1000, 1, 1000, 1000, 16, 2, 128, True, 132),
        (2116, 1, 2116, 2116, 16, 16, 72, False, 132),
        (64, 64, 1, 4096, 32, 8, 128, True, 132),
        (1, 1, 1, 1, 8, 8, 64, False, 132),
    ]:
        for work in planning().Call(*sizes).works():
            for cut in [*work.cuts(), *work.halves()]:
                made = work.plan(cut)
                assert cut.first + cut.tiles <= work.tiles and (cut.chunks == 1) == (cut.tiles == 0)
                assert made.cut == cut and made.counters == cut.tiles * work.owners
                assert made.floats == cut.tiles * cut.chunks * work.owners * 128 * (work.size // 2 + 4)
                assert cut.chunks * cut.chunk_blocks >= work.longest
        assert planning().plan(*sizes) == planning().plan(*sizes)


def test_a_causal_tile_sees_the_keys_up_to_its_last_row():
    call = planning().Call(300, 1, 300, 420, 4, 2, 128, True, 132)
    assert call.tile_lengths(128) == [420, 420 - 128, 420 - 256], "the tile that is not full is the first"
    assert planning().Call(300, 1, 300, 300, 4, 4, 72, False, 132).tile_lengths(192) == [300, 300]
    assert len(planning().Call(10, 4, 5, 50, 4, 4, 72, True, 132).tile_lengths(64)) == 4


def test_long_sequences_are_trusted():
    """Where the error of a near origin is small; all kernels of a call alike."""
    for length in (planning().TRUSTED - 1, planning().TRUSTED):
        for heads in (1, 16):
            made = planning().plan(length, 1, length, length, heads, heads, 72, False, 132)
            assert made.trusting == (length == planning().TRUSTED)


def test_the_longest_tiles_of_a_short_prefill_are_cut_in_two():
    """110 tiles of 1 to 11 blocks: 22 multiprocessors would have nothing to do while others have 11. Of 144 tiles of 1
    to 9 blocks only the 16 of 9: a multiprocessor that gets another item pays for it. Enough tiles come out even."""
    cut = planning().plan(875, 1, 875, 875, 16, 2, 256, True, 132).cut
    assert cut.first == 0 and 20 <= cut.tiles <= 30 and cut.chunks == 2 and cut.chunk_blocks == 6
    assert planning().plan(1144, 1, 1144, 1144, 16, 2, 128, True, 132).cut == (0, 16, 2, 5)
    for heads, kv_heads, head_dim, tokens in [(256, 32, 256, 875), (16, 16, 192, 1688), (32, 4, 128, 6294)]:
        many = planning().plan(tokens, 1, tokens, tokens, heads, kv_heads, head_dim, True, 132).cut
        assert many == planning().UNCUT, (heads, head_dim)


def test_batches_are_put_in_order_where_it_pays():
    """With uncut tiles, not with few rows, not with more sequences than a CTA sorts while their longest tile is
    computed."""
    assert planning().plan(4096, 256, 1024, 4096, 16, 1, 128, True, 132).sorted == 1
    assert planning().plan(2048, 16, 128, 4096, 16, 1, 256, True, 132).sorted == 1
    for sizes in [
        (6294, 1, 6294, 6294, 32, 4, 128, True, 132),
        (4096, 257, 1024, 4096, 16, 1, 128, True, 132),
        (20000, 200, 300, 300, 16, 4, 64, True, 132),
        (1024, 128, 512, 2048, 16, 16, 128, True, 132),
        (2048, 4, 512, 16384, 64, 8, 64, True, 132),
    ]:
        assert planning().plan(*sizes).sorted == 0, sizes


def test_a_cut_must_be_worth_it(monkeypatch):
    sizes = (5926, 1, 5926, 5926, 8, 1, 256, True, 132)
    assert planning().plan(*sizes).cut != planning().UNCUT
    planning().plan.cache_clear(), planning().planned.cache_clear()
    monkeypatch.setattr(planning(), "WORTH", 2.0)
    assert planning().plan(*sizes).cut == planning().UNCUT
    planning().plan.cache_clear(), planning().planned.cache_clear()


def test_makespan_gives_each_item_to_the_first_that_is_free():
    assert planning().makespan([(4.0, 1), (3.0, 1), (2.0, 2)], 2) == 6.0
    assert planning().makespan([(5.0, 1)], 132) == 5.0
    generator = random.Random(1)
    for _ in range(50):
        runs = [
            (generator.choice([1.1, 2.3, 4.7]), generator.randrange(1, 40)) for _ in range(generator.randrange(1, 9))
        ]
        processors, between = generator.choice([1, 3, 132]), generator.choice([0.0, 1.8])
        free = [0.0] * processors
        for duration, number in runs:
            for _ in range(number):
                first = free.index(min(free))
                free[first] = free[first] + duration + (between if free[first] else 0.0)
        assert planning().makespan(runs, processors, between) == max(free)


def test_what_cannot_be_the_best_plan_is_not_worked_out():
    """Of all cuts the best is found, though most are left out by a bound."""
    generator, left_out = random.Random(2), 0
    for _ in range(40):
        tokens, sequences = generator.choice([64, 700, 4000]), generator.choice([1, 3, 40])
        longest = generator.randrange(200, 30000)
        call = planning().Call(tokens, sequences, min(tokens, longest), longest, 8, 2, 128, True, 132)
        every = [(work.estimate(cut), work.split, cut) for work in call.works() for cut in work.cuts()]
        time, split, cut = min(every)
        work, found = planning().planned(call)
        assert (work.split, found) == (split, cut if cut != planning().UNCUT else work.in_halves())
        left_out += sum(call.works()[each[1]].estimate(each[2], enough=time) == math.inf for each in every)
    assert left_out > 500


# On a GPU -------------------------------------------------------------------------------------------------------------


def error_norm(outputs, wanted):
    return float((outputs.double() - wanted.double()).norm() / wanted.double().norm())


HOST = """
#include <cstdio>
#include "attention_shape.cuh"
int main() {
    for (int number; scanf("%d", &number) == 1;) {
        const derby::Divisor by = derby::divisor(number);
        printf("%u %d\\n", by.factor, by.shift);
    }
}
"""


def test_what_the_host_says_to_divide_by(tmp_path):
    """The kernel's division in 32 bits, at and around multiples of small, large and other numbers."""
    solution = module("attention_forward")
    (tmp_path / "host.cu").write_text(HOST)
    includes = [solution.library.folder]
    made = nvcc.program(on_host.nvcc_of(solution), tmp_path / "host.cu", "-std=c++17", includes=includes)
    most = 2**31 - 1
    numbers = [*range(1, 500), 10007, 1 << 20, (1 << 20) + 1, 1 << 30, most - 1, most]
    ran = subprocess.run([made.path], input="\n".join(map(str, numbers)), capture_output=True, text=True)
    for number, line in zip(numbers, ran.stdout.splitlines(), strict=True):
        factor, shift = map(int, line.split())
        tops = [most // number * number, *(number * times for times in (0, 1, 2, 3, 1000, 123457))]
        for x in {x for top in tops for x in (top - 1, top, top + 1) if 0 <= x <= most} | {most}:
            total = (factor * x >> 32) + x
            assert total < 2**32 and total >> shift == x // number, (x, number)


def run_case(operator, case):
    """(inputs, outputs) of the solution on the GPU; its memory between calls must be zeros again."""
    solution = module(operator)
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    solution.run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    assert not any(space.tensors[0].any() for space in solution.workspace.workspace.kept.values())
    return inputs, outputs


def passes(operator, case):
    inputs, outputs = run_case(operator, case)
    verdict = judge(CATALOG.definition(operator), reference(operator), inputs, outputs)
    assert verdict.status is Status.PASSED, (case.label, verdict)
    return inputs, outputs


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("head_dim", [8, 40, *HEAD_DIMS])
def test_small_sizes(operator, head_dim):
    """No token, one token, tails of pages and tiles, context, ragged lengths, tables wider than used."""
    definition, small = CATALOG.definition(operator), reference(operator)
    variants = [{**variant, "head_dim": head_dim, "sm_scale": head_dim**-0.5} for variant in small.SMALL_VARIANTS]
    for case in small_cases(definition, small.SMALL_AXES, variants, 2):
        passes(operator, case)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_workload(operator):
    definition = CATALOG.definition(operator)
    for workload in CATALOG.workloads(operator):
        case = case_of_workload(definition, workload)
        inputs, outputs = passes(operator, case)
        wanted = reference(operator).run(*inputs.values())
        assert error_norm(outputs["output"], wanted) <= MOST_ERROR, case.label
        del inputs, outputs, wanted
        torch.cuda.empty_cache()


# Both kernels of a head size, with whole tiles and with chunks of them.
CUTS = [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def forced(monkeypatch_plan, solution, split, chunks):
    """Every call of the solution takes this kernel and cuts every tile, or the first half of them in two, at any
    size."""

    def plan(*sizes):
        works = solution.planning.Call(*sizes).works()
        work = works[min(split, len(works) - 1)]
        if chunks == 1:
            return work.plan(solution.planning.UNCUT)
        tiles = -(-work.tiles // 2) if chunks == 2 else work.tiles
        return work.plan(solution.planning.Cut(0, tiles, chunks, -(-work.longest // chunks)))

    monkeypatch_plan(solution.planning, "plan", plan)


def run_cut(head_dim, split, chunks, monkeypatch_plan=setattr, run=None):
    """A ragged batch and a single sequence of each operator, with one kernel and a given number of chunks."""
    run = run or run_case
    scale = {"head_dim": head_dim, "sm_scale": head_dim**-0.5}
    for operator in OPERATORS:
        forced(monkeypatch_plan, module(operator), split, chunks)
    run(
        "unified_attention",
        case_of(
            "unified_attention",
            num_tokens=500,
            num_seqs=3,
            len_cu_seqlens=4,
            num_blocks=60,
            max_blocks_per_seq=40,
            max_query_len=300,
            max_seq_len=420,
            **scale,
        ),
    )
    run(
        "unified_attention",
        case_of(
            "unified_attention",
            num_tokens=210,
            num_seqs=1,
            len_cu_seqlens=2,
            num_blocks=20,
            max_blocks_per_seq=20,
            max_query_len=210,
            max_seq_len=320,
            **scale,
        ),
    )
    run("attention_forward", case_of("attention_forward", num_tokens=700, len_cu_seqlens=4, max_seqlen=400, **scale))
    run("attention_forward", case_of("attention_forward", num_tokens=270, len_cu_seqlens=2, max_seqlen=270, **scale))


@pytest.mark.gpu
@pytest.mark.parametrize("split, chunks", CUTS)
def test_both_kernels_whole_and_in_chunks(split, chunks, monkeypatch):
    for head_dim in HEAD_DIMS:
        run_cut(head_dim, split, chunks, monkeypatch.setattr, passes)


@pytest.mark.gpu
@pytest.mark.parametrize("trusted", [0, 1 << 30])
def test_scores_that_outgrow_the_first(trusted, monkeypatch):
    """Scores a hundred times as large, later ones far above the first: with weights of the largest score so far, and
    with those that only a sum says are too large. Chunks and whole tiles of both kernels."""

    def far_apart(operator, case):
        solution = module(operator)
        inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
        inputs["query"] *= 100
        solution.run(*inputs.values(), *outputs.values())
        wanted = reference(operator).run(*inputs.values())
        assert error_norm(outputs["output"], wanted) <= MOST_ERROR, case

    for operator in OPERATORS:
        monkeypatch.setattr(module(operator).planning, "TRUSTED", trusted)
    for (split, chunks), head_dim in itertools.product(CUTS, HEAD_DIMS):
        run_cut(head_dim, split, chunks, monkeypatch.setattr, far_apart)


def ragged_cases():
    """Sequences of very different lengths; groups of 1, 3, 5, 7 and 8 query heads; enough tiles for several a CTA."""
    for head_dim, (heads, kv_heads) in itertools.product(
        HEAD_DIMS, [(2, 2), (6, 2), (10, 2), (7, 1), (16, 2), (32, 2)]
    ):
        yield case_of(
            "unified_attention",
            num_tokens=3000,
            num_seqs=23,
            len_cu_seqlens=24,
            num_blocks=700,
            max_blocks_per_seq=70,
            num_query_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_query_len=900,
            max_seq_len=1100,
            sm_scale=head_dim**-0.5,
        )


@pytest.mark.gpu
def test_ragged_batches():
    for case in ragged_cases():
        passes("unified_attention", case)


@pytest.mark.gpu
def test_a_sequence_without_tokens_between_others():
    for head_dim in HEAD_DIMS:
        case = case_of(
            "attention_forward",
            num_tokens=700,
            num_heads=3,
            len_cu_seqlens=4,
            max_seqlen=400,
            head_dim=head_dim,
            sm_scale=head_dim**-0.5,
        )
        inputs, outputs = inputs_of("attention_forward", case, "cuda"), outputs_of("attention_forward", case, "cuda")
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            inputs[name].copy_(torch.tensor([0, 400, 400, 700], dtype=torch.int32))
        module("attention_forward").run(*inputs.values(), *outputs.values())
        wanted = reference("attention_forward").run(*inputs.values())
        assert error_norm(outputs["output"], wanted) <= MOST_ERROR


@pytest.mark.gpu
def test_slots_past_a_sequence_do_not_count():
    """NaN in the last block's free slots and in blocks that no sequence holds, which entries behind the last name."""
    case = case_of(
        "unified_attention",
        num_tokens=300,
        num_seqs=3,
        len_cu_seqlens=4,
        num_blocks=80,
        max_blocks_per_seq=40,
        max_query_len=140,
        max_seq_len=270,
    )
    inputs, outputs = run_case("unified_attention", case)
    spoilt = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    held = torch.zeros(80, 16, dtype=torch.bool, device="cuda")
    for sequence, length in enumerate(inputs["seq_lens"].tolist()):
        blocks = -(-length // 16)
        slots = torch.arange(blocks * 16, device="cuda").view(blocks, 16) < length
        held[inputs["block_table"][sequence, :blocks].long()] = slots
        spoilt["block_table"][sequence, blocks:] = 79
    for name in ("key_cache", "value_cache"):
        spoilt[name][~held] = float("nan")
    again = outputs_of("unified_attention", case, "cuda")
    module("unified_attention").run(*spoilt.values(), *again.values())
    assert torch.equal(outputs["output"], again["output"])


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_another_sequence_without_a_number_does_not_count(head_dim, monkeypatch):
    """The next sequence's values are NaN: its own output is, the others' are what they were; every kernel and cut."""
    for split, chunks in CUTS:
        forced(monkeypatch.setattr, module("attention_forward"), split, chunks)
        case = case_of(
            "attention_forward",
            num_tokens=700,
            num_heads=3,
            len_cu_seqlens=5,
            max_seqlen=400,
            head_dim=head_dim,
            sm_scale=head_dim**-0.5,
        )
        inputs, outputs = run_case("attention_forward", case)
        first, second = inputs["cu_seqlens_q"].tolist()[2:4]
        again = outputs_of("attention_forward", case, "cuda")
        inputs["value"][first:second] = float("nan")
        module("attention_forward").run(*inputs.values(), *again.values())
        assert again["output"][first:second].isnan().all()
        for rows in (slice(first), slice(second, None)):
            assert torch.equal(outputs["output"][rows], again["output"][rows])


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_graph_and_a_second_call_give_the_same_bits(operator):
    definition = CATALOG.definition(operator)
    for workload in CATALOG.workloads(operator)[:8]:
        inputs, outputs = run_case(operator, case_of_workload(definition, workload))
        run = module(operator).run
        first = outputs["output"].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(*inputs.values(), *outputs.values())
        for _ in range(3):
            outputs["output"].fill_(float("nan"))
            graph.replay()
            assert torch.equal(first, outputs["output"])


@pytest.mark.gpu
@pytest.mark.parametrize("split, chunks", CUTS)
def test_who_takes_an_item_makes_no_difference(split, chunks, monkeypatch):
    """The same bits from three CTAs, each with many items, as from one for each item."""
    found = []

    def keep(operator, case):
        found.append(run_case(operator, case)[1]["output"].clone())

    for head_dim in HEAD_DIMS:
        run_cut(head_dim, split, chunks, monkeypatch.setattr, keep)
    many, found = found, []
    for operator in OPERATORS:
        monkeypatch.setattr(module(operator).planning, "processors", lambda device: 3)
    for head_dim in HEAD_DIMS:
        run_cut(head_dim, split, chunks, monkeypatch.setattr, keep)
    assert all(torch.equal(one, other) for one, other in zip(many, found, strict=True))


SANITIZED = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
import test_attention_sm90 as tests
for cut in tests.CUTS:
    for head_dim in tests.HEAD_DIMS:
        tests.run_cut(head_dim, *cut)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool):
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not shutil.which(sanitizer):
        pytest.skip("no compute-sanitizer")
    script = SANITIZED.format(tests=str(ROOT / "tests" / "solutions"), root=str(ROOT))
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
