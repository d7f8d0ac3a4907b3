"""derby_moe_sm90: the FP8 block-scale mixture of experts for Hopper, in three CUDA C++ kernels and one host call.

1. derby_route   a warp a token; each pair (token, expert of this rank) takes a place in its expert's bucket. Of up to
                 16 tokens every CTA of the next kernel does that for itself, and there is no kernel before it.
2. derby_gemm1   gathers its rows through the buckets, multiplies with both halves of the first weight, ends in SwiGLU
                 and 1x128 FP8 quantisation in registers. It also clears the output.
3. derby_gemm2   the second weight times the routing weight, added to the output rows in bf16 as they are done.

experts_gemm.cuh says how the GEMMs work, experts_schedule.cuh how work is shared out; gemm.cuh has what is this
operator's own. Programmatic dependent launch lets a kernel set up while the one before it ends; the second GEMM's first
weights are on their way by then.

Not deterministic to the last bit: a token's rows (up to eight, two on average where it has any) and the stretches of a
split K loop are added to its output row in bf16 in the order in which they come, each addition rounding by at most half
a bf16 step of the running sum. Where an expert's pairs fill several tiles, which pair falls into which tile varies too.

Needs nvcc (on the PATH, in $CUDA_HOME or /usr/local/cuda) at the first call ever: the kernels are compiled for sm_90a
into a shared library in the user's cache folder, named by a hash of their sources. Kept between calls: that library,
and a workspace whose counters every call leaves at zero.
"""

import ctypes
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
cuda_library = importlib.import_module(f"{__name__}.cuda_library")
workspaces = importlib.import_module(f"{__name__}.workspaces")

NUM_LOCAL, INTERMEDIATE, TOP_K = 32, 2048, 8
MOST_ROUTED = 16  # tokens, as in route.cuh
PIECE_FLOATS = 128 * 256  # of the largest tile


class Call(ctypes.Structure):
    """Call of kernel.cu: the same fields in the same order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "x", "x_scale", "w_scale", "logits", "bias", "out", "count", "ticket", "arrived", "bucket", "act",
            "act_scale", "partial")),
        ("scaling_factor", ctypes.c_float), ("first_local", ctypes.c_int), ("tokens", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("gemm1_weights", "gemm2_weights", "gemm2_weights_scale")),
        ("variant", ctypes.c_int), ("ctas", ctypes.c_int)]


library = cuda_library.CudaLibrary(__file__, "derby_moe_sm90", "kernel.cu", [ctypes.POINTER(Call)])


def choose_variant(seq_len):
    """Which pair of GEMM kernels: 0 for 16 tokens, which route for themselves, 1 up to 64 pairs, 2 the same with
    clusters of two CTAs that share what they load of the weights, 3 up to 128 pairs and clusters. An expert sees
    seq_len / 32 pairs on average and several times that when it is popular. Measured on an H200: see docs/lab.
    """
    return 0 if seq_len <= MOST_ROUTED else 1 if seq_len <= 1024 else 2 if seq_len <= 2048 else 3


workspace = workspaces.Workspace(torch.int32, torch.uint8, torch.float32, torch.float32)


def space_for(seq_len, ctas, device):
    """The counters of Call, zeros between calls: a pair count for each expert, the ticket, and one for each CTA. Then
    the buffers from `bucket` to `partial`."""
    pairs = seq_len * TOP_K
    return workspace(device, NUM_LOCAL + 1 + ctas, NUM_LOCAL * seq_len * 2, pairs * INTERMEDIATE,
                     pairs * INTERMEDIATE // 128, ctas * PIECE_FLOATS)


_ctas = {}


check = contract.Contract("derby_moe_sm90", aligned=16,
    routing_logits="float32 seq_len 256", routing_bias="bfloat16 256", hidden_states="float8_e4m3fn seq_len 7168",
    hidden_states_scale="float32 56 seq_len", gemm1_weights="float8_e4m3fn 32 4096 7168",
    gemm1_weights_scale="float32 32 32 56", gemm2_weights="float8_e4m3fn 32 7168 2048",
    gemm2_weights_scale="float32 32 56 16", output="bfloat16 seq_len 7168")


def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    """Shapes as in the definition, all contiguous and at addresses that 16 divides. local_expert_offset and
    routed_scaling_factor are numbers."""
    check(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
          gemm2_weights, gemm2_weights_scale, output)
    seq_len = hidden_states.shape[0]
    if seq_len == 0:
        return
    if hidden_states.device.type != "cuda":
        raise ValueError(f"derby_moe_sm90: the tensors are on {hidden_states.device}; it takes those of a CUDA device")
    device = hidden_states.device
    ctas = _ctas.get(device)
    if ctas is None:
        ctas = torch.cuda.get_device_properties(device).multi_processor_count // 2 * 2  # in clusters of two
        _ctas[device] = ctas
    space = space_for(seq_len, ctas, device)
    counters, *buffers = space.addresses
    ticket = counters + 4 * NUM_LOCAL
    library(device, Call(
        hidden_states.data_ptr(), hidden_states_scale.data_ptr(), gemm1_weights_scale.data_ptr(),
        routing_logits.data_ptr(), routing_bias.data_ptr(), output.data_ptr(), counters, ticket, ticket + 4, *buffers,
        float(routed_scaling_factor), int(local_expert_offset), seq_len, gemm1_weights.data_ptr(),
        gemm2_weights.data_ptr(), gemm2_weights_scale.data_ptr(), choose_variant(seq_len), ctas))
