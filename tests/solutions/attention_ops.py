"""Stand-ins in plain torch for FlashAttention 3 and FlashMLA as vLLM 0.25.1 builds them, under their real schemas."""

import itertools

import torch


def attend(query, key, value, scale, causal):
    """query [rows, heads, size], key and value [tokens, kv_heads, size] of one sequence -> output."""
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, dim=1).float() for part in (key, value))
    scores = torch.einsum("rhd,thd->hrt", query.float(), key) * scale
    if causal:
        rows, tokens = scores.shape[1:]
        later = torch.arange(tokens) > torch.arange(rows).unsqueeze(-1) + tokens - rows
        scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("hrt,thd->rhd", scores.softmax(-1), value)


def sequences(tensor, offsets, lengths, table):
    """One tensor [tokens, heads, size] for each sequence: packed by offsets, in pages of a table, or a row each."""
    if offsets is not None:
        bounds = offsets.tolist()
        return [tensor[first:last] for first, last in itertools.pairwise(bounds)]
    counts = [tensor.shape[1]] * len(tensor) if lengths is None else lengths.tolist()
    if table is None:
        return [row[:count] for row, count in zip(tensor, counts, strict=True)]
    return [tensor[blocks.long()].flatten(0, 1)[:count] for blocks, count in zip(table, counts, strict=True)]


def flash_attention_3(q, k, v, k_new, v_new, q_v, out, cu_q, cu_k, cu_new, used_q, used_k, max_q, max_k, table, *rest):
    (index, left, cos, sin, rotary, q_scale, k_scale, v_scale, scale, causal, low, high, cap, *last) = rest
    left_out = k_new, v_new, cu_new, used_q, index, left, cos, sin, rotary, q_scale, k_scale, v_scale
    assert all(one is None for one in left_out) and (low, high, cap) == (-1, -1, 0)
    assert last[1:3] == [None, 0] and last[4:] == [0, None, 1, 0, None]  # splits and the like are left to it
    if table is None and cu_k is None:
        assert k.shape[1] == max_k, "k must have shape (batch_size_k, seqlen_k, num_heads_k, head_size)"
    if q_v is not None:  # scores from both parts
        q, k = torch.cat([q, q_v], -1), torch.cat([k, v], -1)
    queries, keys = sequences(q, cu_q, None, None), sequences(k, cu_k, used_k, table)
    values, results = sequences(v, cu_k, used_k, table), sequences(out, cu_q, None, None)
    assert max_q >= max(map(len, queries)) and max_k >= max(map(len, keys))
    for query, key, value, result in zip(queries, keys, values, results, strict=True):
        result.copy_(attend(query, key, value, scale, causal))
    return [out]


def flash_mla(q, cache, size_v, lengths, table, scale, causal, plan, splits, out):
    assert q.shape[1] == 1 and cache.shape[1:] == (64, 1, 576) and (causal, plan, splits) == (False, None, None)
    for query, key, result in zip(q, sequences(cache, None, lengths, table), out, strict=True):
        result.copy_(attend(query, key, key[..., :size_v], scale, False))
    return out, lengths, lengths, lengths


OPS = {
    "_vllm_fa3_C": {
        "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, "
        "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, "
        "int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, "
        "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, "
        "Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left, int window_size_right, "
        "float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, "
        "int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) "
        "-> Tensor[]": flash_attention_3,
    },
    "_flashmla_C": {
        "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor block_table, "
        "float softmax_scale, bool is_causal, Tensor? tile_scheduler_metadata, Tensor? num_splits, Tensor!? out) -> "
        "(Tensor, Tensor, Tensor, Tensor)": flash_mla,
    },
}
