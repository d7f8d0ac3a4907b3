"""Plain torch: RMS normalization and SiLU by torch.nn.functional, in float32."""

import torch


@torch.no_grad()
def run(hidden_states, gate, weight, eps, output):
    """hidden_states, gate bf16 [num_rows, hidden_size], weight bf16 [hidden_size] -> output, as hidden_states."""
    x = hidden_states.float()
    normalized = torch.nn.functional.rms_norm(x, x.shape[-1:], weight.float(), eps)
    output.copy_(normalized.mul_(torch.nn.functional.silu(gate.float())))
