"""A decoder of a model's true sizes in plain torch, whose operators are exchanged: for tokens per second, not for text.

Random weights, bfloat16. Linear layers, rotary embedding and the writes into the cache are torch's in every variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

ZIPF = 1.0  # the exponent of the experts' popularity
Operators = dict[str, Callable[..., Any]]  # operator -> function, in the definition's order


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """experts: 0 for a dense model; intermediate: of an expert, or of the dense layer."""

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
        """Columns of a head that turn with the position."""
        return self.head_dim


@dataclass(frozen=True, slots=True)
class StepLoad:
    """tokens: of the step; sequences: each takes tokens / sequences of them; context: tokens of each sequence that the
    cache holds at the step's end."""

    tokens: int
    sequences: int
    context: int

    @property
    def is_decode(self) -> bool:
        return self.tokens == self.sequences


class Decoder:
    """One set of weights and one filled cache, run by any operators. block: tokens of a block of the cache."""

    block = 16

    def __init__(self, sizes: DecoderSizes, load: StepLoad, device: torch.device, seed: int = 0) -> None:
        self.sizes, self.load, self.device = sizes, load, device
        self._random = torch.Generator(device).manual_seed(seed)
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

    # ---------------------------------------------------------------------------------------------- a layer's parts

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

    # ------------------------------------------------------------------------------------------------------ weights

    def _caches(self, blocks: int) -> tuple[torch.Tensor, ...]:
        """Of a layer: keys, values."""
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
        """[tokens, experts] to be added to the logits: their top k then are draws of a Zipf distribution without
        repetition (Gumbel's trick). A random router alone would be nearly uniform."""
        ranks = torch.randperm(self.sizes.experts, generator=self._random, device=self.device).float() + 1
        shape = (self.load.tokens, self.sizes.experts)
        noise = -torch.log(
            -torch.log(torch.rand(shape, generator=self._random, device=self.device).clamp(1e-6, 1 - 1e-6))
        )
        return noise - ZIPF * ranks.log()

    def _weight(self, *shape: int) -> torch.Tensor:
        """Such that a product has its input's size."""
        made = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return made.normal_(0, 1 / math.sqrt(shape[-1]), generator=self._random)

    def _filled(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_(generator=self._random)

    def _ones(self, size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16, device=self.device)
