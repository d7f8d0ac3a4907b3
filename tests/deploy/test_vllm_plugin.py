"""The vLLM plugin against stand-ins that register and construct layers as vLLM 0.25.1 does (its custom_op.py and
layers were read for them)."""

import importlib
import sys
import types

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


class UnquantizedFusedMoEMethod(CustomOp):
    name = "unquantized_fused_moe"

    def __init__(self):
        super().__init__()
        self.unquantized_backend, self.moe = "TRITON", types.SimpleNamespace(has_bias=False)

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
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
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method": {
        "UnquantizedFusedMoEMethod": UnquantizedFusedMoEMethod
    },
    "vllm.model_executor.kernels.linear": {"_POSSIBLE_FP8_BLOCK_KERNELS": {"cuda": [Others]}},
    "vllm.model_executor.kernels.linear.scaled_mm.triton": {
        "TritonFp8BlockScaledMMKernel": TritonFp8BlockScaledMMKernel
    },
    "vllm.platforms": {"PlatformEnum": types.SimpleNamespace(CUDA="cuda")},
}


@pytest.fixture
def plugin(package, monkeypatch):
    """With the made-up vLLM, on a CPU that counts as the measured GPU, and every size as measured."""
    registry.clear()
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
    monkeypatch.setattr(found, "tell", found.lines.append)
    monkeypatch.setattr(found.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(found.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(found, "_measured", lambda name, **sizes: sizes.get("hidden_size") != 96)
    monkeypatch.setattr(
        found,
        "_plain_rows",
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
    monkeypatch.setattr(plugin.torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    plugin.register()
    assert registry == {} and plugin.lines == [
        "kernelderby_winners was measured on NVIDIA H200; vLLM stays as it is here"
    ]


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
    assert plugin.lines[-1] == "kernelderby_winners runs in vLLM for rms_norm, silu_and_mul, experts, block_fp8"


def test_norms(plugin):
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
    known = Selector({"axes": ["rows", "width"], "solutions": {"ours": {"kind": "own"}}, "points": [[[1, 64], [1.0]]]})

    @torch.compile(fullgraph=True, backend="eager", dynamic=True)
    def asked(x):
        return x + 10 * plugin._plain_rows(x) + known.reaches({"width": x.shape[-1]})

    assert asked(torch.zeros(3, 64)).eq(1).all() and asked(torch.zeros(3, 129)).eq(0).all()


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


def test_experts(plugin):
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
    ("other", "shared"),
    [
        ({"expert_map": torch.arange(4)}, None),
        ({"apply_router_weight_on_input": True}, None),
        ({"activation": "gelu"}, None),
        ({"swiglu_limit": 7.0}, None),
        ({}, object()),
    ],
)
def test_experts_of_another_kind_run_vllms_code(plugin, other, shared):
    plugin.register()
    given = ROWS, torch.rand(3, 2), torch.zeros(3, 2, dtype=torch.int64), shared, None
    assert UnquantizedFusedMoEMethod().apply(layer(**other), *given) == "vllm's"


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


def test_the_wheel_names_it_as_vllms_plugin():
    from kernelderby.deploy.export import ENTRY_POINTS

    assert ENTRY_POINTS == "[vllm.general_plugins]\nkernelderby_winners = kernelderby_winners.vllm_plugin:register\n"
