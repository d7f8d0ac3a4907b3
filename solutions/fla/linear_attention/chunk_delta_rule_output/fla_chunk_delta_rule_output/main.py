"""fla-core's output kernel of the chunked delta rule, launched into the given output."""

import math

import torch

CHUNK = 64


@torch.no_grad()
def run(q, k, v, h, g, output):
    """q, k bf16 [num_tokens, num_q_heads, key_dim], v bf16 [num_tokens, num_v_heads, value_dim], h bf16 [num_chunks,
    num_v_heads, key_dim, value_dim], g float32 [num_tokens, num_v_heads] -> output, as v.
    """
    import fla.ops.common.chunk_o as outputs
    import triton

    tokens, heads, value_dim = v.shape
    if tokens == 0:
        return
    # As outputs.chunk_fwd_o launches; that function allocates its result. It wants powers of two.
    outputs.chunk_fwd_kernel_o[
        lambda meta: (triton.cdiv(value_dim, meta["BV"]) * triton.cdiv(tokens, CHUNK), heads)
    ](q=q, k=k, v=v, h=h, g=g * (1 / math.log(2)), g_gamma=None, o=output, cu_seqlens=None, chunk_indices=None,
      scale=q.shape[2] ** -0.5, T=tokens, H=q.shape[1], HV=heads, K=q.shape[2], V=value_dim, BT=CHUNK,
      STATE_V_FIRST=False)
