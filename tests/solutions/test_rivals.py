"""The libraries' kernels of the small and memory-bound operators and of attention.

Without a GPU: files and signatures agree, a missing library is one line at once, and the calls fit the ops' real
schemas and give the operator (stand-ins: library_ops.py), both with outputs of their own and in place. On a GPU each is
checked at hot workloads.
"""

import contextlib
import importlib.util
import inspect
import sys
import tomllib
import types
from pathlib import Path

import attention_ops
import fakes
import library_ops
import pytest
import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker, shape_of, torch_dtype
from kernelderby.measure.machine.probe import Machine, find_machine
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

ROOT = Path(__file__).resolve().parents[2]
CATALOG = Catalog.open(ROOT)
MODULE_OF = {
    "vllm": "vllm",
    "sgl-kernel": "sgl_kernel",
    "flashinfer": "flashinfer",
    "fla": "fla",
    "flashmla": "vllm",
    "torch": None,
    "liger": "liger_kernel",
    "cudnn": "cudnn",
    "sglang": "sglang",
}
OPERATORS = {
    "rms_norm",
    "fused_add_rms_norm",
    "layer_norm",
    "l2_norm",
    "gated_rms_norm",
    "fused_qk_rmsnorm",
    "silu_and_mul",
    "fp8_dynamic_per_token_quant",
    "per_token_group_quant_fp8",
    "fused_rmsnorm_quant",
    "fused_qkv_rope",
    "mrope",
    "reshape_and_cache",
    "causal_conv1d",
    "topk_filter",
    "moe_topk_gating_softmax",
    "moe_align_block_size",
    "moe_count_and_sort",
    "moe_sum_reduce",
    "fused_moe",
    "fp8_blockscale_fused_moe",
    "block_scaled_mm",
    "unified_attention",
    "attention_forward",
    "paged_attention_decode",
    "mla_decode_attention",
    "mla_paged_decode_attention",
    "gated_delta_rule_update",
    "gated_delta_rule_varlen",
    "chunk_gated_delta_rule_state",
    "chunk_delta_rule_output",
}
RIVALS = {
    solution.name: solution
    for solution in CATALOG.solutions.values()
    if solution.author in MODULE_OF and solution.definition in OPERATORS
}
NEED_A_LIBRARY = sorted(name for name, solution in RIVALS.items() if solution.author != "torch")
COMPILED = sorted(
    name
    for name, solution in RIVALS.items()
    if solution.author in ("vllm", "sgl-kernel", "flashmla")
    and "vllm.model_executor" not in solution.requires.modules
    and solution.definition not in ("block_scaled_mm", "fp8_blockscale_fused_moe")  # test_competitors.py
)
CHANGED_IN_033 = ("vllm_moe_align_block_size", "vllm_moe_sum_reduce", "vllm_moe_topk_gating_softmax")
HOPPER = Machine("cuda", gpu=GpuSeen("NVIDIA H200", "9.0"))


def loaded(name):
    solution = RIVALS[name]
    return load_solution(CATALOG.definition(solution.definition), solution)


@pytest.mark.parametrize("name", RIVALS)
def test_path_files_and_parameters_agree(name):
    solution, definition = RIVALS[name], CATALOG.definition(RIVALS[name].definition)
    author = solution.author.replace("-", "_")
    assert name.removesuffix("_tuned") in (f"{author}_{solution.definition}", f"{author}_triton_{solution.definition}")
    outputs = definition.outputs if solution.destination_passing_style else ()
    parameters = inspect.signature(loaded(name)).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty and each.kind != each.VAR_KEYWORD]
    assert needed == [*definition.inputs, *outputs]
    declared = tomllib.loads((solution.folder / "solution.toml").read_text())
    assert declared["stages"]
    assert declared["requires"]["modules"] or solution.author == "torch"


@pytest.mark.parametrize("name", NEED_A_LIBRARY)
def test_a_missing_library_is_the_reason(name, monkeypatch):
    monkeypatch.setattr(
        "kernelderby.measure.machine.requirements._is_installed", lambda module: module in ("torch", "triton")
    )
    reason = why_not(RIVALS[name], HOPPER)
    assert reason.startswith(f"module {MODULE_OF[RIVALS[name].author]}") and " is not installed" in reason


@pytest.mark.parametrize("name", NEED_A_LIBRARY)
def test_a_missing_library_raises_at_once(name, monkeypatch):
    function, module = loaded(name), MODULE_OF[RIVALS[name].author]
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted, *rest: None if wanted == module else find_spec(wanted, *rest)
    )
    for known in [known for known in sys.modules if known == module or known.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises((RuntimeError, ImportError)) as raised:
        call_once(function, name)
    assert module in str(raised.value) and "\n" not in str(raised.value)


def test_vllm_without_the_file_names_it(tmp_path, monkeypatch):
    """A folder called vllm without the library, as a partial installation would leave it."""
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(RuntimeError, match=r"^_moe_C_stable_libtorch.abi3.so is not in \S+/vllm; pip install vllm"):
        call_once(loaded("vllm_moe_sum_reduce"), "vllm_moe_sum_reduce")


BLOCKS = {"flashmla_mla_paged_decode_attention": (64,)}  # tokens of a block that a library takes, where not all


def cases_of(name):
    """Small cases with tokens: an empty grid is nothing that a library serves. Of those that it refuses, none."""
    definition = CATALOG.definition(RIVALS[name].definition)
    module = load_definition_module(definition)
    return [
        case
        for case in small_cases(definition, module.SMALL_AXES, module.SMALL_VARIANTS, 1)
        if all(case.sizes.values()) and (name not in BLOCKS or case.sizes["block_size"] in BLOCKS[name])
    ]


def buffers(name, case):
    """Inputs and outputs by name; the outputs hold 77."""
    definition = CATALOG.definition(RIVALS[name].definition)
    maker = InputMaker(definition, load_definition_module(definition), case, torch.device("cpu"), ROOT)
    return maker.make(), {
        output: torch.full(shape_of(spec, case.sizes), 77, dtype=torch_dtype(spec.dtype))
        for output, spec in definition.outputs.items()
    }


def call_once(function, name):
    inputs, outputs = buffers(name, cases_of(name)[0])
    function(*inputs.values(), *(outputs.values() if RIVALS[name].destination_passing_style else ()))


@pytest.fixture(scope="module")
def stand_ins(request):
    """The ops under the real schemas of one vLLM, for as long as this module's tests run."""
    installed = [module for module in ("vllm", "sgl_kernel") if importlib.util.find_spec(module)]
    if installed:
        pytest.skip(f"{' and '.join(installed)} is installed: its ops cannot be replaced")
    if fakes.fake_sgl_kernel.cache_info().currsize:  # of tests that ran before, under the same names
        fakes.fake_sgl_kernel().library._destroy()
        fakes.fake_sgl_kernel.cache_clear()
    libraries = library_ops.register({**request.param, **library_ops.SGL, **attention_ops.OPS})
    yield
    for library in libraries:
        library._destroy()


@pytest.mark.parametrize("memory", ["own", "in_place"])
@pytest.mark.parametrize(
    ("name", "stand_ins"),
    [
        *(pytest.param(name, library_ops.VLLM, id=name) for name in COMPILED),
        *(pytest.param(name, library_ops.VLLM_033, id=f"{name}-0.33") for name in CHANGED_IN_033),
    ],
    indirect=["stand_ins"],
)
def test_calls_fit_the_schemas(name, memory, stand_ins, monkeypatch, tmp_path):
    shared = RIVALS[name].in_place
    if memory == "in_place" and not shared:
        pytest.skip("the library's op has outputs of its own")
    for file in ("_C_stable_libtorch", "_moe_C_stable_libtorch", "vllm_flash_attn/_vllm_fa3_C", "_flashmla_C"):
        path = tmp_path / "vllm" / f"{file}.abi3.so"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setitem(sys.modules, "sgl_kernel", types.ModuleType("sgl_kernel"))
    function, definition = loaded(name), CATALOG.definition(RIVALS[name].definition)
    for case in cases_of(name):
        inputs, outputs = buffers(name, case)
        before = {key: value.clone() if torch.is_tensor(value) else value for key, value in inputs.items()}
        if memory == "in_place":
            outputs |= {output: inputs[source] for output, source in shared.items()}
        function(*inputs.values(), *outputs.values())
        verdict = judge(definition, load_definition_module(definition), before, outputs)
        assert verdict.status is Status.PASSED, f"{case.label}: {verdict.message}"
        changed = [
            key
            for key, value in inputs.items()
            if torch.is_tensor(value) and not torch.equal(value.view(torch.uint8), before[key].view(torch.uint8))
        ]
        assert memory == "in_place" or not changed


def _norm(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _fused_add(x, residual, weight, eps):
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(_norm(total, weight, eps))


def _align(ids, experts, block, places, of_block, used, first_place, fill, *, pad_expert_ids):
    assert fill and pad_expert_ids and first_place.shape == (experts + 1,)
    slots = types.SimpleNamespace(shape=(len(of_block), block))
    reference = load_definition_module(CATALOG.definition("moe_align_block_size")).run
    for mine, theirs in zip((places.view(-1, block), of_block, used), reference(ids, slots), strict=True):
        mine.copy_(theirs)


def _quantize(x, out, scale):
    scale.copy_(x.float().abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448)
    out.copy_((x.float() / scale).clamp(-448, 448).to(out.dtype))


def _rotate(query, key, table, positions, *, is_neox):
    assert is_neox and table.dtype == torch.float32
    cos, sin = table[positions.long(), None].chunk(2, -1)
    for heads in (query, key):
        first, second = heads.float().chunk(2, -1)
        heads.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))


# FAKES of SGLang's functions, under its signatures, in plain torch.
FAKE_SGLANG = {
    "layernorm.norm": {
        "rmsnorm": lambda x, weight, out, eps: out.copy_(_norm(x, weight, eps)),
        "fused_add_rmsnorm": _fused_add,
        "fused_inplace_qknorm": lambda q, k, one, two, eps: (q.copy_(_norm(q, one, eps)), k.copy_(_norm(k, two, eps))),
    },
    "activation.activation": {"silu_and_mul": lambda x, out: fakes.fake_silu_and_mul(out, x)},
    "moe.moe_topk_softmax": {
        "topk_softmax": lambda weights, ids, logits: [
            mine.copy_(theirs) for mine, theirs in zip((weights, ids), logits.softmax(-1).topk(8), strict=True)
        ]
    },
    "moe.moe_align": {"moe_align_block_size": _align},
    "quantization.per_token_quant_fp8": {
        "per_token_quant_fp8": lambda x, out, scale: _quantize(x, out, scale.unsqueeze(-1))
    },
    "quantization.per_token_group_quant": {
        "per_token_group_quant": lambda x, out, scale, size: _quantize(
            x.unflatten(1, (-1, size)), out.unflatten(1, (-1, size)), scale.unsqueeze(-1)
        )
    },
    "attention.rope": {"apply_rope_inplace": _rotate},
    "mamba.causal_conv1d": {"causal_conv1d_fwd": library_ops.causal_conv1d_fwd},
}


@pytest.mark.parametrize("name", [name for name in RIVALS if name.startswith("sglang_")])
def test_calls_of_sglang_give_the_operator(name, monkeypatch):
    for module, functions in FAKE_SGLANG.items():
        monkeypatch.setitem(sys.modules, f"sglang.kernels.ops.{module}", types.SimpleNamespace(**functions))
    function, definition = loaded(name), CATALOG.definition(RIVALS[name].definition)
    for case in cases_of(name):
        inputs, outputs = buffers(name, case)
        before = {key: value.clone() if torch.is_tensor(value) else value for key, value in inputs.items()}
        function(*inputs.values(), *outputs.values())
        verdict = judge(definition, load_definition_module(definition), before, outputs)
        assert verdict.status is Status.PASSED, f"{case.label}: {verdict.message}"


@pytest.fixture
def fake_vllm_experts(monkeypatch):
    """A FAKE of vLLM's fused_experts: plain torch, and what stood in its configuration's place at each call."""
    used, now = [], []

    def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids):
        used.append(now[-1] if now else None)
        reference = load_definition_module(CATALOG.definition("fused_moe")).run
        return reference(hidden_states, w1, w2, topk_ids, topk_weights).bfloat16()

    @contextlib.contextmanager
    def override_config(config):
        now.append(config)
        yield
        now.pop()

    package = types.SimpleNamespace(fused_experts=fused_experts, override_config=override_config)
    module = types.SimpleNamespace(
        get_config_file_name=lambda experts, inner, dtype: f"E={experts},N={inner},device_name=FAKE.json",
        try_get_optimal_moe_config=lambda one, two, top_k, dtype, tokens: {"BLOCK_SIZE_M": 16, "tokens": tokens},
    )
    base = "vllm.model_executor.layers.fused_moe"
    for name, found in ((base, package), (f"{base}.fused_moe", module)):
        monkeypatch.setitem(sys.modules, name, found)
    return used


def test_tuned_experts_take_the_entry_that_vllm_would(fake_vllm_experts, monkeypatch):
    """The nearest number of tokens in the table of these experts; else vLLM's own choice."""
    name = "vllm_triton_fused_moe_tuned"
    function = loaded(name)
    own = sys.modules[function.__module__]
    inputs, outputs = buffers(name, cases_of(name)[-1])
    tokens, key = len(inputs["hidden_states"]), own.tuning_key(*inputs.values())
    experts, _, inner = inputs["down_weight"].shape
    assert key == f"E={experts},N={inner},device_name=FAKE.json {tokens}"
    first, *others = own.candidates(*inputs.values())
    assert first == {"BLOCK_SIZE_M": 16, "tokens": tokens} and all({*own.NAMES} == {*each} for each in others)
    table = {f"{key.split()[0]} {tokens + 3}": {"at": 3}, f"{key.split()[0]} {tokens + 9}": {"at": 9}}
    for found, used in (({}, None), ({"a GPU": {"date": "", "table": table | {"E=1,N=1.json 1": {}}}}, {"at": 3})):
        monkeypatch.setattr(own.tuned, "FOUND", found)
        own.table.cache_clear()
        function(*inputs.values(), *outputs.values())
        assert fake_vllm_experts[-1] == used
        definition = CATALOG.definition("fused_moe")
        assert judge(definition, load_definition_module(definition), inputs, outputs).status is Status.PASSED


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(RIVALS))
def test_right_at_hot_workloads(name):
    """The smallest, a middle and (below 4 GB of traffic) the largest workload."""
    from kernelderby.measure.run.checks import plan_checks, run_checks

    machine = find_machine(ROOT, "cuda")
    reason = why_not(RIVALS[name], machine)
    if reason:
        pytest.skip(reason)
    sized = sorted(
        (
            one
            for one in CATALOG.workloads(RIVALS[name].definition)
            if one.cost.bytes_read + one.cost.bytes_written < 4 << 30
        ),
        key=lambda one: one.cost.bytes_read + one.cost.bytes_written,
    )
    chosen = {sized[place].uuid[:12] for place in (0, len(sized) // 2, -1)}
    plan = plan_checks(
        CATALOG, machine, solutions=[name], definitions=[RIVALS[name].definition], workloads=sorted(chosen)
    )
    results = run_checks(CATALOG, machine, plan, 300, lambda result: None)
    assert len(results) == len(chosen)
    assert [f"{one.case}: {one.status} {one.message}" for one in results if one.status is not Status.PASSED] == []
