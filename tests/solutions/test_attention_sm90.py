"""derby_unified_attention_sm90 and derby_attention_forward_sm90: they compile without spills; on a GPU, every size."""

import itertools
import re
import shutil
import subprocess
import sys

import pytest
import torch
from rowwise_cases import CATALOG, ROOT, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.cases import case_of_workload, small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.trace import Status

OPERATORS = ("unified_attention", "attention_forward")
HEAD_DIMS = (64, 72, 80, 96, 128, 192, 256)
MOST_ERROR = 0.0026  # norm of FlashAttention 3's error over the result's, on its worst shape


def module(operator):
    run = load_solution(CATALOG.definition(operator), CATALOG.solution(f"derby_{operator}_sm90"))
    return sys.modules[run.__module__]


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles_without_spills(operator):
    solution = module(operator)
    try:
        nvcc = solution.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    source = solution.library.folder / "kernel.cu"
    command = [nvcc, "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v", "-o"]
    done = subprocess.run([*command, "/dev/null", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Among the warnings is C7510: wgmma made to wait for registers that the compiler moved.
    assert "warning" not in done.stderr, done.stderr
    found = re.findall(r"entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, re.S)
    kernels = [(name, int(spilled), int(registers)) for name, spilled, registers in found]
    assert len(kernels) >= len(HEAD_DIMS)
    for name, spilled, registers in kernels:
        assert "derby_long_attention" in name and spilled == 0 and registers <= 168, (name, spilled, registers)


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_sources_are_named(operator):
    sources = CATALOG.solution(f"derby_{operator}_sm90").sources
    named = [path for path in sources if path.endswith((".cu", ".cuh"))]
    solution = module(operator)
    short = solution.short_library.sources if operator == "unified_attention" else []
    assert sorted([*solution.library.sources, *short]) == sorted(named)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_stage_names_the_kernel(operator):
    (stage,) = CATALOG.solution(f"derby_{operator}_sm90").stages
    assert all(re.search(pattern, "void derby::derby_long_attention<derby::AttentionShape<72, 128>>(CUtensorMap)")
               for pattern in stage.kernels)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("changes, message", [({"head_dim": 36}, "head_dim 36"), ({"head_dim": 264}, "head_dim 264"),
                                              ({"sm_scale": -1.0}, "sm_scale -1"), ({"sm_scale": 0.0}, "sm_scale 0")])
def test_what_it_is_not_made_for_is_refused(operator, changes, message):
    case = case_of(operator, **changes)
    inputs, outputs = inputs_of(operator, case), outputs_of(operator, case)
    with pytest.raises(ValueError, match=f"derby_{operator}_sm90: .*{message}"):
        module(operator).run(*inputs.values(), *outputs.values())


# On a GPU -------------------------------------------------------------------------------------------------------------


def error_norm(outputs, wanted):
    return float((outputs.double() - wanted.double()).norm() / wanted.double().norm())


def run_case(operator, case):
    """(inputs, outputs) of the solution on the GPU; what it keeps between calls must be zeros again."""
    solution = module(operator)
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    solution.run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    assert all(not counters.any() for counters in solution._counters.values())
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


def ragged_cases():
    """Sequences of very different lengths; groups of 1, 3, 5, 7 and 8 query heads; enough tiles for several a CTA."""
    for head_dim, (heads, kv_heads) in itertools.product(
        HEAD_DIMS, [(2, 2), (6, 2), (10, 2), (7, 1), (16, 2), (32, 2)]
    ):
        yield case_of("unified_attention", num_tokens=3000, num_seqs=23, len_cu_seqlens=24, num_blocks=700,
                      max_blocks_per_seq=70, num_query_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
                      max_query_len=900, max_seq_len=1100, sm_scale=head_dim**-0.5)


@pytest.mark.gpu
def test_ragged_batches():
    for case in ragged_cases():
        passes("unified_attention", case)


@pytest.mark.gpu
def test_a_sequence_without_tokens_between_others():
    for head_dim in HEAD_DIMS:
        case = case_of("attention_forward", num_tokens=700, num_heads=3, len_cu_seqlens=4, max_seqlen=400,
                       head_dim=head_dim, sm_scale=head_dim**-0.5)
        inputs, outputs = inputs_of("attention_forward", case, "cuda"), outputs_of("attention_forward", case, "cuda")
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            inputs[name].copy_(torch.tensor([0, 400, 400, 700], dtype=torch.int32))
        module("attention_forward").run(*inputs.values(), *outputs.values())
        wanted = reference("attention_forward").run(*inputs.values())
        assert error_norm(outputs["output"], wanted) <= MOST_ERROR


@pytest.mark.gpu
def test_slots_past_a_sequence_do_not_count():
    """Huge but finite values in the last block's free slots, in blocks that no sequence holds and in table entries."""
    case = case_of("unified_attention", num_tokens=300, num_seqs=3, len_cu_seqlens=4, num_blocks=80,
                   max_blocks_per_seq=40, max_query_len=140, max_seq_len=270)
    inputs, outputs = run_case("unified_attention", case)
    spoilt = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    held = torch.zeros(80, 16, dtype=torch.bool, device="cuda")
    for sequence, length in enumerate(inputs["seq_lens"].tolist()):
        blocks = -(-length // 16)
        slots = torch.arange(blocks * 16, device="cuda").view(blocks, 16) < length
        held[inputs["block_table"][sequence, :blocks].long()] = slots
        spoilt["block_table"][sequence, blocks:] = 79
    for name in ("key_cache", "value_cache"):
        spoilt[name][~held] = 3e38
    again = outputs_of("unified_attention", case, "cuda")
    module("unified_attention").run(*spoilt.values(), *again.values())
    assert torch.equal(outputs["output"], again["output"])


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


SANITIZED = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
import test_attention_sm90 as tests
from rowwise_cases import case_of
for head_dim in tests.HEAD_DIMS:
    scale = head_dim ** -0.5
    for split in (False, True):
        tests.force(split)
        tests.run_case("unified_attention", case_of(
            "unified_attention", num_tokens=500, num_seqs=3, len_cu_seqlens=4, num_blocks=60, max_blocks_per_seq=40,
            max_query_len=300, max_seq_len=420, head_dim=head_dim, sm_scale=scale))
        tests.run_case("attention_forward", case_of(
            "attention_forward", num_tokens=700, len_cu_seqlens=4, max_seqlen=400, head_dim=head_dim, sm_scale=scale))
"""


def force(split):
    """Both kernels of a head size, whatever the sizes would choose."""
    import os

    os.environ["DERBY_ATTENTION_SPLIT"] = "1" if split else "0"


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool):
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not shutil.which(sanitizer):
        pytest.skip("no compute-sanitizer")
    script = SANITIZED.format(tests=str(ROOT / "tests" / "solutions"), root=str(ROOT))
    done = subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", script],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
