"""The SGLang plugin against stand-ins with the attributes that SGLang 0.5.23's layers have (its hook_registry.py,
layernorm.py and activation.py were read for them)."""

import importlib
import sys
import types

import pytest

pytest.importorskip("torch")

import torch

ROWS = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
HOOK = types.SimpleNamespace(AROUND="around")
LAYERS = "sglang.srt.layers"


def sglangs(layer, *given, **named):
    return "sglang's"


@pytest.fixture
def hooked(package, monkeypatch):
    """(call of a hooked method by its target, the log's lines), every size but 96 as measured."""
    hooks, lines = {}, []

    class HookRegistry:
        @staticmethod
        def register(target, hook, kind):
            assert kind is HOOK.AROUND
            hooks[target] = hook

    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    members = {"HookRegistry": HookRegistry, "HookType": HOOK}
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", types.SimpleNamespace(**members))
    invariant = types.SimpleNamespace(is_batch_invariant_mode_enabled=lambda: hooks.get("invariant", False))
    monkeypatch.setitem(sys.modules, "sglang.srt.batch_invariant_ops", invariant)
    plugin = importlib.import_module(f"{package.__name__}.sglang_plugin")
    monkeypatch.setattr(importlib.import_module(f"{package.__name__}.engines"), "tell", lines.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(plugin, "measured", lambda name, **sizes: sizes.get("hidden_size") != 96)
    monkeypatch.setattr(plugin, "plain_rows", lambda *all_: all(x.dtype is torch.bfloat16 for x in all_))
    monkeypatch.setenv(plugin.SWITCH, "all")
    plugin.register()
    return hooks, lines


def norm(width=64, **other):
    plain = {"variance_size_override": None, "has_weight": True, "cast_x_before_out_mul": False, "_quant_linear": None}
    plain |= {"fp32_residual": False, "override_orig_dtype": None, "variance_epsilon": 1e-6}
    return types.SimpleNamespace(**{**plain, "weight": torch.nn.Parameter(torch.rand(width).bfloat16()), **other})


def test_the_hooks_stand_around_sglangs_methods(hooked):
    hooks, lines = hooked
    assert hooks.keys() == {f"{LAYERS}.layernorm.RMSNorm.forward_cuda", f"{LAYERS}.activation.SiluAndMul.forward_cuda"}
    assert lines == ["kernelderby_winners runs in SGLang for rms_norm, silu_and_mul, where a model has such layers"]


def test_norms_and_the_activation(hooked):
    rms_norm, silu_and_mul = hooked[0].values()
    layer = norm()
    expected = torch.nn.functional.rms_norm(ROWS.float(), (64,), layer.weight.float(), 1e-6).bfloat16()
    torch.testing.assert_close(rms_norm(sglangs, layer, ROWS.view(1, 3, 64)), expected.view(1, 3, 64))
    found, sums = rms_norm(sglangs, layer, ROWS.clone(), residual=torch.zeros_like(ROWS))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(sums, ROWS)
    halves = torch.nn.functional.silu(ROWS[:, :32].float()) * ROWS[:, 32:].float()
    torch.testing.assert_close(silu_and_mul(sglangs, None, ROWS), halves.bfloat16())


@pytest.mark.parametrize(
    ("layer", "given", "named"),
    [
        (norm(), (ROWS.float(),), {}),
        (norm(96), (torch.zeros(2, 96).bfloat16(),), {}),
        (norm(cast_x_before_out_mul=True), (ROWS,), {}),
        (norm(fp32_residual=True), (ROWS, ROWS), {}),
        (norm(variance_size_override=32), (ROWS,), {}),
        (norm(_quant_linear=object()), (ROWS,), {}),
        (norm(), (ROWS, ROWS, ROWS), {}),
        (norm(), (ROWS,), {"quant_linear": object()}),
        (norm(), (ROWS, ROWS[:1]), {}),
    ],
)
def test_what_the_operators_do_not_take_runs_sglangs_code(hooked, layer, given, named):
    hooks, lines = hooked
    assert next(iter(hooks.values()))(sglangs, layer, *given, **named) == "sglang's"
    assert "rms_norm runs the engine's own code in some calls: a slice" in lines[-1]


def test_deterministic_inference_keeps_sglangs_norm(hooked):
    hooks = hooked[0]
    rms_norm = next(iter(hooks.values()))
    hooks["invariant"] = True
    assert rms_norm(sglangs, norm(), ROWS) == "sglang's"


def test_the_wheel_names_it_as_sglangs_plugin():
    from kernelderby.deploy.export import ENTRY_POINTS

    assert ENTRY_POINTS.startswith(
        "[sglang.srt.plugins]\nkernelderby_winners = kernelderby_winners.sglang_plugin:register"
    )
