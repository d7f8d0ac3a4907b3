"""SGLang calls these operators (entry point sglang.srt.plugins; written against SGLang 0.5.23).

$KERNELDERBY_SGLANG switches each on by name, "all" or a list of names; without it nothing changes. A hook around
SGLang's own method runs the operator. For another dtype, layout or quantisation, for deterministic inference, and if
the model's sizes were not measured, SGLang's method itself runs; a line of the log says so once.

    rms_norm       RMSNorm.forward_cuda, with and without a residual
    silu_and_mul   SiluAndMul.forward_cuda

Experts stay SGLang's: it marks padded tokens by the expert -1, which our contract does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .engines import NOT_TAKEN, Replaced, measured, operator_of, plain_rows, register_in, stays

SWITCH = "KERNELDERBY_SGLANG"
LAYERS = "sglang.srt.layers"


def register() -> None:
    """What SGLang calls in each of its processes, before it applies the hooks."""
    register_in("SGLang", SWITCH, REPLACED, _gpu)


def _gpu() -> str | None:
    """As torch names it, which is safe because SGLang spawns its processes and forks none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _around(target: str, hook: Callable[..., Any]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{LAYERS}.{target}", hook, HookType.AROUND)


def rms_norm(original: Callable[..., Any], layer: Any, x: Any, residual: Any = None, *more: Any, **named: Any) -> Any:
    """more: a further addend, and a quantisation to fuse."""
    weight = layer.weight.data
    others = () if residual is None else (residual,)
    kind = "rms_norm" if residual is None else "fused_add_rms_norm"
    if not (
        plain_rows(x, weight, *others)
        and all(each is None for each in (*more, *named.values(), layer._quant_linear))
        and layer.variance_size_override is None
        and layer.has_weight
        and not layer.cast_x_before_out_mul
        and not layer.fp32_residual
        and layer.override_orig_dtype is None
        and all(each.shape == x.shape for each in others)
        and measured(kind, hidden_size=x.shape[-1])
        and not _is_batch_invariant()
    ):
        stays("rms_norm", f"{NOT_TAKEN}, a fused quantisation, a partial variance, or deterministic inference")
        return original(layer, x, residual, *more, **named)
    if residual is None:
        return operator_of("rms_norm")(x.view(-1, x.shape[-1]), weight, layer.variance_epsilon).view(x.shape)
    rows, sums = x.view(-1, x.shape[-1]), residual.view(-1, x.shape[-1])
    operator_of("fused_add_rms_norm_")(rows, sums, weight, layer.variance_epsilon)
    return x, residual


def _is_batch_invariant() -> bool:
    """Deterministic inference: a row's norm must not depend on how many rows there are."""
    from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

    return bool(is_batch_invariant_mode_enabled())


def silu_and_mul(original: Callable[..., Any], layer: Any, x: Any) -> Any:
    width = x.shape[-1] // 2
    if not (plain_rows(x) and measured("silu_and_mul", intermediate_size=width)):
        stays("silu_and_mul", NOT_TAKEN)
        return original(layer, x)
    return operator_of("silu_and_mul")(x.view(-1, 2, width)).view(*x.shape[:-1], width)


REPLACED: Replaced = {
    "rms_norm": (("rms_norm", "fused_add_rms_norm"), lambda: _around("layernorm.RMSNorm.forward_cuda", rms_norm)),
    "silu_and_mul": (("silu_and_mul",), lambda: _around("activation.SiluAndMul.forward_cuda", silu_and_mul)),
}
