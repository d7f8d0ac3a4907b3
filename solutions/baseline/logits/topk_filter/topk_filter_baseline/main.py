"""Plain torch: the top_k-th largest of each row by torch.topk, and everything below it replaced."""

import torch


@torch.no_grad()
def run(logits, top_k, filter_value, output):
    """logits float32 [num_tokens, vocab_size] -> output, as logits."""
    threshold = logits.topk(min(top_k, logits.shape[1]), dim=-1, sorted=False).values.amin(-1, keepdim=True)
    output.copy_(logits).masked_fill_(logits < threshold, filter_value)
