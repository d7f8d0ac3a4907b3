"""Pieces of the gated delta rule that its tests share: heads, decay, gates, in float64."""

import torch

CONV, OUTPUT, STATE, UPDATE = (
    "causal_conv1d",
    "chunk_delta_rule_output",
    "chunk_gated_delta_rule_state",
    "gated_delta_rule_update",
)


def by_head(x, heads):
    """[num_tokens, heads of x, size] -> float64 [heads, num_tokens, size], each head of x as often as it is shared."""
    return x.double().repeat_interleave(heads // x.shape[1], dim=1).transpose(0, 1)


def decay_matrix(g):
    """[heads, n] log decay up to each token -> exp(g_i - g_j) where j <= i, else 0."""
    return (g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp().tril()


def gates(inputs):
    """Log decay and beta of each token, float64 [heads, num_tokens]."""
    x = inputs["a"].double() + inputs["dt_bias"].double()
    softplus = torch.where(x > 20, x, torch.log1p(torch.exp(x)))
    return (-torch.exp(inputs["A_log"].double()) * softplus).t(), 1 / (1 + torch.exp(-inputs["b"].double().t()))


def normalized(inputs):
    q, k = (by_head(inputs[key], inputs["v"].shape[1]) for key in ("q", "k"))
    return [x / torch.sqrt((x**2).sum(-1, keepdim=True) + 1e-6) for x in (q, k)]
