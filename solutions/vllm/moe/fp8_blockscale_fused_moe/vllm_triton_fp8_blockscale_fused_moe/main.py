"""vLLM's TritonExperts with 1x128 and 128x128 scales, on quantized activations."""

import math

import torch


def experts(hidden_states, gate_up_scale, down_weight, down_scale, top_k):
    """vLLM's layer over these weights, without tensor or expert parallelism. A model makes it once at its start."""
    import vllm.model_executor.layers.fused_moe.config as config
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    count, hidden, inner = down_weight.shape
    layer = config.FusedMoEConfig(
        num_experts=count, experts_per_token=top_k, hidden_dim=hidden, intermediate_size=inner,
        num_local_experts=count, num_logical_experts=count, activation=MoEActivation.SILU,
        device=hidden_states.device, routing_method=config.RoutingMethodType.Renormalize,
        moe_parallel_config=config.FusedMoEParallelConfig.make_no_parallel(), in_dtype=torch.bfloat16)
    scales = config.fp8_w8a8_moe_quant_config(w1_scale=gate_up_scale, w2_scale=down_scale, block_shape=[128, 128])
    return TritonExperts(layer, scales), MoEActivation.SILU


@torch.no_grad()
def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """hidden_states fp8 [tokens, hidden] with scales float32 [tokens, hidden / 128], weights fp8 [experts, 2 * inner,
    hidden] and [experts, hidden, inner] with 128x128 scales, topk_ids int32 and topk_weights float32 [tokens, top_k]
    -> output bf16 [tokens, hidden]."""
    if not hidden_states.numel():
        return
    top_k, (count, wide, hidden) = topk_ids.shape[1], gate_up_weight.shape
    layer, silu = experts(hidden_states, gate_up_weight_scale, down_weight, down_weight_scale, top_k)
    shapes = layer.workspace_shapes(len(hidden_states), wide, hidden, top_k, count, count, None, silu)
    rooms = [output.new_empty(math.prod(shape)) for shape in shapes[:2]]
    layer.apply(
        output, hidden_states, gate_up_weight, down_weight, topk_weights, topk_ids, silu, count, None,
        hidden_states_scale, None, *rooms, None, False)
