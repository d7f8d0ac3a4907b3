"""Plain torch: SiLU of the gate by torch.nn.functional, times up, in float32."""

import torch


@torch.no_grad()
def run(gate_up, output):
    """gate_up bf16 [num_tokens, 2, intermediate_size] -> output bf16 [num_tokens, intermediate_size]."""
    gate, up = gate_up.unbind(1)
    output.copy_(torch.nn.functional.silu(gate.float()).mul_(up))
