"""vLLM's attention backend CUSTOM (0.25.1): FlashAttention's, with decode and prefill by the operators of this package.

$KERNELDERBY_VLLM=attention registers it, `--attention-backend CUSTOM` chooses it. FlashAttention's own code runs where
a layer or a batch has more than causal attention of bfloat16 over a paged cache of 16 tokens a block, where the query
is a slice of qkv, which our kernels would copy, and where the sizes were not measured.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from .operators import OPERATORS

BLOCK = 16  # tokens
WHOLE = (None, (-1, -1))  # a window over all keys


class WinnersAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[WinnersAttention]:
        return WinnersAttention

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [BLOCK]


class WinnersAttention(FlashAttentionImpl):  # type: ignore[misc]
    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        *scales: Any,
        **named: Any,
    ) -> torch.Tensor:
        given = (*scales, *named.values())
        if attn_metadata is not None and self.is_plain() and all(each is None for each in given):
            count = attn_metadata.num_actual_tokens
            call = call_of(self.scale, query[:count], kv_cache, attn_metadata)
            if call is not None:
                operator, arguments = call
                OPERATORS[operator](arguments, {"output": output[:count]})
                return output
        return super().forward(  # type: ignore[no-any-return]
            layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named
        )

    def is_plain(self) -> bool:
        """Whether the layer asks for nothing that the operators lack."""
        return (
            self.attn_type == "decoder"
            and self.sliding_window in WHOLE
            and self.alibi_slopes is None
            and self.sinks is None
            and not self.logits_soft_cap
            and self.kv_cache_dtype in ("auto", "bfloat16")
            and self.dcp_world_size == 1
        )


def call_of(scale: float, query: torch.Tensor, kv_cache: torch.Tensor, batch: Any) -> tuple[str, list[Any]] | None:
    """(operator, its arguments); None where vLLM's own code runs. query [tokens, heads, head_dim], kv_cache
    [blocks, 2, BLOCK, kv_heads, head_dim]; batch: FlashAttentionMetadata."""
    if not (
        query.dtype is kv_cache.dtype is torch.bfloat16
        and query.is_contiguous()
        and kv_cache.is_contiguous()
        and kv_cache.shape[2] == BLOCK
        and batch.causal is True
        and not batch.use_cascade
        and batch.sliding_window in WHOLE
        and batch.mm_prefix_range_tensor is None
        and batch.rswa_prefix_lens is None
    ):
        return None
    # Keys and values of a block lie one after the other, so a block of keys is an even one of all, and the same number
    # is its values' in a cache that begins one block later.
    blocks = kv_cache.view(-1, *kv_cache.shape[2:])
    caches = blocks[:-1], blocks[1:]
    if batch.max_query_len == 1 and len(query) == len(batch.seq_lens):
        name, starts, longest = "paged_attention_decode", [], []
    else:
        name, starts, longest = "unified_attention", [batch.query_start_loc], [batch.max_query_len]
    operator = OPERATORS.get(name)
    if operator is None:
        return None
    table, lengths = _of_step(batch)
    pages = [lengths, table] if starts else [table, lengths]
    arguments = [query, *caches, *starts, *pages, *longest, batch.max_seq_len, scale]
    return (name, arguments) if operator.is_ready(arguments) else None


def _of_step(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(block table in blocks of keys and of values, lengths), once for all layers of a step; a capture makes its own.
    Sequences that pad a graph have no key in vLLM and one here: a mean of no values is no number."""
    capturing = batch.block_table.is_cuda and torch.cuda.is_current_stream_capturing()
    known: tuple[bool, torch.Tensor, torch.Tensor] | None = getattr(batch, "winners_step", None)
    if known is None or known[0] is not capturing:
        known = batch.winners_step = (capturing, batch.block_table * 2, batch.seq_lens.clamp(min=1))
    return known[1:]
