"""FlashAttention 3 as vLLM 0.25.1 builds it: the op that its library registers, with names for what it takes."""

NAMESPACE, FILE = "_vllm_fa3_C", "vllm_flash_attn/_vllm_fa3_C.abi3.so"


def forward(ops, query, key, value, output, sm_scale, causal, max_query_len, max_len, *, latent_query=None,
            cu_seqlens_q=None, cu_seqlens_k=None, lengths=None, block_table=None, pack_gqa=None):
    """ops: torch.ops._vllm_fa3_C. query [tokens, heads, size] with cu_seqlens_q, else [batch, 1, heads, size]; key and
    value likewise with cu_seqlens_k, else [blocks or batch, tokens, heads, size] with lengths int32 [batch].
    latent_query: the part of the query that meets the value. Writes output. Splits are its heuristic's (0)."""
    nothing = None, None  # new keys and values, of which there are none, and so on
    ops.fwd(query, key, value, *nothing, latent_query, output,
            cu_seqlens_q, cu_seqlens_k, None, None, lengths,  # new keys' offsets, query lengths
            max_query_len, max_len, block_table, *nothing,  # batch indices, left padding
            *nothing, None, *nothing, None,  # rotary table, scales of query, key and value
            sm_scale, causal, -1, -1, 0.0, True,  # window, soft cap, how rotary pairs lie
            None, 0, pack_gqa, 0, None, 1, 0, None)  # schedule, splits, SMs kept free, sinks, context parallel
