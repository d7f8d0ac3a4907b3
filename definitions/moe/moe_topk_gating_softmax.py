"""Routing of a mixture of experts: the softmax of each token's logits, and its eight largest values."""

import torch

TOP_K = 8
NO_EXPERT = -1e30  # stands for a logit where an id names no expert, or one that the token has already

SMALL_AXES = {"num_tokens": 5, "num_experts": 128, "top_k": TOP_K}
# As many experts as are chosen; one more; a number that is no power of two; more tokens than a block has rows.
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_experts": 8}, {"num_experts": 9},
                  {"num_experts": 130}, {"num_tokens": 300, "num_experts": 256}]
# Experts of models, and anything.
AXES_SPACE = {"num_tokens": (1, 16384), "num_experts": [8, 16, 32, 60, 64, 128, 160, 256, 384, 512, (8, 512)]}

INPUT_DRAWS = [{"gating_logits": "plus 100"}]  # exponentials that leave float32's range; the weights stay what they are


@torch.no_grad()
def run(gating_logits):
    # By logit, not by weight: two logits may have the same weight in float32. Stable: the lower index first.
    ids = gating_logits.sort(dim=-1, descending=True, stable=True).indices[:, :TOP_K]
    weights = torch.softmax(gating_logits.double(), dim=-1).gather(1, ids)
    return weights.float(), ids.to(torch.int32)


def canonical_outputs(outputs, inputs):
    """topk_ids as the logits that they name, so that experts of equal logits may change places.

    Logits that are nearly equal may do so too (the tolerance says how nearly): a float32 softmax orders them by the
    rounding of their weights. An id that names no expert, or one of the token's earlier ids, becomes NO_EXPERT.
    """
    logits, ids = inputs["gating_logits"], outputs["topk_ids"].long()
    named = logits.gather(1, ids.clamp(0, logits.shape[1] - 1))
    valid = (ids >= 0) & (ids < logits.shape[1])
    same = ids.unsqueeze(2) == ids.unsqueeze(1)
    repeated = same.tril(-1).any(-1)
    return {**outputs, "topk_ids": named.masked_fill(~valid | repeated, NO_EXPERT)}


def count_cost(axes, inputs):
    """A softmax of one row: a difference, an exponential and a quotient for each logit, and the sum. The survey leaves
    the maximum and the choice of the largest out: comparisons are no arithmetic."""
    tokens, experts = axes["num_tokens"], axes["num_experts"]
    return {"flops": {"float32": tokens * (4 * experts - 1)}, "bytes_read": 4 * tokens * experts,
            "bytes_written": (4 + 4) * tokens * axes["top_k"]}
