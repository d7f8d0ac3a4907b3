"""vLLM's attention backend CUSTOM (0.25.1): FlashAttention's, with decode and prefill by the operators of this package.

$KERNELDERBY_VLLM=attention registers it, `--attention-backend CUSTOM` chooses it. FlashAttention's own code runs if a
layer or a batch needs more than causal attention of bfloat16 over a paged cache of 16 tokens a block, if the sizes were
not measured, and if a copy costs more than our kernels save: these read a query without gaps, while models that do not
normalise it pass a slice of qkv. It also runs in a vLLM that keeps keys and values side by side, such as 0.33.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl, FlashAttentionMetadata

from .engines import stays
from .operators import OPERATORS
from .solutions import PREFIX, tell

BLOCK = 16  # tokens
ASKED = {
    *("causal", "use_cascade", "sliding_window", "mm_prefix_range_tensor", "rswa_prefix_lens", "max_query_len"),
    *("max_seq_len", "seq_lens", "block_table", "query_start_loc", "num_actual_tokens"),
}  # of a batch
WHOLE = (None, (-1, -1))  # a window over all keys


class WinnersAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def get_impl_cls(cls) -> Any:
        return WinnersAttention if cls.is_known() else super().get_impl_cls()

    @classmethod
    def get_supported_kernel_block_sizes(cls, *given: Any, **named: Any) -> list[Any]:
        return [BLOCK] if cls.is_known() else list(super().get_supported_kernel_block_sizes(*given, **named))

    @classmethod
    def is_known(cls) -> bool:
        """Whether this vLLM's cache and batches are as call_of() reads them."""
        shape = getattr(cls, "get_kv_cache_shape", lambda *_: ())(3, BLOCK, 2, 64)
        known = tuple(shape) == (3, 2, BLOCK, 2, 64) and set(FlashAttentionMetadata.__dataclass_fields__) >= ASKED
        if not known:
            tell(f"{PREFIX}: attention stays vLLM's: its cache or its batches are not those of 0.25.1")
        return known


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
        is_plain = self.is_plain() and all(each is None for each in (*scales, *named.values()))
        if not is_plain:
            stays("attention", "a layer with a window, sinks, biases, a soft cap, an FP8 cache or context parallelism")
        if is_plain and attn_metadata is not None:
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
        and kv_cache.is_contiguous()
        and kv_cache.shape[2] == BLOCK
        and batch.causal is True
        and not batch.use_cascade
        and batch.sliding_window in WHOLE
        and batch.mm_prefix_range_tensor is None
        and batch.rswa_prefix_lens is None
    ):
        stays(
            "attention", f"a batch or a cache of another kind than causal, bfloat16, and dense blocks of {BLOCK} tokens"
        )
        return None
    # The keys and the values of a block lie one after the other. So a block of keys has an even number among all
    # blocks, and the same number stands for its values in a cache that begins one block later.
    blocks = kv_cache.view(-1, *kv_cache.shape[2:])
    caches = blocks[:-1], blocks[1:]
    if batch.max_query_len == 1 and len(query) == len(batch.seq_lens):
        # The table's width, which is the same in every step: vLLM warms a graph up with lengths of 1 and captures it
        # with the model's longest, and a capture may run only what ran at the same bound.
        name, starts, longest = "paged_attention_decode", [], [batch.block_table.shape[1] * BLOCK]
    else:
        name, starts = "unified_attention", [batch.query_start_loc]
        longest = [batch.max_query_len, batch.max_seq_len]
    operator = OPERATORS.get(name)
    if operator is None:
        return None
    table, lengths = _of_step(batch)
    pages = [lengths, table] if starts else [table, lengths]
    arguments = [query, *caches, *starts, *pages, *longest, scale]
    return (name, arguments) if operator.runs(arguments) == "own" else None


def _of_step(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(block table in blocks of keys and of values, lengths), computed once for all layers of a step; a capture
    computes its own. Sequences that pad a graph have no key in vLLM and one here, since a mean of no values would be
    NaN."""
    capturing = batch.block_table.is_cuda and torch.cuda.is_current_stream_capturing()
    known: tuple[bool, torch.Tensor, torch.Tensor] | None = getattr(batch, "winners_step", None)
    if known is None or known[0] is not capturing:
        known = batch.winners_step = (capturing, batch.block_table * 2, batch.seq_lens.clamp(min=1))
    return known[1:]
