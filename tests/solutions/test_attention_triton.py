"""derby_unified_attention_triton and derby_attention_forward_triton: in Triton's interpreter at odd sizes, with
mutants, and compiled for sm_90 and sm_100."""

import dataclasses
import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from on_host import interpreter, recalled_for, share_of
from rowwise_cases import CATALOG, case_of, inputs_of, meta_arguments, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

NAMES = ("unified_attention", "attention_forward")


@functools.cache
def module(name, *edits):
    """The module of derby_<name>_triton; edits are (old, new) in whichever of its sources holds `old`."""
    solution = CATALOG.solution(f"derby_{name}_triton")
    sources = dict(solution.sources)
    for old, new in edits:
        holders = [path for path, text in sources.items() if old in text]
        assert len(holders) == 1, f"{old!r} stands in {holders}"
        sources[holders[0]] = sources[holders[0]].replace(old, new)
    run = load_solution(CATALOG.definition(name), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


def status(name, inputs, case, configs, *edits):
    solution = module(name, *edits)
    ends = []
    for config in configs:
        outputs = outputs_of(name, case)
        solution.run_with(config, *inputs.values(), *outputs.values())
        ends.append(judge(CATALOG.definition(name), reference(name), inputs, outputs).status)
    return next((end for end in ends if end is not Status.PASSED), Status.PASSED)


def config_of(name, **changes):
    config = {"rows": 16, "tile": 32, "warps": 4, "stages": 2}
    return {**config, **({"splits": 1} if name == "unified_attention" else {}), **changes}


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "name, place", [(name, i) for name in NAMES for i in range(len(reference(name).SMALL_VARIANTS))], ids=str
)
@recalled_for("derby_{name}_triton", compiler=interpreter())
def test_every_small_variant(name, place):
    case = case_of(name, **reference(name).SMALL_VARIANTS[place])
    inputs = inputs_of(name, case)
    rows = 16 if case.sizes["num_tokens"] < 60 else 128
    other = config_of(name, rows=rows, **({"tile": 16, "splits": 4} if name == "unified_attention" else {}))
    configs = [other, module(name).candidates(*inputs.values())[0]]
    assert status(name, inputs, case, configs) is Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize("name", NAMES)
@recalled_for("derby_{name}_triton", compiler=interpreter())
def test_every_candidate(name):
    case = case_of(name)
    inputs = inputs_of(name, case)
    assert status(name, inputs, case, share_of(module(name).candidates(*inputs.values()))) is Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "name, old, new",
    [
        ("unified_attention", "<= (context + token)", "< (context + token)"),
        ("unified_attention", "<= (context + token)", "<= (context + token + 1)"),
        ("unified_attention", "* PAGE + (at + column) % PAGE\n        output0", "* PAGE\n        output0"),
        ("unified_attention", "keys = key_cache + kv_head * HEAD_DIM", "keys = key_cache"),
        ("unified_attention", "float(sm_scale) * LOG2_E", "float(sm_scale)"),
        ("unified_attention", "total = total * factor", "total = total"),
        ("attention_forward", "* HEADS + head) * HEAD_DIM\n    queries0", "* HEADS) * HEAD_DIM\n    queries0"),
        ("attention_forward", "plain + column < length", "plain + column < length + 1"),
        ("attention_forward", "if plain < length", "if plain > length"),
        ("attention_forward", "output1 * factor[:, None])\n", "output1)\n"),
    ],
)
@recalled_for("derby_{name}_triton", compiler=triton.__version__)
def test_mutants_fail(name, old, new):
    case = case_of(name, **({"num_tokens": 100, "max_seqlen": 60} if name == "attention_forward" else {}))
    inputs = inputs_of(name, case)
    assert status(name, inputs, case, [config_of(name)], (old, new)) is not Status.PASSED


def spoiled(name, inputs):
    """The inputs with NaN where no token of a sequence lies (attention_forward: with a second batch of NaN behind the
    last sequence), in copies. 0 times NaN is NaN, so weights of 0 do not hide it."""
    spoilt = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    if name == "attention_forward":
        for key in ("key", "value"):
            spoilt[key] = torch.cat([inputs[key], torch.full_like(inputs[key], float("nan"))])
        return spoilt
    held = torch.zeros(spoilt["key_cache"].shape[:2], dtype=torch.bool)
    for length, blocks in zip(inputs["seq_lens"].tolist(), inputs["block_table"].long(), strict=True):
        held[blocks[torch.arange(length) // 16], torch.arange(length) % 16] = True
    for key in ("key_cache", "value_cache"):
        spoilt[key][~held] = float("nan")
    return spoilt


@pytest.mark.interpreted
@pytest.mark.parametrize("name", NAMES)
@recalled_for("derby_{name}_triton", compiler=interpreter())
def test_what_lies_behind_a_sequence_does_not_count(name):
    case = case_of(name, **({"num_tokens": 100, "max_seqlen": 60} if name == "attention_forward" else {}))
    inputs = inputs_of(name, case)
    outputs = [outputs_of(name, case) for _ in range(2)]
    for which, given in enumerate((inputs, spoiled(name, inputs))):
        module(name).run_with(config_of(name), *given.values(), *outputs[which].values())
    assert torch.equal(outputs[0]["output"], outputs[1]["output"])


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "name, old, new",
    [
        ("unified_attention", "slot * (KV_HEADS * HEAD_DIM), known,", "slot * (KV_HEADS * HEAD_DIM), known | True,"),
        (
            "attention_forward",
            "(HEADS * HEAD_DIM), known, known[None, :]",
            "(HEADS * HEAD_DIM), known | True, known[None, :]",
        ),
    ],
)
@recalled_for("derby_{name}_triton", compiler=interpreter())
def test_values_behind_a_sequence_that_are_read_show(name, old, new):
    case = case_of(name, **({"num_tokens": 100, "max_seqlen": 60} if name == "attention_forward" else {}))
    inputs = inputs_of(name, case)
    outputs = outputs_of(name, case)
    module(name, (old, new)).run_with(config_of(name), *spoiled(name, inputs).values(), *outputs.values())
    assert outputs["output"].isnan().any()


@pytest.mark.interpreted
@recalled_for(*(f"derby_{name}_triton" for name in NAMES), compiler=interpreter())
def test_parts_that_are_put_together_wrongly_fail():
    case = case_of("unified_attention")
    edit = "factor /= tl.sum(factor * total, axis=0)", "factor /= tl.sum(total, axis=0)"
    configs = [config_of("unified_attention", splits=4)]
    assert status("unified_attention", inputs_of("unified_attention", case), case, configs, edit) is not Status.PASSED


class Launches:
    """Stands for a kernel: remembers how it was launched."""

    def __init__(self, kernel, made):
        self.kernel, self.made = kernel, made

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.made.append((self.kernel, arguments, constants))


def triton_type(value):
    if isinstance(value, torch.Tensor):
        return "*" + {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}[value.dtype]
    return {int: "i32", float: "fp32"}[type(value)]


SHAPES = [
    (name, place)
    for name, places in {"unified_attention": (0, 4, 5, 8, 25, 33), "attention_forward": (0, -1)}.items()
    for place in places
]


def launches(name, place, monkeypatch, choose):
    """(kernel, Triton types of its arguments, constants, options) of each launch of a workload's call, in the
    configurations that choose(candidates) picks."""
    one, made = module(name).kernels, []
    for kernel in (f"derby_{name}", f"derby_{name}_join"):
        if hasattr(one, kernel):
            monkeypatch.setattr(one, kernel, Launches(getattr(one, kernel), made))
    arguments = meta_arguments(name, CATALOG.workloads(name)[place])
    for config in choose(one.candidates(*arguments[: len(CATALOG.definition(name).inputs)])):
        one.run_with(config, *arguments)
    assert made
    for kernel, values, constants in made:
        options = {key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants}
        types = {key: triton_type(value) for key, value in zip(kernel.arg_names, values, strict=False)}
        yield kernel, types, constants, options


@compiled
@pytest.mark.parametrize("name, place", SHAPES, ids=str)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@recalled_for("derby_{name}_triton", compiler=triton.__version__)
def test_the_first_choice_compiles(name, place, target, monkeypatch):
    for kernel, signature, constants, options in launches(name, place, monkeypatch, lambda found: found[:1]):
        binary = compile_kernel(kernel, signature, constants, target, **options)
        assert f".target {target}" in binary.asm["ptx"]
        assert binary.metadata.shared <= 227 * 1024


HALVES = re.compile(
    r"UIADD3(?P<upper>\.X)? UR\d+, (?:(?P<out>UP\d), )?(?P<source>UR\d+|URZ), -?0x[0-9a-f]+, URZ"
    r"(?:, (?P<carry>UP\d), !UPT)?"
)


def doubled_halves(sass):
    """How often a sum of 64 bits takes one register for both of its halves: a descriptor's lower half is never 0."""
    lower, found = {}, 0
    for sum_ in HALVES.finditer(sass):
        if not sum_["upper"] and sum_["out"]:
            lower[sum_["out"]] = sum_["source"]
        elif sum_["upper"] and sum_["source"] != "URZ":
            found += lower.get(sum_["carry"]) == sum_["source"]
    return found


def disassembled(cubin):
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout


@compiled
@pytest.mark.parametrize("name, place", [("unified_attention", 5), ("attention_forward", 18), ("attention_forward", 9)])
@recalled_for("derby_{name}_triton", compiler=triton.__version__)
def test_descriptors_are_assembled_right(name, place, monkeypatch):
    """The first two choices as they are launched; with the assembler of Triton 3.6 and 3.7, tiles of 64 are not."""
    for kernel, signature, constants, options in launches(name, place, monkeypatch, lambda found: found[:2]):
        made = compile_kernel(kernel, signature, constants, "sm_90", **options)
        assert "wgmma.mma_async" in made.asm["ptx"]
        assert doubled_halves(disassembled(made.asm["cubin"])) == 0, (kernel, constants, options)


def test_a_doubled_half_is_seen():
    right = "UIADD3 UR10, UP0, UR10, 0x20, URZ ;\nUIADD3.X UR11, URZ, -0x3ffffff0, URZ, UP0, !UPT ;"
    assert doubled_halves(right) == 0
    assert doubled_halves(right.replace("UR11, URZ", "UR11, UR10")) == 1
