"""FlashInfer's top_k_mask_logits, and a second pass for the filter's value."""

import torch


@torch.no_grad()
def run(logits, top_k, filter_value, output):
    """logits float32 [num_tokens, vocab_size] -> output, as logits."""
    import flashinfer.sampling

    masked = flashinfer.sampling.top_k_mask_logits(logits, min(top_k, logits.shape[1]))
    # The op masks with -inf and allocates its result; the one pass that copies it also replaces them.
    torch.nan_to_num(masked, nan=float("nan"), posinf=float("inf"), neginf=filter_value, out=output)
