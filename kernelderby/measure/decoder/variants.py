"""Variants of a decoder's operators: an installed package of winners, its libraries alone, or plain torch to
compile."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

from kernelderby.errors import DerbyError
from kernelderby.measure.decoder.layers import GROUP, Decoder, LatentDecoder, Operators, plain_latent_attention

PACKAGE = "kernelderby_winners"
PLAIN: Operators = {"mla_paged_decode_attention": plain_latent_attention}  # if the package has none, in all variants
PLAIN_TORCH = "plain torch"
KINDS = {"libraries": ("library",), "winners": ("own", "library")}  # of the solutions of a variant; plain torch always
INSTEAD = {"fused_moe_bf16": "fused_moe", "block_scaled_mm_bf16": "block_scaled_mm"}  # and a cast


def package() -> Any:
    """The installed package. DerbyError without one."""
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise DerbyError(
            f"{PACKAGE} does not import ({error}); make it by `derby export --wheel DIR`, then pip install the wheel"
        ) from None


def of_package(winners: Any, names: Iterable[str]) -> Operators:
    """The package's operators of these names. The residual is updated in place, as in servers. If the package lacks an
    operator with a bfloat16 output, the float32 one and a cast replace it."""

    def add(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
        winners.fused_add_rms_norm_(x, residual, weight, eps)
        return x, residual

    found: Operators = {}
    for name in names:
        if hasattr(winners, name):
            found[name] = getattr(winners, name)
        elif hasattr(winners, INSTEAD.get(name, name)):
            wide = getattr(winners, INSTEAD[name])
            found[name] = lambda *given, wide=wide: wide(*given).to(torch.bfloat16)
        elif name in PLAIN:
            found[name] = PLAIN[name]
        else:
            raise DerbyError(f"{PACKAGE}: brings no {name}; export it with all operators, once they have rows")
    return {**found, "fused_add_rms_norm": add}


def served_name(winners: Any, name: str) -> str:
    """The package's operator that serves for this one."""
    return name if hasattr(winners, name) else INSTEAD.get(name, name)


def which_ran(
    winners: Any, calls: Iterable[tuple[str, dict[str, int], int]], device: torch.device
) -> dict[str, dict[str, list[str]]]:
    """Operator -> variant -> its solutions, one a call; PLAIN_TORCH for plain torch. The calls ran before."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, axes, _ in calls:
        operator = winners.OPERATORS.get(served_name(winners, name))
        for variant, kinds in KINDS.items():
            with winners.only(*kinds):
                names = operator.order(axes, device, bool(operator.in_place)) if operator else []
            ran: str = next((each for each in names if each in operator.ran()), PLAIN_TORCH)
            is_plain = ran == PLAIN_TORCH or operator.selector.kinds[ran] == "plain"
            found.setdefault(name, {}).setdefault(variant, []).append(PLAIN_TORCH if is_plain else ran)
    return found


def plain(sizes_of: Decoder) -> Operators:
    """Operators of torch only, through which a fusing compiler (torch.compile) can see."""
    top_k = sizes_of.sizes.top_k

    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)

    def add(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
        total = x.float() + residual.float()
        return F.rms_norm(total, x.shape[-1:], weight.float(), eps).to(x.dtype), total.to(x.dtype)

    def silu(halves: torch.Tensor) -> torch.Tensor:
        gate, up = halves.float().unbind(1)
        return (F.silu(gate) * up).to(halves.dtype)

    def gating(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = logits.softmax(-1).topk(top_k)
        return weights, ids.to(torch.int32)

    return {"rms_norm": norm, "fused_add_rms_norm": add, "silu_and_mul": silu, "moe_topk_gating_softmax": gating}


def calls_of(decoder: Decoder) -> list[tuple[str, dict[str, int], int]]:
    """(operator, axes, calls) of a step, for the operators that a package replaces."""
    if isinstance(decoder, LatentDecoder):
        return _latent_calls(decoder)
    sizes, load = decoder.sizes, decoder.load
    norm = {"hidden_size": sizes.head_dim}
    found = [
        ("fused_add_rms_norm", {"num_tokens": load.tokens, "hidden_size": sizes.hidden}, 2 * sizes.layers),
        ("rms_norm", {"num_tokens": load.tokens * sizes.heads, **norm}, sizes.layers),
        ("rms_norm", {"num_tokens": load.tokens * sizes.kv_heads, **norm}, sizes.layers),
    ]
    blocks = decoder.table.shape[1]
    paged = {
        "num_seqs": load.sequences,
        "num_blocks": load.sequences * blocks,
        "max_blocks_per_seq": blocks,
        "num_query_heads": sizes.heads,
        "num_kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
    }
    if load.is_decode:
        found.append(("paged_attention_decode", paged, sizes.layers))
    else:
        more = {"num_tokens": load.tokens, "len_cu_seqlens": load.sequences + 1, **paged}
        found.append(("unified_attention", more, sizes.layers))
    if not sizes.experts:
        found.append(
            ("silu_and_mul", {"num_tokens": load.tokens, "intermediate_size": sizes.intermediate}, sizes.layers)
        )
        return found
    of_experts = {"num_tokens": load.tokens, "num_experts": sizes.experts}
    found.append(("moe_topk_gating_softmax", of_experts, sizes.layers))
    experts = {
        **of_experts,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "gate_up_size": 2 * sizes.intermediate,
        "top_k": sizes.top_k,
    }
    return [*found, ("fused_moe_bf16", experts, sizes.layers)]


def _latent_calls(decoder: LatentDecoder) -> list[tuple[str, dict[str, int], int]]:
    sizes, tokens = decoder.sizes, decoder.load.tokens
    blocks = decoder.table.shape[1]
    paged = {"batch_size": tokens, "num_heads": sizes.heads, "block_size": decoder.block, "max_blocks_per_seq": blocks}
    widths = (sizes.hidden, sizes.query_rank, sizes.heads * sizes.value, sizes.hidden, sizes.shared)
    experts = {
        **{"num_tokens": tokens, "num_experts": sizes.experts, "top_k": sizes.top_k},
        **{"hidden_size": sizes.hidden, "num_hidden_blocks": sizes.hidden // GROUP},
        **{"intermediate_size": sizes.intermediate, "num_intermediate_blocks": sizes.intermediate // GROUP},
        **{"gate_up_size": 2 * sizes.intermediate, "num_gate_up_blocks": 2 * sizes.intermediate // GROUP},
    }
    products = [
        each.shape for name in decoder.layers[0] if (each := decoder.layers[0].get(f"{name}_scale")) is not None
    ]
    calls = [
        ("fused_add_rms_norm", {"num_tokens": tokens, "hidden_size": sizes.hidden}, 2),
        ("rms_norm", {"num_tokens": tokens, "hidden_size": sizes.query_rank}, 1),
        ("rms_norm", {"num_tokens": tokens, "hidden_size": sizes.latent}, 1),
        *(("per_token_group_quant_fp8", {"num_tokens": tokens, "num_groups": each // GROUP}, 1) for each in widths),
        *(
            (
                "block_scaled_mm_bf16",
                {"m": tokens, "n": GROUP * n, "k": GROUP * k, "num_n_blocks": n, "num_k_blocks": k},
                1,
            )
            for n, k in (each for each in products if len(each) == 2)
        ),
        ("mla_paged_decode_attention", {**paged, "num_blocks": tokens * blocks}, 1),
        ("silu_and_mul", {"num_tokens": tokens, "intermediate_size": sizes.shared}, 1),
        ("fp8_blockscale_fused_moe", experts, 1),
    ]
    return [(name, axes, count * sizes.layers) for name, axes, count in calls]
