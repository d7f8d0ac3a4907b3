"""DeepSeek-V3's layer: latent attention by absorbed projections, FP8 linear layers and experts with block scales.

Decoding alone. What has no block of 128 (the latents' projection) and the absorbed products are torch's in bfloat16, in
every variant; so is the router, whose groups are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernelderby.measure.decoder.layers import Decoder, DecoderSizes, Operators

GROUP = 128  # values that share a scale
CODES = 16.0  # the codes' standard deviation: of e4m3's range to 448
EPS = 1e-10  # of the quantization
LATENT = 512  # what the operator's contract fixes


@dataclass(frozen=True, slots=True)
class LatentSizes(DecoderSizes):
    """head_dim: of the part of a query without position. experts: on this GPU; each gets as many pairs as where the
    other GPUs' tokens come too. shared: intermediate size of the shared expert."""

    query_rank: int = 1536
    latent: int = LATENT
    rope: int = 64
    value: int = 128
    shared: int = 2048

    @property
    def rotary_dim(self) -> int:
        return self.rope


class LatentDecoder(Decoder):
    block = 64
    sizes: LatentSizes

    def _attention(
        self, operators: Operators, x: torch.Tensor, layer: dict[str, torch.Tensor], caches: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        sizes, tokens = self.sizes, len(x)
        eps = sizes.eps
        query = operators["rms_norm"](self._linear(operators, x, layer, "query_a"), layer["query_norm"], eps)
        query = self._linear(operators, query, layer, "query_b").view(tokens, sizes.heads, -1)
        plain, turned = torch.split(query, [sizes.head_dim, sizes.rope], dim=-1)
        latent, key = torch.split(F.linear(x, layer["latent"]), [sizes.latent, sizes.rope], dim=-1)
        latent = operators["rms_norm"](latent.contiguous(), layer["latent_norm"], eps)
        entry = torch.cat([latent, self._rotated(key.unsqueeze(1)).squeeze(1)], dim=-1)
        (cache,) = caches
        cache.view(-1, cache.shape[-1]).index_copy_(0, self.slots, entry)
        absorbed = torch.bmm(plain.transpose(0, 1), layer["keys"]).transpose(0, 1)
        query = torch.cat([absorbed, self._rotated(turned)], dim=-1)
        scale = (sizes.head_dim + sizes.rope) ** -0.5
        found = operators["mla_paged_decode_attention"](
            query, cache, self.table, self.lengths, self.load.context, scale
        )
        values = torch.bmm(found.transpose(0, 1), layer["values"]).transpose(0, 1).reshape(tokens, -1)
        return self._linear(operators, values, layer, "out")

    def _experts(self, operators: Operators, x: torch.Tensor, layer: dict[str, torch.Tensor]) -> torch.Tensor:
        weights, ids = (F.linear(x, layer["router"]).float() + layer["routing"]).topk(self.sizes.top_k)
        codes, scales = _quantized(operators, x)
        names = ("gate_up", "gate_up_scale", "down", "down_scale")
        routed = operators["fp8_blockscale_fused_moe"](
            codes, scales, *(layer[name] for name in names), ids.to(torch.int32), weights.softmax(-1)
        )
        halves = _product(operators, codes, scales, layer, "shared_gate_up").view(len(x), 2, -1)
        shared = self._linear(operators, operators["silu_and_mul"](halves), layer, "shared_down")
        return routed + shared  # type: ignore[no-any-return]

    def _linear(self, operators: Operators, x: torch.Tensor, layer: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        return _product(operators, *_quantized(operators, x), layer, name)

    def _caches(self, blocks: int) -> tuple[torch.Tensor, ...]:
        return (self._filled((blocks, self.block, self.sizes.latent + self.sizes.rope)),)

    def _layer(self) -> dict[str, torch.Tensor]:
        sizes = self.sizes
        layer = {
            "norm": self._ones(sizes.hidden),
            "second": self._ones(sizes.hidden),
            "query_norm": self._ones(sizes.query_rank),
            "latent_norm": self._ones(sizes.latent),
            "latent": self._weight(sizes.latent + sizes.rope, sizes.hidden),
            "keys": self._weight(sizes.heads, sizes.latent, sizes.head_dim).transpose(1, 2).contiguous(),
            "values": self._weight(sizes.heads, sizes.value, sizes.latent).transpose(1, 2).contiguous(),
            "router": self._weight(sizes.experts, sizes.hidden) * 0.01,
            "routing": self._routing(),
        }
        for name, shape in (
            ("query_a", (sizes.query_rank, sizes.hidden)),
            ("query_b", (sizes.heads * (sizes.head_dim + sizes.rope), sizes.query_rank)),
            ("out", (sizes.hidden, sizes.heads * sizes.value)),
            ("shared_gate_up", (2 * sizes.shared, sizes.hidden)),
            ("shared_down", (sizes.hidden, sizes.shared)),
            ("gate_up", (sizes.experts, 2 * sizes.intermediate, sizes.hidden)),
            ("down", (sizes.experts, sizes.hidden, sizes.intermediate)),
        ):
            layer[name], layer[f"{name}_scale"] = self._codes(shape)
        return layer

    def _codes(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """e4m3 codes and their scales of 128 x 128, such that a product has its input's size."""
        codes = torch.empty(shape, dtype=torch.float8_e4m3fn, device=self.device)
        for part in codes if len(shape) == 3 else (codes,):
            drawn = torch.empty(part.shape, dtype=torch.bfloat16, device=self.device)
            part.copy_(drawn.normal_(0, CODES, generator=self._random))
        blocks = (*shape[:-2], shape[-2] // GROUP, shape[-1] // GROUP)
        return codes, torch.full(blocks, shape[-1] ** -0.5 / CODES, dtype=torch.float32, device=self.device)


def plain_latent_attention(
    query: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, longest: int, scale: float
) -> torch.Tensor:
    """mla_paged_decode_attention of sequences of one length in torch, for a package that does not have it."""
    keys = cache[table.long()].flatten(1, 2)[:, :longest]
    weights = (query @ keys.transpose(1, 2)).float().mul(scale).softmax(-1).to(query.dtype)
    return weights @ keys[..., :LATENT]


def _quantized(operators: Operators, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales = operators["per_token_group_quant_fp8"](x.view(len(x), -1, GROUP), EPS)
    return codes.view(x.shape), scales


def _product(
    operators: Operators, codes: torch.Tensor, scales: torch.Tensor, layer: dict[str, torch.Tensor], name: str
) -> torch.Tensor:
    return operators["block_scaled_mm_bf16"](codes, scales, layer[name], layer[f"{name}_scale"])  # type: ignore[no-any-return]
