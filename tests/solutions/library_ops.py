"""Stand-ins in plain torch for the ops of vLLM 0.25.1 and sglang-kernel 0.4.3, under their real schemas.

The schema strings are those that the libraries register, so torch's dispatcher refuses a wrong number, order or type of
arguments as the library would. What the stand-ins leave out: alignment, strides that a kernel does not take, speed.
"""

import torch

FP8_MAX = 448.0


def rms_norm(out, x, weight, eps):
    value = x.float()
    out.copy_(value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps) * weight.float())


def fused_add_rms_norm(x, residual, weight, eps):
    total = x.float() + residual.float()
    residual.copy_(total)
    rms_norm(x, total, weight, eps)


def silu_and_mul(out, x):
    gate, up = x.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def quantise(out, x, scale, eps=1e-10):
    scale.copy_((x.abs().amax(-1, keepdim=True).clamp(min=eps) / FP8_MAX).view(scale.shape))
    out.copy_((x / scale.view(*x.shape[:-1], 1)).clamp(-FP8_MAX, FP8_MAX))


def per_token_quant(out, x, scale, upper=None):
    assert scale.shape == (x.shape[0], 1)
    quantise(out, x.float(), scale)


def group_quant(x, out, scale, group_size, eps, lowest, highest, *rest):
    assert (lowest, highest) == (-FP8_MAX, FP8_MAX) and not any(rest) and x.dim() == 2
    grouped = x.float().unflatten(1, (-1, group_size))
    quantise(out.unflatten(1, (-1, group_size)), grouped, scale, eps)


def norm_quant(out, x, weight, scale, eps, upper, residual):
    total = x.float() + residual.float()
    residual.copy_(total)
    normalised = torch.empty_like(total)
    rms_norm(normalised, total, weight, eps)
    quantise(out, normalised, scale)


def rotate(heads, cos, sin):
    first, second = heads.float().chunk(2, dim=-1)
    heads.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))


def rotary_embedding(positions, query, key, head_size, table, is_neox, offset=0, inverse=False):
    assert positions.dtype is torch.int64 and is_neox and query.shape[-1] == head_size
    cos, sin = table[positions].float().unsqueeze(1).chunk(2, dim=-1)
    rotate(query, cos, sin)
    rotate(key, cos, sin)


def fused_qk_norm_rope(qkv, q, k, v, head_dim, eps, q_weight, k_weight, table, is_neox, positions, warp=-1):
    assert positions.dtype is torch.int64 and table.dtype is qkv.dtype
    heads = qkv.view(qkv.shape[0], q + k + v, head_dim)
    for part, weight in ((heads[:, :q], q_weight), (heads[:, q : q + k], k_weight)):
        rms_norm(part, part.clone(), weight, eps)
        rotate(part, *table[positions].float().unsqueeze(1).chunk(2, dim=-1))


def reshape_and_cache_flash(key, value, key_cache, value_cache, slots, dtype, k_scale, v_scale):
    assert dtype == "auto" and slots.dtype is torch.int64
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slots[slots >= 0]] = tokens[slots >= 0]


def topk_softmax(weights, ids, logits, renormalize):
    assert not renormalize
    found = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    weights.copy_(found.values[:, : weights.shape[1]])
    ids.copy_(found.indices[:, : ids.shape[1]])


def align(topk_ids, num_experts, block_size, places, experts, padded, fill, first=0):
    """first: what a pair's expert is counted up by. fill: of the blocks that no pair uses; None leaves them."""
    assert places.dim() == 1 and places.numel() == experts.numel() * block_size
    places.fill_(topk_ids.numel())
    if fill is not None:
        experts.fill_(fill)
    at, pairs = 0, topk_ids.flatten() + first
    for expert in range(num_experts):
        mine = (pairs == expert).nonzero().flatten()
        places[at : at + len(mine)] = mine.int()
        blocks = -(-len(mine) // block_size)
        experts[at // block_size : at // block_size + blocks] = expert - first
        at += blocks * block_size
    padded.fill_(at)


def moe_data(topk_ids, offsets, sizes1, sizes2, rows, place_of_pair, num_experts):
    experts = topk_ids.flatten().long()
    order = experts.argsort(stable=True)
    offsets.copy_(torch.nn.functional.pad(torch.bincount(experts, minlength=num_experts).cumsum(0), (1, 0)))
    rows.copy_(order // topk_ids.shape[1])
    place_of_pair.copy_(order.argsort())


def causal_conv1d_fwd(x, weight, bias, states, starts, indices, has_state, silu, pad):
    assert x.stride(-1) == 1 and silu and has_state.all() and states.shape == (*x.shape[:2], weight.shape[1] - 1)
    history = torch.cat([states, x], dim=-1).float()
    total = sum(weight[:, tap, None].float() * history[..., tap : tap + x.shape[-1]] for tap in range(weight.shape[1]))
    states.copy_(history[..., history.shape[-1] - states.shape[-1] :])
    x.copy_(torch.nn.functional.silu(total + bias[:, None].float()))


def moe_sum_reduce(x, out, factor):
    out.copy_(x.float().sum(1) * factor)


VLLM = {
    "_C": {
        "rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()": rms_norm,
        "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()": fused_add_rms_norm,
        "silu_and_mul(Tensor! result, Tensor input) -> ()": silu_and_mul,
        "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()": per_token_quant,
        "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, "
        "float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) "
        "-> ()": group_quant,
        "rms_norm_dynamic_per_token_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, "
        "Tensor? scale_ub, Tensor!? residual) -> ()": norm_quant,
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()": rotary_embedding,
        "fused_qk_norm_rope(Tensor! qkv, int num_heads_q, int num_heads_k, int num_heads_v, int head_dim, float eps, "
        "Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache, bool is_neox, Tensor position_ids, "
        "int forced_token_heads_per_warp=-1) -> ()": fused_qk_norm_rope,
        "get_cutlass_moe_mm_data(Tensor topk_ids, Tensor! expert_offsets, Tensor! problem_sizes1, "
        "Tensor! problem_sizes2, Tensor! input_permutation, Tensor! output_permutation, int num_experts, int n, int k, "
        "Tensor? blockscale_offsets, bool is_gated) -> ()": lambda ids, offsets, one, two, rows, places, experts, *rest: (
            moe_data(ids, offsets, one, two, rows, places, experts)
        ),
    },
    "_C_cache_ops": {
        "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
        "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()": reshape_and_cache_flash,
    },
    "_moe_C": {
        "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, "
        "bool renormalize, Tensor? bias) -> ()": lambda weights, ids, third, logits, renormalize, bias: topk_softmax(
            weights, ids, logits, renormalize
        ),
        "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, "
        "Tensor! experts_ids, Tensor! num_tokens_post_pad, Tensor? maybe_expert_map) -> ()": lambda ids, experts, block, places, blocks, padded, mapping: (
            align(ids, experts, block, places, blocks, padded, fill=-1)
        ),
        "moe_sum(Tensor input, Tensor! output) -> ()": lambda x, out: moe_sum_reduce(x, out, 1.0),
    },
}
VLLM_033 = VLLM | {  # what 0.33.0 has changed of these
    "_moe_C": {
        "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, "
        "bool renormalize, Tensor? bias, Tensor? is_padding) -> ()": lambda weights, ids, third, logits, renormalize, bias, padding: (
            topk_softmax(weights, ids, logits, renormalize)
        ),
        "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, "
        "Tensor! experts_ids, Tensor! num_tokens_post_pad, Tensor? maybe_expert_map, Tensor!? scatter_idx=None) -> ()": lambda ids, experts, block, places, blocks, padded, mapping, scatter=None: (
            align(ids, experts, block, places, blocks, padded, fill=-1)
        ),
        "moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None, Tensor? expert_map=None) -> ()": lambda x, out, ids=None, mapping=None: (
            moe_sum_reduce(x, out, 1.0)
        ),
    },
}
SGL = {
    "sgl_kernel": {
        "rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()": lambda out, x, weight, eps, pdl: (
            rms_norm(out, x, weight, eps)
        ),
        "fused_add_rmsnorm(Tensor! input, Tensor! residual, Tensor weight, float eps, bool enable_pdl) -> ()": lambda x, residual, weight, eps, pdl: (
            fused_add_rms_norm(x, residual, weight, eps)
        ),
        "silu_and_mul(Tensor! out, Tensor input) -> ()": silu_and_mul,
        "sgl_per_token_quant_fp8(Tensor input, Tensor! output_q, Tensor! output_s) -> ()": lambda x, out, scale: (
            per_token_quant(out, x, scale)
        ),
        "sgl_per_token_group_quant_8bit_v2(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, "
        "float fp8_min, float fp8_max, bool scale_ue8m0, bool fuse_silu_and_mul, Tensor? masked_m) -> ()": group_quant,
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox) -> ()": rotary_embedding,
        "causal_conv1d_fwd(Tensor! x, Tensor! weight, Tensor? bias_, Tensor!? conv_states, Tensor? query_start_loc, "
        "Tensor? cache_indices, Tensor? has_initial_state, bool silu_activation, int pad_slot_id) -> ()": causal_conv1d_fwd,
        "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, bool renormalize, "
        "float moe_softcapping, Tensor? correction_bias) -> ()": lambda weights, ids, logits, renormalize, cap, bias: (
            topk_softmax(weights, ids, logits, renormalize)
        ),
        "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, "
        "Tensor! experts_ids, Tensor! num_tokens_post_pad, Tensor! cumsum_buffer, bool pad_sorted_token_ids) -> ()": lambda ids, experts, block, places, blocks, padded, buffer, pad: (
            align(ids, experts, block, places, blocks, padded, fill=None, first=1)
        ),
        "prepare_moe_input(Tensor topk_ids, Tensor expert_offsets, Tensor? blockscale_offsets, Tensor problem_sizes1, "
        "Tensor problem_sizes2, Tensor input_permutation, Tensor output_permutation, int num_experts, int n, int k) -> ()": lambda ids, offsets, scales, one, two, rows, places, experts, n, k: (
            moe_data(ids, offsets, one, two, rows, places, experts)
        ),
        "moe_sum_reduce(Tensor input, Tensor output, float routed_scaling_factor) -> ()": moe_sum_reduce,
    }
}


def register(namespaces):
    """Defines the ops; they last as long as what this returns."""
    libraries = []
    for namespace, ops in namespaces.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        for schema, function in ops.items():
            library.define(schema)
            library.impl(schema.partition("(")[0], function, "CPU")
        libraries.append(library)
    return libraries
