"""fla-core's layer_norm_gated kernels as an RMS norm, written into the given output."""

import torch


@torch.no_grad()
def run(hidden_states, gate, weight, eps, output):
    """hidden_states, gate bf16 [num_rows, hidden_size], weight bf16 [hidden_size] -> output, as hidden_states."""
    import fla.modules.norm.fused_norm_gate as fused_norm_gate
    import triton

    rows, columns = hidden_states.shape
    arguments = dict(x=hidden_states, g=gate, y=output, w=weight, b=None, residual=None, residual_out=None, mean=None,
                     rstd=torch.empty(rows, dtype=torch.float32, device=hidden_states.device), eps=eps, D=columns,
                     BD=triton.next_power_of_2(columns), ACTIVATION="swish", IS_RMS_NORM=True)
    # As fused_norm_gate.layer_norm_gated_fwd chooses and launches; that function allocates its result.
    if columns <= 512:
        blocks = triton.cdiv(rows, 2048 * 32)
        fused_norm_gate.layer_norm_gated_fwd_kernel[lambda meta: (triton.cdiv(rows, meta["BT"]),)](
            T=rows, NB=blocks, **arguments)
    else:
        fused_norm_gate.layer_norm_gated_fwd_kernel_row[(rows,)](**arguments)
