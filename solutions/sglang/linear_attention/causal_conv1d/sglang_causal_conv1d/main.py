"""SGLang's JIT causal_conv1d_fwd, which wants the tokens of a channel side by side."""

import functools

import torch


@functools.cache
def has_state(device):
    """Says that the one sequence has an initial state, bool [1]."""
    return torch.ones(1, dtype=torch.bool, device=device)


@torch.no_grad()
def run(x, weight, bias, initial_state, output):
    """x bf16 [num_tokens, dim], weight bf16 [dim, 4], bias bf16 [dim], initial_state bf16 [dim, 3] -> output, as x."""
    from sglang.kernels.ops.mamba.causal_conv1d import causal_conv1d_fwd

    num_tokens, dim = x.shape
    if not x.numel():
        return
    # Convolved in place. Not contiguous(): one token's row is its own transpose, and the input would be written.
    by_channel = torch.empty(1, dim, num_tokens, dtype=x.dtype, device=x.device)
    by_channel[0].copy_(x.t())
    state = initial_state[None].clone()  # it leaves the last tokens in it
    causal_conv1d_fwd(by_channel, weight, bias, state, None, None, has_state(x.device), True, -1)
    output.copy_(by_channel[0].t())
