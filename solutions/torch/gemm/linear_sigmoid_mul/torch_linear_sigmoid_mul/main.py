"""torch.addmm (cuBLAS, with the bias in its epilogue), then sigmoid and product in one Triton kernel."""

import torch
import triton
import triton.language as tl

ELEMENTS = 2048  # of a program


@triton.jit
def sigmoid_mul_kernel(gate_ptr, multiplier_ptr, output_ptr, count, ELEMENTS: tl.constexpr):
    """gate, multiplier, output bf16 [count]: output = sigmoid(gate) * multiplier."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < count
    gate = tl.load(gate_ptr + at, mask=inside).to(tl.float32)
    multiplier = tl.load(multiplier_ptr + at, mask=inside).to(tl.float32)
    tl.store(output_ptr + at, (tl.sigmoid(gate) * multiplier).to(output_ptr.dtype.element_ty), mask=inside)


@torch.no_grad()
def run(hidden_states, weight, bias, multiplier, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [out_features, hidden_size] -> output, as multiplier:
    bf16 [num_tokens, out_features]. The gate lies in output on the way."""
    count = output.numel()
    if count == 0:
        return
    torch.addmm(bias, hidden_states, weight.t(), out=output)
    programs = triton.cdiv(count, ELEMENTS)
    sigmoid_mul_kernel[(programs,)](output, multiplier, output, count, ELEMENTS=ELEMENTS, num_warps=8)
