"""vLLM calls these operators (entry point vllm.general_plugins; written against vLLM 0.25.1).

$KERNELDERBY_VLLM switches each on by name, "all" or a list such as "rms_norm,experts"; without it nothing changes.
A call of another dtype, layout or quantisation runs vLLM's own code, and so does a model whose sizes were not measured.

    rms_norm       RMSNorm, with and without a residual. Opaque to Inductor, which then fuses nothing into it.
    gated_norm     RMSNormGated of one group, after the norm, by SiLU
    silu_and_mul   SiluAndMul
    mrope          MRotaryEmbedding of heads of 128, sections one after the other
    experts        unquantized experts on one GPU
    block_fp8      linear layers of 128 x 128 blocks in FP8
    attention      the backend CUSTOM, which `--attention-backend CUSTOM` chooses (attention_backend.py)

experts and block_fp8 run the operator with a bfloat16 output where the package has it, else the float32 one and a cast.

RotaryEmbedding has none (docs/serving.md says why). The first call of a layer that runs vLLM's own code is a line of
the log.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from .engines import NOT_TAKEN, Replaced, measured, on_gpu, operator_of, plain_rows, register_in, served, stays
from .operators import DATA, OPERATORS
from .solutions import PREFIX, tell

SWITCH = "KERNELDERBY_VLLM"
SWIGLU = ("swiglu_alpha", "swiglu_beta", "swiglu_limit")


def register() -> None:
    """What vLLM calls in each of its processes. Twice does no harm."""
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        tell("VLLM_BATCH_INVARIANT is set: vLLM stays as it is, since our kernels choose by the batch's size")
        return
    done = register_in("vLLM", SWITCH, REPLACED, _gpu)
    if os.environ.get(SWITCH):
        _make_known(done)


def _make_known(done: list[str]) -> None:
    """Adds the switch to the variables that vLLM knows. vLLM keeps compiled models from start to start, under a key of
    those variables and its configuration; without this it would load a model that was compiled with other layers. It
    also passes only those variables to its workers on other machines (Ray)."""
    from vllm import envs

    envs.environment_variables[SWITCH] = lambda: f"{','.join(done)} {DATA['version']} {DATA['measured']}"


def _gpu() -> str | None:
    """Read by NVML, as vLLM does. torch would initialise CUDA in vLLM's first process, which then could not fork
    engines: vLLM would fall back to spawn, and a script without `if __name__ == "__main__"` would end in an error."""
    from vllm.platforms import current_platform

    return str(current_platform.get_device_name()) if current_platform.is_cuda() else None


def _out_of_tree(custom_op: Any, parent: type, own: type) -> None:
    """Puts own in the place of parent wherever a model creates one, even if vLLM would leave the layer to Inductor.
    KeyError if another plugin has replaced parent."""
    name = parent.name  # type: ignore[attr-defined]
    from vllm.model_executor.custom_op import op_registry_oot

    before = op_registry_oot.get(parent.__name__)
    if before is None:
        custom_op.register_oot(own, name=parent.__name__)
        own.name = name  # type: ignore[attr-defined]
    elif before.__module__ != __name__:
        raise KeyError(f"{before.__module__} has replaced {parent.__name__}")


def _replace_rms_norm() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.layernorm import RMSNorm

    class WinnersRMSNorm(RMSNorm):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
            weight = self.weight.data
            others = () if residual is None else (residual,)
            kind = "rms_norm" if residual is None else "fused_add_rms_norm"
            if not (
                plain_rows(x, weight, *others)
                and self.variance_size_override is None
                and self.has_weight
                and all(each.shape == x.shape for each in others)
                and measured(kind, hidden_size=x.shape[-1])
            ):
                stays("rms_norm", f"{NOT_TAKEN}, no weight, or a partial variance")
                return super().forward(x, residual)
            if residual is None:
                return operator_of("rms_norm")(x.view(-1, x.shape[-1]), weight, self.variance_epsilon).view(x.shape)
            rows, sums = x.view(-1, x.shape[-1]), residual.view(-1, x.shape[-1])
            operator_of("fused_add_rms_norm_")(rows, sums, weight, self.variance_epsilon)
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
                and plain_rows(x, z, self.weight.data)
                and z.shape == x.shape
                and self.norm_before_gate
                and self.group_size in (None, width)
                and self.activation in ("silu", "swish")
                and measured("gated_rms_norm", hidden_size=width)
            ):
                stays("gated_norm", f"{NOT_TAKEN}, several groups, another gate than SiLU, or the gate first")
                return super().forward(x, z)
            rows = operator_of("gated_rms_norm")(x.view(-1, width), z.view(-1, width), self.weight.data, self.eps)
            return rows.view(x.shape)

    _out_of_tree(CustomOp, RMSNormGated, WinnersRMSNormGated)


def _replace_silu_and_mul() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.activation import SiluAndMul

    class WinnersSiluAndMul(SiluAndMul):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            width = x.shape[-1] // 2
            if not (plain_rows(x) and measured("silu_and_mul", intermediate_size=width)):
                stays("silu_and_mul", NOT_TAKEN)
                return super().forward(x)
            return operator_of("silu_and_mul")(x.view(-1, 2, width)).view(*x.shape[:-1], width)

    _out_of_tree(CustomOp, SiluAndMul, WinnersSiluAndMul)


def _replace_mrope() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    class WinnersMRotaryEmbedding(MRotaryEmbedding):  # type: ignore[misc]
        def forward(self, positions: Any, query: Any, key: Any = None, offsets: Any = None) -> Any:
            """query, key [num_tokens, heads * 128]; slices of qkv are copied, as by vLLM's own kernel."""
            if not (
                positions.ndim == 2
                and key is not None
                and offsets is None
                and self.is_neox_style
                and not self.mrope_interleaved
                and len(self.mrope_section or ()) == 3
                and self.head_size == self.rotary_dim == 128
                and on_gpu(query, key)
                and measured("mrope", num_q_heads=query.shape[-1] // 128, num_kv_heads=key.shape[-1] // 128)
            ):
                stays("mrope", "text alone, interleaved sections, heads of another size, or another type than bfloat16")
                return super().forward(positions, query, key, offsets)
            angles = self._match_cos_sin_cache_dtype(query)[positions]
            cos, sin = (half.float().contiguous() for half in angles.chunk(2, dim=-1))
            heads = (each.reshape(each.shape[0], -1, 128) for each in (query, key))
            turned = operator_of("mrope")(*heads, cos, sin, *self.mrope_section)
            return tuple(each.view(own.shape) for each, own in zip(turned, (query, key), strict=True))

    _out_of_tree(CustomOp, MRotaryEmbedding, WinnersMRotaryEmbedding)


def _register_attention() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, f"{__package__}.attention_backend.WinnersAttentionBackend")
    tell(f"{PREFIX}: attention runs only where vLLM is told to: --attention-backend CUSTOM")


def _replace_experts() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.prepare_finalize import MoEPrepareAndFinalizeNoDPEPModular
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    class WinnersExperts(UnquantizedFusedMoEMethod):  # type: ignore[misc]
        def apply(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, *shared: Any, **named: Any) -> Any:
            """Runs inside of vLLM's own opaque operator, so that sizes are numbers here."""
            found, others = None, (*shared, *named.values())
            why = self.reason(layer) or ("shared experts" if any(each is not None for each in others) else None)
            if why is None:
                found = _experts_of(x, layer, topk_weights, topk_ids)
            else:
                stays("experts", why)
            return super().apply(layer, x, topk_weights, topk_ids, *shared, **named) if found is None else found

        def reason(self, layer: Any) -> str | None:
            """Why vLLM's own code runs for this layer; None where ours may."""
            if self.unquantized_backend is not UnquantizedMoeBackend.TRITON:  # the others shuffle the weights
                return f"vLLM chose the backend {self.unquantized_backend}"
            if not isinstance(getattr(self.moe_kernel, "prepare_finalize", None), MoEPrepareAndFinalizeNoDPEPModular):
                return "data parallelism exchanges tokens around the experts"
            if layer.expert_map is not None:
                return "expert parallelism"
            if layer.activation is not MoEActivation.SILU or any(
                getattr(layer, each, None) is not None for each in SWIGLU
            ):
                return "another activation than SiLU"
            if self.moe.has_bias or layer.apply_router_weight_on_input:
                return "biases, or weights on the input"
            return None

    _out_of_tree(CustomOp, UnquantizedFusedMoEMethod, WinnersExperts)


def _experts_of(x: torch.Tensor, layer: Any, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor | None:
    """[num_tokens, hidden_size]; None where vLLM's own code runs. Sizes are numbers here."""
    from vllm import envs

    name = served("fused_moe")
    if getattr(envs, "VLLM_MOE_SKIP_PADDING", False):  # tokens that pad a graph have the expert -1 (0.33)
        topk_ids = topk_ids.clamp(min=0)
    given = [x, layer.w13_weight, layer.w2_weight, topk_ids.to(torch.int32), topk_weights.float()]
    if not plain_rows(*given[:3]):
        stays("experts", "a slice, or another type than bfloat16")
        return None
    if OPERATORS[name].runs(given) not in ("own", "library"):
        return None
    found: torch.Tensor = operator_of(name)(*given)
    return found.to(x.dtype)


def _replace_block_fp8() -> None:
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.scaled_mm.triton import TritonFp8BlockScaledMMKernel
    from vllm.platforms import PlatformEnum

    class WinnersFp8BlockKernel(TritonFp8BlockScaledMMKernel):  # type: ignore[misc]
        """Weights and scales stay as the parent leaves them, in row order."""

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            is_possible, reason = super().can_implement(config)
            reason = (reason or "vLLM's Triton kernel cannot") if not is_possible else cls.reason(config)
            if reason is not None:
                stays("block_fp8", reason)
            return reason is None, reason

        @classmethod
        def reason(cls, config: Any) -> str | None:
            columns, depth = config.weight_shape
            if config.out_dtype is not torch.bfloat16:
                return "the output is not bfloat16"
            if tuple(config.activation_quant_key.scale.group_shape) != (1, 128):
                return "activations are not quantized in groups of 128"
            if tuple(config.weight_quant_key.scale.group_shape) != (128, 128) or columns % 128 or depth % 128:
                return "the weight has no whole blocks of 128 x 128"
            return None if measured(served("block_scaled_mm"), n=columns, k=depth) else "these sizes were not measured"

        def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> Any:
            return operator_of(served("block_scaled_mm"))(A, As, B, Bs)

    kernels = linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CUDA]
    if not any(each.__name__ == WinnersFp8BlockKernel.__name__ for each in kernels):
        kernels.insert(0, WinnersFp8BlockKernel)  # register_linear_kernel() appends, so that it would be tried last


REPLACED: Replaced = {
    "rms_norm": (("rms_norm", "fused_add_rms_norm"), _replace_rms_norm),
    "gated_norm": (("gated_rms_norm",), _replace_gated_norm),
    "silu_and_mul": (("silu_and_mul",), _replace_silu_and_mul),
    "mrope": (("mrope",), _replace_mrope),
    "experts": (("fused_moe",), _replace_experts),
    "block_fp8": (("block_scaled_mm",), _replace_block_fp8),
    "attention": (("paged_attention_decode", "unified_attention"), _register_attention),
}
