"""vLLM calls these operators (entry point vllm.general_plugins; written against vLLM 0.25.1).

$KERNELDERBY_VLLM switches each on by name, "all" or a list such as "rms_norm,experts"; without it nothing changes.
A call of another dtype, layout or quantisation runs vLLM's own code, and so does a model whose sizes were not measured.

    rms_norm       RMSNorm, with and without a residual. Opaque to Inductor, which then fuses nothing into it.
    gated_norm     RMSNormGated of one group, after the norm, by SiLU
    silu_and_mul   SiluAndMul
    experts        unquantized experts on one GPU
    block_fp8      linear layers of 128 x 128 blocks in FP8

The last two run the operator with a bfloat16 output where the package has it, else the float32 one and a cast.

Rotary embeddings have none: ours take float16 with the frequencies' base, or float32 tables, and vLLM passes neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from .operators import DATA, OPERATORS
from .solutions import PREFIX, tell

SWITCH = "KERNELDERBY_VLLM"


def wanted() -> list[str]:
    """The operators that $KERNELDERBY_VLLM switches on. ValueError for a name that is none."""
    names = [each.strip() for each in os.environ.get(SWITCH, "").split(",") if each.strip()]
    if names == ["all"]:
        return list(REPLACED)
    unknown = sorted(set(names) - set(REPLACED))
    if unknown:
        raise ValueError(f"${SWITCH}: there is no {unknown[0]!r}; there are {', '.join(REPLACED)}, and all")
    return names


def register() -> None:
    """What vLLM calls in each of its processes. Twice does no harm."""
    names = wanted()
    if not names:
        tell(f"{PREFIX} is installed and off; ${SWITCH}=all, or some of {', '.join(REPLACED)}, switches it on")
        return
    if not torch.cuda.is_available() or torch.cuda.get_device_name() not in DATA["gpus"]:
        tell(f"{PREFIX} was measured on {DATA['gpus'][0]}; vLLM stays as it is here")
        return
    done = [name for name in names if all(_served(each) in OPERATORS for each in REPLACED[name][0]) and _replace(name)]
    tell(f"{PREFIX} runs in vLLM for {', '.join(done) or 'nothing'}")


def _replace(name: str) -> bool:
    try:
        REPLACED[name][1]()
    except (ImportError, AttributeError, KeyError, TypeError) as problem:  # another vLLM
        tell(f"{PREFIX}: {name} stays vLLM's: {type(problem).__name__}: {problem}")
        return False
    return True


def _served(name: str) -> str:
    """Its form with a bfloat16 output, where the package has one."""
    return f"{name}_bf16" if f"{name}_bf16" in OPERATORS else name


def _operator(name: str) -> Any:
    return getattr(getattr(torch.ops, PREFIX), name).default


def _measured(name: str, **sizes: int) -> bool:
    """Whether these sizes lie in the operator's measured region, whatever the others are."""
    return OPERATORS[name].selector.reaches(sizes)


def _plain_rows(*tensors: Any) -> bool:
    """bfloat16, without gaps between rows, on a GPU. A slice of a wider tensor would cost a copy."""
    for each in tensors:
        if not isinstance(each, torch.Tensor) or each.dtype is not torch.bfloat16 or not each.is_cuda:
            return False
        if not each.is_contiguous():
            return False
    return True


def _out_of_tree(custom_op: Any, parent: type, own: type) -> None:
    """own instead of parent wherever a model makes one, under the parent's switch (`--compilation-config`)."""
    name = parent.name  # type: ignore[attr-defined]
    from vllm.model_executor.custom_op import op_registry_oot

    if parent.__name__ not in op_registry_oot:
        custom_op.register_oot(own, name=parent.__name__)
        own.name = name  # type: ignore[attr-defined]


def _replace_rms_norm() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.layernorm import RMSNorm

    class WinnersRMSNorm(RMSNorm):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
            weight = self.weight.data
            others = () if residual is None else (residual,)
            kind = "rms_norm" if residual is None else "fused_add_rms_norm"
            if not (
                _plain_rows(x, weight, *others)
                and self.variance_size_override is None
                and self.has_weight
                and all(each.shape == x.shape for each in others)
                and _measured(kind, hidden_size=x.shape[-1])
            ):
                return super().forward(x, residual)
            if residual is None:
                return _operator("rms_norm")(x.view(-1, x.shape[-1]), weight, self.variance_epsilon).view(x.shape)
            rows, sums = x.view(-1, x.shape[-1]), residual.view(-1, x.shape[-1])
            _operator("fused_add_rms_norm_")(rows, sums, weight, self.variance_epsilon)
            return x, residual

    _out_of_tree(CustomOp, RMSNorm, WinnersRMSNorm)


def _replace_gated_norm() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.layernorm import RMSNormGated

    class WinnersRMSNormGated(RMSNormGated):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> Any:
            width = x.shape[-1]
            if not (
                z is not None
                and _plain_rows(x, z, self.weight.data)
                and z.shape == x.shape
                and self.norm_before_gate
                and self.group_size in (None, width)
                and self.activation in ("silu", "swish")
                and _measured("gated_rms_norm", hidden_size=width)
            ):
                return super().forward(x, z)
            rows = _operator("gated_rms_norm")(x.view(-1, width), z.view(-1, width), self.weight.data, self.eps)
            return rows.view(x.shape)

    _out_of_tree(CustomOp, RMSNormGated, WinnersRMSNormGated)


def _replace_silu_and_mul() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.activation import SiluAndMul

    class WinnersSiluAndMul(SiluAndMul):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            width = x.shape[-1] // 2
            if not (_plain_rows(x) and _measured("silu_and_mul", intermediate_size=width)):
                return super().forward(x)
            return _operator("silu_and_mul")(x.view(-1, 2, width)).view(*x.shape[:-1], width)

    _out_of_tree(CustomOp, SiluAndMul, WinnersSiluAndMul)


def _replace_experts() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    class WinnersExperts(UnquantizedFusedMoEMethod):  # type: ignore[misc]
        def apply(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, *shared: Any, **named: Any) -> Any:
            """Runs inside of vLLM's own opaque operator, so that sizes are numbers here."""
            given = (*shared, *named.values())
            if not (
                _plain_rows(x, layer.w13_weight, layer.w2_weight)
                and self.unquantized_backend is UnquantizedMoeBackend.TRITON  # the others shuffle the weights
                and layer.activation is MoEActivation.SILU
                and not self.moe.has_bias
                and layer.expert_map is None
                and not layer.apply_router_weight_on_input
                and all(each is None for each in given)
                and all(getattr(layer, each, None) is None for each in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"))
                and _measured(
                    _served("fused_moe"),
                    num_tokens=x.shape[0],
                    hidden_size=x.shape[1],
                    intermediate_size=layer.w2_weight.shape[2],
                    num_experts=layer.w2_weight.shape[0],
                    top_k=topk_ids.shape[1],
                )
            ):
                return super().apply(layer, x, topk_weights, topk_ids, *shared, **named)
            experts = _operator(_served("fused_moe"))
            found = experts(x, layer.w13_weight, layer.w2_weight, topk_ids.to(torch.int32), topk_weights.float())
            return found.to(x.dtype)

    _out_of_tree(CustomOp, UnquantizedFusedMoEMethod, WinnersExperts)


def _replace_block_fp8() -> None:
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.scaled_mm.triton import TritonFp8BlockScaledMMKernel
    from vllm.platforms import PlatformEnum

    class WinnersFp8BlockKernel(TritonFp8BlockScaledMMKernel):  # type: ignore[misc]
        """Weights and scales as that one leaves them: rows as they lie."""

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            is_possible, reason = super().can_implement(config)
            columns, depth = config.weight_shape
            if not is_possible or config.out_dtype is not torch.bfloat16:
                return False, reason or "the output is not bfloat16"
            if tuple(config.activation_quant_key.scale.group_shape) != (1, 128):
                return False, "activations are not quantized in groups of 128"
            if tuple(config.weight_quant_key.scale.group_shape) != (128, 128) or columns % 128 or depth % 128:
                return False, "the weight has no whole blocks of 128 x 128"
            if not _measured(_served("block_scaled_mm"), n=columns, k=depth):
                return False, "these sizes were not measured"
            return True, None

        def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> Any:
            return _operator(_served("block_scaled_mm"))(A, As, B, Bs)

    kernels = linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CUDA]
    if not any(each.__name__ == WinnersFp8BlockKernel.__name__ for each in kernels):
        kernels.insert(0, WinnersFp8BlockKernel)  # register_linear_kernel() appends, so that it would be tried last


REPLACED: dict[str, tuple[tuple[str, ...], Callable[[], None]]] = {
    "rms_norm": (("rms_norm", "fused_add_rms_norm"), _replace_rms_norm),
    "gated_norm": (("gated_rms_norm",), _replace_gated_norm),
    "silu_and_mul": (("silu_and_mul",), _replace_silu_and_mul),
    "experts": (("fused_moe",), _replace_experts),
    "block_fp8": (("block_scaled_mm",), _replace_block_fp8),
}
