"""The vLLM plugin against stand-ins that register and construct layers as vLLM 0.25.1 does (its custom_op.py and
layers were read for them)."""

import importlib
import sys
import types
from itertools import pairwise

import pytest

pytest.importorskip("torch")

import torch

from kernelderby.deploy.runtime.selector import Selector

ROWS = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


class CustomOp(torch.nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(registry.get(cls.__name__, cls))

    @classmethod
    def register_oot(cls, own, name):
        assert name not in registry
        own.name, registry[name] = name, own
        return own


class RMSNorm(CustomOp):
    name = "rms_norm"

    def __init__(self, hidden_size, eps=1e-6, var_hidden_size=None, has_weight=True):
        super().__init__()
        self.variance_epsilon, self.has_weight, self.variance_size_override = eps, has_weight, var_hidden_size
        self.weight = torch.nn.Parameter(torch.rand(hidden_size).bfloat16())

    def forward(self, x, residual=None):
        return "vllm's"


class RMSNormGated(CustomOp):
    name = "rms_norm_gated"

    def __init__(self, width, group_size=None, norm_before_gate=True, activation="swish"):
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate, self.activation = (
            1e-6,
            group_size,
            norm_before_gate,
            activation,
        )
        self.weight = torch.nn.Parameter(torch.rand(width).bfloat16())

    def forward(self, x, z=None):
        return "vllm's"


class SiluAndMul(CustomOp):
    name = "silu_and_mul"

    def forward(self, x):
        return "vllm's"


class AloneOnItsGPU:
    """vLLM's MoEPrepareAndFinalizeNoDPEPModular."""


class UnquantizedFusedMoEMethod(CustomOp):
    name = "unquantized_fused_moe"

    def __init__(self):
        super().__init__()
        self.unquantized_backend, self.moe = "TRITON", types.SimpleNamespace(has_bias=False)
        self.moe_kernel = types.SimpleNamespace(prepare_finalize=AloneOnItsGPU())

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return "vllm's"


class MRotaryEmbedding(CustomOp):
    name = "mrope"

    def __init__(self, sections=(16, 24, 24), interleaved=False, head_size=128, neox=True):
        super().__init__()
        self.mrope_section, self.mrope_interleaved, self.is_neox_style = list(sections), interleaved, neox
        self.head_size = self.rotary_dim = head_size
        angles = torch.arange(50)[:, None] * 1e6 ** -(torch.arange(0, head_size, 2) / head_size)
        self.cos_sin_cache = torch.cat([angles.cos(), angles.sin()], -1).bfloat16()

    def _match_cos_sin_cache_dtype(self, query):
        return self.cos_sin_cache

    def forward(self, positions, query, key=None, offsets=None):
        return "vllm's"


class FlashAttentionBackend:
    """vLLM's, as far as the plugin's inherits from it."""

    @staticmethod
    def get_kv_cache_shape(blocks, block, heads, width, dtype="auto"):
        return blocks, 2, block, heads, width

    @staticmethod
    def get_impl_cls():
        return FlashAttentionImpl

    @staticmethod
    def get_supported_kernel_block_sizes(spec=None):
        return ["vllm's"]


class FlashAttentionImpl:
    def __init__(self, **other):
        plain = {"sinks": None, "logits_soft_cap": 0, "kv_cache_dtype": "auto", "dcp_world_size": 1, "scale": 0.25}
        self.__dict__.update(plain, attn_type="decoder", sliding_window=(-1, -1), alibi_slopes=None)
        self.__dict__.update(other)

    def forward(self, *given, **named):
        return "vllm's"


class TritonFp8BlockScaledMMKernel:
    @classmethod
    def can_implement(cls, config):
        return True, None


class Others:
    """A kernel of vLLM's."""


registry: dict = {}
MODULES = {
    "vllm.model_executor.custom_op": {"CustomOp": CustomOp, "op_registry_oot": registry},
    "vllm.model_executor.layers.layernorm": {"RMSNorm": RMSNorm, "RMSNormGated": RMSNormGated},
    "vllm.model_executor.layers.activation": {"SiluAndMul": SiluAndMul},
    "vllm.model_executor.layers.fused_moe.activation": {"MoEActivation": types.SimpleNamespace(SILU="silu")},
    "vllm.model_executor.layers.fused_moe.oracle.unquantized": {
        "UnquantizedMoeBackend": types.SimpleNamespace(TRITON="TRITON")
    },
    "vllm.model_executor.layers.fused_moe.prepare_finalize": {"MoEPrepareAndFinalizeNoDPEPModular": AloneOnItsGPU},
    "vllm.envs": {"environment_variables": {}, "VLLM_MOE_SKIP_PADDING": False},
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method": {
        "UnquantizedFusedMoEMethod": UnquantizedFusedMoEMethod
    },
    "vllm.model_executor.kernels.linear": {"_POSSIBLE_FP8_BLOCK_KERNELS": {"cuda": [Others]}},
    "vllm.model_executor.kernels.linear.scaled_mm.triton": {
        "TritonFp8BlockScaledMMKernel": TritonFp8BlockScaledMMKernel
    },
    "vllm.model_executor.layers.rotary_embedding.mrope": {"MRotaryEmbedding": MRotaryEmbedding},
    "vllm.v1.attention.backends.registry": {
        "AttentionBackendEnum": types.SimpleNamespace(CUSTOM="CUSTOM"),
        "register_backend": registry.__setitem__,
    },
    "vllm.v1.attention.backends.flash_attn": {
        "FlashAttentionBackend": FlashAttentionBackend,
        "FlashAttentionImpl": FlashAttentionImpl,
        "FlashAttentionMetadata": types.SimpleNamespace(),
    },
    "vllm.platforms": {"PlatformEnum": types.SimpleNamespace(CUDA="cuda")},
}


def no_cuda(*_):
    raise AssertionError("torch initialises CUDA in the process that forks the engine")


@pytest.fixture
def plugin(package, monkeypatch):
    """With the made-up vLLM, on a CPU that counts as the measured GPU, and every size as measured."""
    registry.clear()
    MODULES["vllm.envs"]["environment_variables"].clear()
    MODULES["vllm.model_executor.kernels.linear"]["_POSSIBLE_FP8_BLOCK_KERNELS"]["cuda"] = [Others]
    for name, members in MODULES.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            if not isinstance(sys.modules.get(path), _Stand):
                monkeypatch.setitem(sys.modules, path, _Stand(path))
            if count > 1:
                setattr(sys.modules[".".join(parts[: count - 1])], parts[count - 1], sys.modules[path])
        sys.modules[name].__dict__.update(members)
    found = importlib.import_module(f"{package.__name__}.vllm_plugin")
    found.lines = []
    engines = importlib.import_module(f"{package.__name__}.engines")
    monkeypatch.setattr(engines, "tell", found.lines.append)
    monkeypatch.setattr(package.OPERATORS[engines.served("fused_moe")], "runs", lambda arguments: "own")
    monkeypatch.setattr(found.torch.cuda, "get_device_name", no_cuda)
    found.platform = types.SimpleNamespace(is_cuda=lambda: True, get_device_name=lambda: "NVIDIA H200")
    sys.modules["vllm.platforms"].current_platform = found.platform
    monkeypatch.setattr(found, "measured", lambda name, **sizes: sizes.get("hidden_size") != 96)
    monkeypatch.setattr(
        found,
        "plain_rows",
        lambda *tensors: all(each.dtype is torch.bfloat16 and each.is_contiguous() for each in tensors),
    )
    monkeypatch.setenv(found.SWITCH, "all")
    return found


class _Stand(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []


def test_it_is_off_unless_it_is_switched_on(plugin, monkeypatch):
    monkeypatch.delenv(plugin.SWITCH)
    plugin.register()
    assert registry == {} and "installed and off" in plugin.lines[0]


def test_a_name_that_is_no_operator_is_an_error(plugin, monkeypatch):
    monkeypatch.setenv(plugin.SWITCH, "rms_norm,rope")
    with pytest.raises(ValueError, match="there is no 'rope'; there are rms_norm, gated_norm"):
        plugin.register()


def test_another_gpu_leaves_vllm_as_it_is(plugin, monkeypatch):
    plugin.platform.get_device_name = lambda: "NVIDIA H100"
    plugin.register()
    assert registry == {} and plugin.lines == [
        "kernelderby_winners was measured on NVIDIA H200; vLLM stays as it is here"
    ]


def test_batch_invariance_leaves_vllm_as_it_is(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "tell", plugin.lines.append)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    plugin.register()
    assert registry == {} and "VLLM_BATCH_INVARIANT is set" in plugin.lines[0]


def test_one_operator_alone_and_twice(plugin, monkeypatch):
    monkeypatch.setenv(plugin.SWITCH, "silu_and_mul")
    plugin.register()
    plugin.register()
    assert list(registry) == ["SiluAndMul"]
    assert registry["SiluAndMul"].name == "silu_and_mul"  # vLLM's own switch by this name still works


def test_what_another_vllm_lacks_stays_vllms_and_the_rest_runs(plugin, monkeypatch):
    monkeypatch.delattr(sys.modules["vllm.model_executor.layers.layernorm"], "RMSNormGated")
    plugin.register()
    assert "RMSNorm" in registry and "RMSNormGated" not in registry
    assert any("gated_norm stays vLLM's: ImportError" in line for line in plugin.lines)
    assert plugin.lines[-1] == (
        "kernelderby_winners runs in vLLM for rms_norm, silu_and_mul, mrope, experts, block_fp8, attention, "
        "where a model has such layers"
    )


def test_attention_says_that_it_has_to_be_chosen_too(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "tell", plugin.lines.append)
    plugin.register()
    assert "kernelderby_winners: attention runs only where vLLM is told to: --attention-backend CUSTOM" in plugin.lines


def test_the_plugins_norms_agree_with_torch(plugin):
    plugin.register()
    norm = RMSNorm(64)
    expected = torch.nn.functional.rms_norm(ROWS.float(), (64,), norm.weight.float(), 1e-6).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(norm(ROWS), expected)
        torch.testing.assert_close(norm(ROWS.view(1, 3, 64)), expected.view(1, 3, 64))
        x, residual = ROWS.clone(), ROWS.clone()
        found, sums = norm(x, residual)
    torch.testing.assert_close(sums, ROWS + ROWS)
    doubled = torch.nn.functional.rms_norm(2 * ROWS.float(), (64,), norm.weight.float(), 1e-6).bfloat16()
    torch.testing.assert_close(found, doubled)


def test_what_a_layer_asks_is_traced_into_one_graph(package):
    """Dynamo of torch 2.11 traces no bool() of a list, say: both questions are plain loops."""
    plugin = importlib.import_module(f"{package.__name__}.vllm_plugin")
    known = Selector(
        {"axes": ["rows", "width"], "solutions": {"ours": {"kind": "own"}}, "points": [[[1, 2**20], [1.0]]]}
    )

    @torch.compile(fullgraph=True, backend="eager", dynamic=True)
    def asked(x):
        return x + 10 * plugin.plain_rows(x) + known.reaches({"width": x.shape[-1]})

    assert asked(torch.zeros(3, 64)).eq(1).all() and asked(torch.zeros(3, 15)).eq(0).all()


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (lambda: RMSNorm(64), lambda: (ROWS.float(),)),
        (lambda: RMSNorm(64), lambda: (torch.cat([ROWS, ROWS], 1)[:, :64],)),  # a slice of qkv
        (lambda: RMSNorm(96), lambda: (torch.zeros(2, 96).bfloat16(),)),  # not measured
        (lambda: RMSNorm(64, var_hidden_size=32), lambda: (ROWS,)),
        (lambda: RMSNorm(64, has_weight=False), lambda: (ROWS,)),
        (lambda: RMSNorm(64), lambda: (ROWS, ROWS[:1])),
        (lambda: RMSNormGated(64), lambda: (ROWS,)),
        (lambda: RMSNormGated(64, group_size=32), lambda: (ROWS, ROWS)),
        (lambda: RMSNormGated(64, norm_before_gate=False), lambda: (ROWS, ROWS)),
        (lambda: RMSNormGated(64, activation="sigmoid"), lambda: (ROWS, ROWS)),
        (lambda: SiluAndMul(), lambda: (ROWS.half(),)),
    ],
)
def test_what_the_operators_do_not_take_runs_vllms_code(plugin, made, given):
    plugin.register()
    assert made()(*given()) == "vllm's"


def test_the_gated_norm_and_the_activation(plugin):
    plugin.register()
    gated, z = RMSNormGated(64), ROWS.flip(0)
    with torch.no_grad():
        normed = torch.nn.functional.rms_norm(ROWS.float(), (64,), gated.weight.float(), 1e-6)
        torch.testing.assert_close(gated(ROWS, z), (normed * torch.nn.functional.silu(z.float())).bfloat16())
        expected = torch.nn.functional.silu(ROWS[:, :32].float()) * ROWS[:, 32:].float()
        torch.testing.assert_close(SiluAndMul()(ROWS.view(1, 3, 64)), expected.bfloat16().view(1, 3, 32))


def layer(**other):
    weights = torch.Generator().manual_seed(1)
    return types.SimpleNamespace(
        **{
            "w13_weight": torch.randn(4, 64, 64, generator=weights).div(8).bfloat16(),
            "w2_weight": torch.randn(4, 64, 32, generator=weights).div(8).bfloat16(),
            "activation": "silu",
            "expert_map": None,
            "apply_router_weight_on_input": False,
            **other,
        }
    )


def test_the_plugins_experts_agree_with_a_loop(plugin):
    plugin.register()
    experts, ids, weights = layer(), torch.tensor([[0, 1], [2, 3], [1, 0]]), torch.tensor([[0.3, 0.7]] * 3)
    method = UnquantizedFusedMoEMethod()
    found = method.apply(experts, ROWS, weights, ids, None, shared_experts_input=None)
    expected = torch.zeros(3, 64)
    for token in range(3):
        for expert, weight in zip(ids[token], weights[token], strict=True):
            gate, up = (experts.w13_weight[expert].float() @ ROWS[token].float()).chunk(2)
            inner = (torch.nn.functional.silu(gate) * up).bfloat16().float()
            expected[token] += weight * (experts.w2_weight[expert].float() @ inner)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("other", "shared", "why"),
    [
        ({"expert_map": torch.arange(4)}, None, "expert parallelism"),
        ({"apply_router_weight_on_input": True}, None, "weights on the input"),
        ({"activation": "gelu"}, None, "another activation"),
        ({"swiglu_limit": 7.0}, None, "another activation"),
        ({}, object(), "shared experts"),
    ],
)
def test_experts_of_another_kind_run_vllms_code_and_a_line_says_why(plugin, other, shared, why):
    plugin.register()
    given = ROWS, torch.rand(3, 2), torch.zeros(3, 2, dtype=torch.int64), shared, None
    assert UnquantizedFusedMoEMethod().apply(layer(**other), *given) == "vllm's"
    assert "experts runs the engine's own code in some calls" in plugin.lines[-1] and why in plugin.lines[-1]


EXPERTS = ROWS, torch.rand(3, 2), torch.zeros(3, 2, dtype=torch.int64), None, None


def test_experts_whose_tokens_come_from_other_gpus_run_vllms_code(plugin):
    """Under data parallelism without expert parallelism there is no expert map, and vLLM's kernel gathers the tokens of
    all ranks before the experts: ours would multiply this rank's tokens by a part of the weights."""
    plugin.register()
    method = UnquantizedFusedMoEMethod()
    method.moe_kernel.prepare_finalize = object()
    assert method.apply(layer(), *EXPERTS) == "vllm's" and "data parallelism" in plugin.lines[-1]


@pytest.mark.parametrize("kind", [None, "plain"])
def test_experts_run_vllms_code_where_no_kernel_may_run(plugin, package, monkeypatch, kind):
    """In a capture of sizes that ran not before, say: plain torch reads from the GPU, and ends the capture."""
    plugin.register()
    monkeypatch.setattr(package.OPERATORS[plugin.served("fused_moe")], "runs", lambda arguments: kind)
    assert UnquantizedFusedMoEMethod().apply(layer(), *EXPERTS) == "vllm's"


def test_tokens_that_pad_a_graph_name_an_expert(plugin, package, monkeypatch):
    """vLLM 0.33 gives them the expert -1, which our kernels would read in front of the weights."""
    plugin.register()
    monkeypatch.setattr(sys.modules["vllm.envs"], "VLLM_MOE_SKIP_PADDING", True)
    seen = []
    monkeypatch.setattr(package.OPERATORS[plugin.served("fused_moe")], "runs", lambda given: seen.append(given[3]))
    ids = torch.tensor([[0, 1], [2, 3], [-1, -1]])
    UnquantizedFusedMoEMethod().apply(layer(), ROWS, torch.rand(3, 2), ids, None, None)
    assert seen[0].tolist() == [[0, 1], [2, 3], [0, 0]]


def test_compiled_models_are_kept_apart_by_the_switch(plugin, monkeypatch):
    """vLLM would load a model that was compiled with other layers: its key has its own variables alone."""
    known = sys.modules["vllm.envs"].environment_variables
    plugin.register()
    every = known[plugin.SWITCH]()
    monkeypatch.setenv(plugin.SWITCH, "rms_norm")
    registry.clear()
    plugin.register()
    assert known[plugin.SWITCH]() != every and "rms_norm" in known[plugin.SWITCH]()
    known.clear()
    monkeypatch.delenv(plugin.SWITCH)
    plugin.register()
    assert known == {}


def test_a_switch_that_replaces_nothing_here_still_travels_to_rays_workers(plugin):
    plugin.platform.get_device_name = lambda: "NVIDIA H100"
    plugin.register()
    assert plugin.SWITCH in sys.modules["vllm.envs"].environment_variables


def test_a_layer_of_another_plugin_stays_as_it_is(plugin):
    registry["SiluAndMul"] = Others
    plugin.register()
    assert registry["SiluAndMul"] is Others
    assert any("silu_and_mul stays vLLM's: KeyError" in line and Others.__module__ in line for line in plugin.lines)


def test_an_operator_that_the_package_lacks_is_named(plugin, package, monkeypatch):
    monkeypatch.delitem(package.OPERATORS, "silu_and_mul")
    monkeypatch.setenv(plugin.SWITCH, "silu_and_mul")
    plugin.register()
    assert plugin.lines == [
        "kernelderby_winners: silu_and_mul stays vLLM's: this package brings no silu_and_mul",
        "kernelderby_winners runs nowhere in vLLM",
    ]


def test_a_line_is_told_while_a_model_is_traced(plugin, monkeypatch):
    """and leaves nothing in the graph, which is whole."""
    plugin.register()
    norm = RMSNorm(64)
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x, residual=None: x + 1)
    found = torch.compile(norm, fullgraph=True, backend="eager")(ROWS.float())
    assert found.equal(ROWS.float() + 1)
    assert "rms_norm runs the engine's own code in some calls: a slice" in plugin.lines[-1]


def test_block_fp8_is_tried_first_and_only_for_what_it_takes(plugin):
    plugin.register()
    kernel, rest = sys.modules["vllm.model_executor.kernels.linear"]._POSSIBLE_FP8_BLOCK_KERNELS["cuda"]
    assert rest is Others

    def config(shape=(256, 128), dtype=torch.bfloat16, groups=(1, 128), blocks=(128, 128)):
        def key(group):
            return types.SimpleNamespace(scale=types.SimpleNamespace(group_shape=group))

        return types.SimpleNamespace(
            weight_shape=shape, out_dtype=dtype, activation_quant_key=key(groups), weight_quant_key=key(blocks)
        )

    assert kernel.can_implement(config()) == (True, None)
    for other in (config((256, 64)), config(dtype=torch.half), config(groups=(1, 64)), config(blocks=(1, 128))):
        possible, reason = kernel.can_implement(other)
        assert not possible and reason
    a, b = torch.ones(3, 128).to(torch.float8_e4m3fn), torch.ones(256, 128).to(torch.float8_e4m3fn)
    found = kernel.apply_block_scaled_mm(None, a, b, torch.full((3, 1), 0.5), torch.full((2, 1), 2.0))
    assert found.eq(128).all() and found.shape == (3, 256)


def turned(x, cos, sin):
    """x [tokens, heads * 128], cos and sin float32 [tokens, 64]."""
    one, two = x.view(len(x), -1, 128).float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).bfloat16().view(x.shape)


def test_multimodal_rotary_embeddings_of_slices_of_qkv(plugin, monkeypatch):
    plugin.register()
    monkeypatch.setattr(plugin, "on_gpu", lambda *tensors: True)
    rope, positions = MRotaryEmbedding(), torch.tensor([[3, 4], [5, 6], [7, 8]])
    query, key, _ = torch.randn(2, 4 * 128).bfloat16().split([256, 128, 128], -1)
    angles = rope.cos_sin_cache.float()[positions]
    cos, sin = (
        torch.cat([part[0, :, :16], part[1, :, 16:40], part[2, :, 40:]], -1)
        for part in (angles[..., :64], angles[..., 64:])
    )
    for found, given in zip(rope(positions, query, key), (query, key), strict=True):
        torch.testing.assert_close(found, turned(given, cos, sin))


@pytest.mark.parametrize(
    ("made", "positions"),
    [
        ({}, torch.tensor([1, 2])),  # text alone
        ({"interleaved": True}, torch.zeros(3, 2).long()),
        ({"head_size": 64}, torch.zeros(3, 2).long()),
        ({"neox": False}, torch.zeros(3, 2).long()),
        ({"sections": ()}, torch.zeros(3, 2).long()),
    ],
)
def test_other_rotary_embeddings_run_vllms_code(plugin, monkeypatch, made, positions):
    plugin.register()
    monkeypatch.setattr(plugin, "on_gpu", lambda *tensors: True)
    rows = torch.zeros(2, 256).bfloat16()
    assert MRotaryEmbedding(**made)(positions, rows, rows) == "vllm's"


@pytest.fixture
def attention(plugin, monkeypatch):
    """attention_backend over the made-up vLLM, every shape as measured."""
    monkeypatch.setenv(plugin.SWITCH, "attention")
    plugin.register()
    name = registry["CUSTOM"].rpartition(".")[0]
    sys.modules.pop(name, None)
    found = importlib.import_module(name)
    found.FlashAttentionMetadata.__dataclass_fields__ = dict.fromkeys(found.ASKED)
    monkeypatch.setitem(sys.modules, name, found)
    for operator in ("paged_attention_decode", "unified_attention"):
        monkeypatch.setattr(found.OPERATORS[operator], "runs", lambda arguments: "own")
    yield found
    sys.modules.pop(name, None)


CACHE = torch.randn(12, 2, 16, 2, 32, generator=torch.Generator().manual_seed(2)).bfloat16()  # blocks of keys, values


def batch(starts=(0, 1, 2), **other):
    plain = dict.fromkeys(("sliding_window", "mm_prefix_range_tensor", "rswa_prefix_lens"))
    table = torch.tensor([[7, 2, 9], [4, 11, 0]], dtype=torch.int32)
    longest = max(b - a for a, b in pairwise(starts))
    return types.SimpleNamespace(
        **{
            **plain,
            "causal": True,
            "use_cascade": False,
            "num_actual_tokens": starts[-1],
            "max_query_len": longest,
            "query_start_loc": torch.tensor(starts, dtype=torch.int32),
            "max_seq_len": 35,
            "seq_lens": torch.tensor([35, 20], dtype=torch.int32),
            "block_table": table,
            **other,
        }
    )


def attended(query, given):
    """Plain softmax over the keys that the table names, [tokens, heads, head_dim] in float32."""
    rows = []
    for one in range(2):
        begin, end = given.query_start_loc[one : one + 2].tolist()
        length = int(given.seq_lens[one])
        keys, values = (
            part[given.block_table[one].long()].reshape(-1, 2, 32)[:length].repeat_interleave(2, 1).float()
            for part in CACHE.unbind(1)
        )
        for place, token in enumerate(query[begin:end].float(), length - (end - begin) + 1):
            weights = (torch.einsum("hd,khd->hk", token, keys[:place]) * 0.25).softmax(-1)
            rows.append(torch.einsum("hk,khd->hd", weights, values[:place]))
    return torch.stack(rows)


@pytest.mark.parametrize("starts", [(0, 1, 2), (0, 5, 8)])  # decode, prefill
def test_attention_over_vllms_cache_without_a_copy(attention, starts):
    """Blocks of keys and of values alternate in memory; both are read where they lie. Padding is not written."""
    query, given = torch.randn(starts[-1] + 1, 4, 32).bfloat16(), batch(starts)
    name, arguments = attention.call_of(0.25, query[: starts[-1]], CACHE, given)
    assert name == ("paged_attention_decode" if starts[-1] == 2 else "unified_attention")
    assert [each.data_ptr() - CACHE.data_ptr() for each in arguments[1:3]] == [0, 2 * 16 * 2 * 32]
    output = torch.full_like(query, 7)
    found = attention.WinnersAttentionBackend.get_impl_cls()().forward(None, query, None, None, CACHE, given, output)
    assert found is output and output[-1].eq(7).all()
    torch.testing.assert_close(output[:-1].float(), attended(query, given), atol=2e-2, rtol=2e-2)
    assert given.winners_step[1].equal(given.block_table * 2)  # made once for all layers
    # A warm-up has lengths of 1, the capture the model's longest: decode has one bound for both, its table's.
    assert arguments[-2] == (3 * 16 if starts[-1] == 2 else given.max_seq_len)


@pytest.mark.parametrize("kind", ["library", None])
def test_where_a_library_is_the_fastest_flash_attention_runs(attention, monkeypatch, kind):
    monkeypatch.setattr(attention.OPERATORS["paged_attention_decode"], "runs", lambda arguments: kind)
    assert attention.call_of(0.25, torch.zeros(2, 4, 32).bfloat16(), CACHE, batch()) is None


@pytest.mark.parametrize("starts", [(0, 1, 2), (0, 5, 8)])  # decode, prefill
def test_a_slice_of_qkv_is_attended_as_a_whole_query_is(attention, starts):
    qkv, given = torch.randn(starts[-1], 8, 32).bfloat16(), batch(starts)
    query, output = qkv[:, :4], torch.zeros(starts[-1], 4, 32).bfloat16()
    attention.WinnersAttention().forward(None, query, None, None, CACHE, given, output)
    torch.testing.assert_close(output.float(), attended(query, given), atol=2e-2, rtol=2e-2)


def test_a_slice_of_qkv_runs_ours_where_that_saves_more_than_its_copy(package, monkeypatch):
    """At one row 4 us beside 12; at 1,024 rows 10 us beside 11, where the copy of 8 MB takes 5."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["paged_attention_decode"].about)
    about["solutions"] = {
        each: {"kind": kind, "in_place": {}, "returns": False} for each, kind in (("ours", "own"), ("fa3", "library"))
    }
    rest = {"max_blocks_per_seq": 3, "num_query_heads": 32, "num_kv_heads": 2, "head_dim": 128}
    sizes = [[{"num_seqs": rows, **rest}[axis] for axis in about["axes"]] for rows in (1, 1024)]
    about["points"] = [[sizes[0], [4.0, 12.0]], [sizes[1], [10.0, 11.0]]]
    operator = operators.ServedOperator("paged_attention_decode", about)
    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    caches = torch.zeros(3, 16, 2, 128).bfloat16()

    def runs(rows, heads):
        table, lengths = torch.zeros(rows, 3, dtype=torch.int32), torch.ones(rows, dtype=torch.int32)
        query = torch.zeros(rows, heads, 128).bfloat16()[:, :32]
        return operator.runs([query, caches, caches, table, lengths, 48, 0.25])

    assert [runs(rows, 32) for rows in (1, 1024)] == ["own", "own"]
    assert [runs(rows, 36) for rows in (1, 1024)] == ["own", "library"]


def test_sequences_that_pad_a_graph_have_a_key(attention):
    """vLLM gives them the length 0, which no operator promises a number for."""
    given = batch(seq_lens=torch.tensor([35, 0], dtype=torch.int32))
    _, arguments = attention.call_of(0.25, torch.zeros(2, 4, 32).bfloat16(), CACHE, given)
    assert arguments[4].tolist() == [35, 1]


@pytest.mark.parametrize(
    "other",
    [
        {"attn_type": "encoder"},
        {"sliding_window": (127, 0)},
        {"sinks": torch.zeros(4)},
        {"logits_soft_cap": 30.0},
        {"kv_cache_dtype": "fp8"},
        {"dcp_world_size": 2},
        {"batch": {"use_cascade": True}},
        {"batch": {"causal": False}},
        {"batch": {"rswa_prefix_lens": torch.zeros(2)}},
        {"query": torch.zeros(2, 4, 32)},
        {"cache": torch.zeros(12, 2, 32, 2, 32).bfloat16()},  # other blocks
        {"cache": torch.zeros(12, 2, 2, 16, 32).bfloat16().transpose(2, 3)},  # heads first
        {"given": (torch.ones(1),)},  # a scale of the output
    ],
)
def test_attention_of_another_kind_runs_vllms_code_and_a_line_says_why(attention, monkeypatch, other):
    layer = {name: value for name, value in other.items() if name not in ("batch", "query", "cache", "given")}
    query = other.get("query", torch.zeros(2, 4, 32).bfloat16())
    call = (
        query,
        None,
        None,
        other.get("cache", CACHE),
        batch(**other.get("batch", {})),
        query,
        *other.get("given", ()),
    )
    lines = []
    monkeypatch.setattr(attention, "stays", lambda name, why: lines.append(why))
    assert attention.WinnersAttention(**layer).forward(None, *call) == "vllm's"
    [line] = lines
    assert line.startswith("a batch or a cache" if {*other} & {"batch", "query", "cache"} else "a layer")


def test_another_vllms_cache_or_batches_keep_flash_attention(attention, monkeypatch):
    """0.33 keeps keys and values side by side, and its batches have no cascade: FlashAttention's own class runs."""
    backend = attention.WinnersAttentionBackend
    assert backend.get_impl_cls() is attention.WinnersAttention and backend.get_supported_kernel_block_sizes() == [16]
    lines = []
    monkeypatch.setattr(attention, "tell", lines.append)
    fields = attention.FlashAttentionMetadata.__dataclass_fields__
    attention.FlashAttentionMetadata.__dataclass_fields__ = {name: None for name in fields if name != "use_cascade"}
    assert backend.get_impl_cls() is FlashAttentionImpl
    attention.FlashAttentionMetadata.__dataclass_fields__ = fields
    monkeypatch.delattr(FlashAttentionBackend, "get_kv_cache_shape")
    assert backend.get_impl_cls() is FlashAttentionImpl
    assert backend.get_supported_kernel_block_sizes(None) == ["vllm's"] and "attention stays vLLM's" in lines[0]


def test_a_capture_runs_vllms_attention_where_ours_did_not_run_before(package, monkeypatch):
    operator = package.OPERATORS["paged_attention_decode"]
    operators = importlib.import_module(f"{package.__name__}.operators")
    given = [torch.zeros(2, 4, 32).bfloat16(), CACHE[:, 0].contiguous(), CACHE[:, 1].contiguous()]
    given += [torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32), 48, 0.25]
    assert operator.runs(given) is None  # not measured
    monkeypatch.setattr(operator.selector, "reaches", lambda sizes: True)
    assert operator.runs(given) == "plain"
    monkeypatch.setattr(operators, "_capturing", lambda device: True)
    assert operator.runs(given) is None
    monkeypatch.setattr(operators, "_capturing", lambda device: False)
    package.paged_attention_decode(*given)
    monkeypatch.setattr(operators, "_capturing", lambda device: True)
    assert operator.runs(given) == "plain" and operator.runs([*given[:-2], 64, 0.25]) is None


def test_what_the_contract_does_not_allow_runs_the_engines_code(package, monkeypatch):
    operators, lines = importlib.import_module(f"{package.__name__}.operators"), []
    monkeypatch.setattr(operators, "tell", lambda line, about: lines.append(line))
    given = [torch.zeros(2, 4, 32), CACHE[:, 0].contiguous(), CACHE[:, 1].contiguous()]
    given += [torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32), 48, 0.25]
    assert package.OPERATORS["paged_attention_decode"].runs(given) is None
    [line] = lines
    assert line == ("paged_attention_decode: query is torch.float32, must be bfloat16; the engine's own code runs")


def test_an_engine_runs_its_own_code_where_ours_refused(package, monkeypatch):
    """Of an operator whose other solution is plain torch, which no engine wants."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["rms_norm"].about)
    about["solutions"] = {
        each: {"kind": kind, "in_place": {}, "returns": False} for each, kind in (("ours", "own"), ("torch", "plain"))
    }
    about["points"] = [[[3, 64], [1.0, 2.0]]]
    operator = operators.ServedOperator("rms_norm", about)

    def refuse(*_):
        raise ValueError("not this one")

    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    monkeypatch.setattr(operators, "function_of", lambda name, about: refuse if name == "ours" else lambda *given: None)
    wide = torch.cat([ROWS, ROWS], 1)
    for rows in (ROWS, wide[:, :64]):  # also a slice, whose order is another
        assert operator.runs([rows, ROWS[0], 1e-6]) in ("own", "plain")
        operator([rows, ROWS[0], 1e-6], {"output": torch.empty_like(ROWS)})
        assert operator.runs([rows, ROWS[0], 1e-6]) != "own"


def test_the_wheel_names_it_as_vllms_plugin():
    from kernelderby.deploy.export import ENTRY_POINTS

    assert "[vllm.general_plugins]\nkernelderby_winners = kernelderby_winners.vllm_plugin:register\n" in ENTRY_POINTS
