"""Plain torch: torch.nn.functional.conv1d in bfloat16, channels first as it wants them, and SiLU."""

import torch


@torch.no_grad()
def run(x, weight, bias, initial_state, output):
    """x bf16 [num_tokens, dim], weight bf16 [dim, 4], bias bf16 [dim], initial_state bf16 [dim, 3].

    Writes output, as x.
    """
    if len(x) == 0:
        return
    history = torch.cat([initial_state, x.t()], dim=1)
    convolved = torch.nn.functional.conv1d(history.unsqueeze(0), weight.unsqueeze(1), bias, groups=len(weight))
    output.copy_(torch.nn.functional.silu(convolved, inplace=True).squeeze(0).t())
