"""vLLM's apply_top_k_top_p_triton with top-k alone, in place."""

import functools

import torch


@functools.cache
def every_row(top_k, rows, device):
    """A sampler keeps k of every request beside it; here all have the same."""
    return torch.full((rows,), top_k, dtype=torch.int32, device=device)


@torch.no_grad()
def run(logits, top_k, filter_value, output):
    """logits float32 [num_tokens, vocab_size] -> output: filter_value below a row's top_k-th largest."""
    from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

    if output.data_ptr() != logits.data_ptr():
        output.copy_(logits)
    if not output.numel():
        return
    k = every_row(min(int(top_k), output.shape[1]), len(output), output.device)
    filtered = apply_top_k_top_p_triton(output, k, None, mask_value=float(filter_value))
    if filtered.data_ptr() != output.data_ptr():
        output.copy_(filtered)
