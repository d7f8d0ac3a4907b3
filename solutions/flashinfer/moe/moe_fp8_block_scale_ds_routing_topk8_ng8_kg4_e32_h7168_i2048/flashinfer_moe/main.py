"""FlashInfer's fused mixture of experts: TensorRT-LLM's generated kernels from sm_100 on, its CUTLASS path on sm_90.

sm_100  trtllm_fp8_block_scale_moe takes this operator's inputs as they are: routing, both GEMMs, SwiGLU and the
        weighted sum are inside. Its result is a tensor of its own, copied to `output`.
sm_90   stages:
          fused_topk_deepseek      sigmoid, groups, top 8, renormalised and scaled weights;
          dequantize_kernel        (Triton, below) fp8 activations and scales to bf16: the library takes bf16 and
                                   quantises to 1x128 blocks itself;
          cutlass_fused_moe        with use_deepseek_fp8_block_scale: expert maps, quantisation, DeepGEMM-style grouped
                                   GEMMs (compiled at run time), SwiGLU (the gate is the second half), weighted sum.

The library's expert-parallel ranks start at multiples of num_local_experts, this operator's at any offset. So ids are
shifted by the offset and the call is made as rank 0: ids outside [0, num_local_experts) are other ranks' experts.

Library: github.com/flashinfer-ai/flashinfer, flashinfer/fused_moe/{core,fused_routing_dsv3}.py and
csrc/fused_moe/cutlass_backend. Its sm_90 module is 182 source files, more than half an hour to compile on 16 cores,
which is why the prebuilt kernels (package flashinfer-jit-cache) are required.

local_expert_offset and routed_scaling_factor are Python numbers. Buffers are kept by shape, nothing else is.
"""

import functools

import torch
import triton
import triton.language as tl

NUM_GROUPS = 8
TOP_GROUPS = 4
TOP_K = 8
BLOCK = 128


@triton.jit
def dequantize_kernel(values_ptr, scale_ptr, out_ptr, num_tokens, COLUMNS: tl.constexpr, TILE: tl.constexpr,
                      BLOCK: tl.constexpr):
    """Programs (token, tile of columns): values fp8 [tokens, COLUMNS] times scale float32 [COLUMNS / BLOCK, tokens]
    -> bf16 [tokens, COLUMNS]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < COLUMNS
    values = tl.load(values_ptr + token * COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + (column // BLOCK).to(tl.int64) * num_tokens + token, mask=inside, other=0.0)
    tl.store(out_ptr + token * COLUMNS + column, (values * scale).to(out_ptr.dtype.element_ty), mask=inside)


@functools.lru_cache(maxsize=4)
def buffers(seq_len, hidden_size, device):
    """(expert ids, weights, dequantised activations) for one shape."""
    try:
        import flashinfer_jit_cache  # noqa: F401
    except ImportError:
        raise ImportError("flashinfer_moe needs FlashInfer's prebuilt kernels, else it compiles for half an hour: "
                          "pip install flashinfer-jit-cache") from None
    return (
        torch.empty(seq_len, TOP_K, dtype=torch.int32, device=device),
        torch.empty(seq_len, TOP_K, dtype=torch.float32, device=device),
        torch.empty(seq_len, hidden_size, dtype=torch.bfloat16, device=device),
    )


def dequantize(hidden_states, hidden_states_scale, out):
    """hidden_states fp8 [tokens, columns], hidden_states_scale float32 [columns / 128, tokens] -> out bf16."""
    num_tokens, columns = hidden_states.shape
    tile = min(1024, triton.next_power_of_2(columns))
    dequantize_kernel[(num_tokens, triton.cdiv(columns, tile))](
        hidden_states, hidden_states_scale, out, num_tokens, COLUMNS=columns, TILE=tile, BLOCK=BLOCK)


def run_sm90(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
             gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    from flashinfer import fused_moe

    seq_len, hidden_size = hidden_states.shape
    ids, weights, activations = buffers(seq_len, hidden_size, hidden_states.device)
    # Weights have the dtype of the logits; the bias may have another.
    fused_moe.fused_topk_deepseek(
        routing_logits, routing_bias, NUM_GROUPS, TOP_GROUPS, TOP_K, float(routed_scaling_factor), weights, ids)
    ids.sub_(int(local_expert_offset))
    dequantize(hidden_states, hidden_states_scale, activations)
    fused_moe.cutlass_fused_moe(
        activations, ids, weights, gemm1_weights, gemm2_weights, torch.bfloat16,
        quant_scales=[gemm1_weights_scale, gemm2_weights_scale], output=output, use_deepseek_fp8_block_scale=True,
        ep_size=routing_logits.shape[1] // gemm1_weights.shape[0], ep_rank=0)


def run_sm100(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
              gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    from flashinfer import fused_moe

    num_local_experts, _, intermediate_size = gemm2_weights.shape
    result = fused_moe.trtllm_fp8_block_scale_moe(
        routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, routing_logits.shape[1], TOP_K, NUM_GROUPS, TOP_GROUPS, intermediate_size,
        int(local_expert_offset), num_local_experts, float(routed_scaling_factor),
        routing_method_type=int(fused_moe.RoutingMethodType.DeepSeekV3), use_shuffled_weight=False)
    output.copy_(result)


@functools.lru_cache(maxsize=1)
def has_sm100(device):
    return torch.cuda.get_device_capability(device) >= (10, 0)


@torch.no_grad()
def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    """See the definition for the inputs. output bf16 [seq_len, hidden_size] is written."""
    if hidden_states.shape[0] == 0:
        return
    run_on = run_sm100 if has_sm100(hidden_states.device) else run_sm90
    run_on(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
           gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output)
