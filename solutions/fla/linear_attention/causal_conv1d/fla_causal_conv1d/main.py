"""fla-core's causal_conv1d kernel, written into the given output."""

import torch

CHUNK = 64  # tokens a program, the library's default


@torch.no_grad()
def run(x, weight, bias, initial_state, output):
    """x bf16 [num_tokens, dim], weight bf16 [dim, 4], bias bf16 [dim], initial_state bf16 [dim, 3] -> output, as x."""
    import fla.modules.causal_conv1d.ops as conv
    import triton

    num_tokens, dim = x.shape
    width = weight.shape[1]
    # The library keeps as many tokens as the kernel is wide; the oldest of them is masked out, and so never set.
    state = torch.empty(dim, width, dtype=x.dtype, device=x.device)
    state[:, 1:] = initial_state
    blocks = triton.cdiv(num_tokens, CHUNK)
    # As conv.causal_conv1d_fwd launches; that function allocates its result.
    conv.causal_conv1d_fwd_kernel[lambda meta: (triton.cdiv(dim, meta["BD"]), blocks, 1)](
        x=x, y=output, weight=weight, bias=bias, residual=None, cu_seqlens=None, initial_state=state,
        chunk_indices=None, B=1, T=num_tokens, stride_x_n=x.numel(), stride_x_t=dim, stride_x_d=1, D=dim, W=width,
        BT=CHUNK, BW=triton.next_power_of_2(width), ACTIVATION="swish")
