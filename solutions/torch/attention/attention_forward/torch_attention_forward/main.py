"""torch's cuDNN attention on views of packed sequences."""

import torch


@torch.no_grad()
def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    """query, key, value bf16 [num_tokens, num_heads, head_dim] -> output, as query."""
    if not query.numel():
        return
    if len(cu_seqlens_q) == 2:  # one sequence: [1, num_heads, num_tokens, head_dim]
        views = [tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)]
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(*views, None, False, scale=sm_scale)[0]
        output.copy_(found.squeeze(0).transpose(0, 1))
        return
    found = torch.ops.aten._cudnn_attention_forward(query, key, value, None, cu_seqlens_q, cu_seqlens_k, max_seqlen,
                                                    max_seqlen, True, scale=sm_scale)[0]
    output.copy_(found)
