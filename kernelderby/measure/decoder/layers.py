"""A decoder with a model's true sizes in plain torch, whose operators can be exchanged. It measures tokens per second
and gives no text.

Random weights, bfloat16. Linear layers, rotary embedding and the writes into the cache are torch's in every variant.

DeepSeek-V3's layer: latent attention by absorbed projections, FP8 linear layers and experts with block scales. Decoding
only. Layers without blocks of 128 (the latents' projection), the absorbed products and the router (without groups) are
torch's in bfloat16, in every variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

ZIPF = 1.0  # the exponent of the experts' popularity
GROUP = 128  # values that share a scale
CODES = 16.0  # the codes' standard deviation; e4m3 reaches 448
EPS = 1e-10  # of the quantization
LATENT = 512  # fixed by the operator's contract
Operators = dict[str, Callable[..., Any]]  # operator -> function, in the definition's order


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """experts: 0 for a dense model. intermediate: size in an expert, or in the dense layer."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    eps: float = 1e-6
    rope_base: float = 1e6

    @property
    def rotary_dim(self) -> int:
        """Columns of a head that are rotated by the position."""
        return self.head_dim


@dataclass(frozen=True, slots=True)
class StepLoad:
    """tokens: tokens of the step. sequences: each has tokens / sequences of them. context: tokens of each sequence in
    the cache at the step's end."""

    tokens: int
    sequences: int
    context: int

    @property
    def is_decode(self) -> bool:
        return self.tokens == self.sequences


class Decoder:
    """One set of weights and one filled cache, run by any operators. block: tokens of a block of the cache."""

    block = 16

    def __init__(self, sizes: DecoderSizes, load: StepLoad, device: torch.device) -> None:
        self.sizes, self.load, self.device = sizes, load, device
        self._random = torch.Generator(device).manual_seed(0)
        self.layers = [self._layer() for _ in range(sizes.layers)]
        self.norm, self.head = self._ones(sizes.hidden), self._weight(sizes.vocab, sizes.hidden)
        blocks = -(-load.context // self.block)
        self.caches = [self._caches(load.sequences * blocks) for _ in range(sizes.layers)]
        order = torch.randperm(load.sequences * blocks, generator=self._random, device=device)
        self.table = order.to(torch.int32).view(load.sequences, blocks)
        self.lengths = torch.full((load.sequences,), load.context, dtype=torch.int32, device=device)
        each = load.tokens // load.sequences
        self.starts = torch.arange(0, load.tokens + 1, each, dtype=torch.int32, device=device)
        position = torch.arange(load.context - each, load.context, device=device).repeat(load.sequences)
        block = self.table.long()[
            torch.arange(load.sequences, device=device).repeat_interleave(each), position // self.block
        ]
        self.slots = block * self.block + position % self.block
        half = torch.arange(0, sizes.rotary_dim, 2, device=device) / sizes.rotary_dim
        angles = position[:, None].float() * sizes.rope_base**-half
        self.cos, self.sin = angles.cos()[:, None], angles.sin()[:, None]
        self.hidden = self._filled((load.tokens, sizes.hidden))

    def step(self, operators: Operators) -> torch.Tensor:
        """Logits of each sequence's last token, [sequences, vocab]."""
        x, residual = self.hidden.clone(), torch.zeros_like(self.hidden)
        for layer, caches in zip(self.layers, self.caches, strict=True):
            x, residual = operators["fused_add_rms_norm"](x, residual, layer["norm"], self.sizes.eps)
            x = self._attention(operators, x, layer, caches)
            x, residual = operators["fused_add_rms_norm"](x, residual, layer["second"], self.sizes.eps)
            x = (self._experts if self.sizes.experts else self._dense)(operators, x, layer)
        last = self.starts[1:].long() - 1
        x, _ = operators["fused_add_rms_norm"](x[last], residual[last], self.norm, self.sizes.eps)
        return F.linear(x, self.head)

    def _attention(
        self, operators: Operators, x: torch.Tensor, layer: dict[str, torch.Tensor], caches: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        sizes = self.sizes
        split = F.linear(x, layer["qkv"]).view(len(x), -1, sizes.head_dim)
        query, key, value = torch.split(split, [sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
        query, key = (
            self._rotated(operators["rms_norm"](part.reshape(-1, sizes.head_dim), weight, sizes.eps).view(part.shape))
            for part, weight in ((query, layer["query"]), (key, layer["key"]))
        )
        for cache, part in zip(caches, (key, value), strict=True):
            cache.view(-1, sizes.kv_heads, sizes.head_dim).index_copy_(0, self.slots, part.contiguous())
        given = (query, *caches)
        scale = sizes.head_dim**-0.5
        if self.load.is_decode:
            found = operators["paged_attention_decode"](*given, self.table, self.lengths, self.load.context, scale)
        else:
            longest = self.load.tokens // self.load.sequences
            found = operators["unified_attention"](
                *given, self.starts, self.lengths, self.table, longest, self.load.context, scale
            )
        return F.linear(found.reshape(len(x), -1), layer["out"])

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        one, two = x.float().chunk(2, dim=-1)
        return torch.cat([one * self.cos - two * self.sin, two * self.cos + one * self.sin], dim=-1).to(x.dtype)

    def _dense(self, operators: Operators, x: torch.Tensor, layer: dict[str, torch.Tensor]) -> torch.Tensor:
        halves = F.linear(x, layer["gate_up"]).view(len(x), 2, -1)
        return F.linear(operators["silu_and_mul"](halves), layer["down"])

    def _experts(self, operators: Operators, x: torch.Tensor, layer: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = F.linear(x, layer["router"]).float() + layer["routing"]
        weights, ids = operators["moe_topk_gating_softmax"](logits)
        weights = weights / weights.sum(-1, keepdim=True)
        return operators["fused_moe_bf16"](x, layer["gate_up"], layer["down"], ids, weights)  # type: ignore[no-any-return]

    def _caches(self, blocks: int) -> tuple[torch.Tensor, ...]:
        """The keys and values of a layer."""
        shape = (blocks, self.block, self.sizes.kv_heads, self.sizes.head_dim)
        return self._filled(shape), self._filled(shape)

    def _layer(self) -> dict[str, torch.Tensor]:
        sizes = self.sizes
        rows, width = sizes.head_dim * sizes.heads, sizes.head_dim * (sizes.heads + 2 * sizes.kv_heads)
        layer = {
            "norm": self._ones(sizes.hidden),
            "second": self._ones(sizes.hidden),
            "query": self._ones(sizes.head_dim),
            "key": self._ones(sizes.head_dim),
            "qkv": self._weight(width, sizes.hidden),
            "out": self._weight(sizes.hidden, rows),
        }
        many = (sizes.experts,) if sizes.experts else ()
        layer["gate_up"] = self._weight(*many, 2 * sizes.intermediate, sizes.hidden)
        layer["down"] = self._weight(*many, sizes.hidden, sizes.intermediate)
        if sizes.experts:
            layer["router"] = self._weight(sizes.experts, sizes.hidden) * 0.01
            layer["routing"] = self._routing()
        return layer

    def _routing(self) -> torch.Tensor:
        """[tokens, experts], to be added to the logits. The top k of the sums are then draws without repetition from a
        Zipf distribution (Gumbel's trick). A random router alone would be nearly uniform."""
        ranks = torch.randperm(self.sizes.experts, generator=self._random, device=self.device).float() + 1
        shape = (self.load.tokens, self.sizes.experts)
        noise = -torch.log(
            -torch.log(torch.rand(shape, generator=self._random, device=self.device).clamp(1e-6, 1 - 1e-6))
        )
        return noise - ZIPF * ranks.log()

    def _weight(self, *shape: int) -> torch.Tensor:
        """A weight with which a product has the size of its input."""
        made = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return made.normal_(0, 1 / math.sqrt(shape[-1]), generator=self._random)

    def _filled(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_(generator=self._random)

    def _ones(self, size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16, device=self.device)


@dataclass(frozen=True, slots=True)
class LatentSizes(DecoderSizes):
    """head_dim: of the part of a query without position. experts: on this GPU; each gets as many pairs as with the
    tokens of all GPUs. shared: intermediate size of the shared expert."""

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
        """e4m3 codes and their scales of 128 x 128 blocks, with which a product has the size of its input."""
        codes = torch.empty(shape, dtype=torch.float8_e4m3fn, device=self.device)
        for part in codes if len(shape) == 3 else (codes,):
            drawn = torch.empty(part.shape, dtype=torch.bfloat16, device=self.device)
            part.copy_(drawn.normal_(0, CODES, generator=self._random))
        blocks = (*shape[:-2], shape[-2] // GROUP, shape[-1] // GROUP)
        return codes, torch.full(blocks, shape[-1] ** -0.5 / CODES, dtype=torch.float32, device=self.device)


def plain_latent_attention(
    query: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, longest: int, scale: float
) -> torch.Tensor:
    """mla_paged_decode_attention of sequences of equal length in torch, for a package without it."""
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
