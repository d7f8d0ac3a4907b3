"""derby_moe_sm90: the FP8 block-scale mixture of experts for Hopper, in three CUDA C++ kernels and one host call.

1. derby_route   a warp a token; each pair (token, expert of this rank) takes a place in its expert's bucket. Of up to
                 16 tokens every CTA of the next kernel does that for itself, and there is no kernel before it.
2. derby_gemm1   gathers its rows through the buckets, multiplies with both halves of the first weight, ends in SwiGLU
                 and 1x128 FP8 quantisation in registers. It also clears the output.
3. derby_gemm2   the second weight times the routing weight, added to the output rows in bf16 as they are done.

experts_gemm.cuh says how the GEMMs work, experts_schedule.cuh how work is shared out, gemm.cuh what is this operator's
own. Programmatic dependent launch lets a kernel set up while the one before it ends; the second GEMM's first weights are
on their way by then.

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
library = cuda_library.CudaLibrary(__file__, "derby_moe", "kernel.cu", [])


class _Call(ctypes.Structure):
    """derby_moe_call of kernel.cu: the same fields in the same order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "routing_logits", "routing_bias", "hidden_states", "hidden_states_scale", "gemm1_weights",
            "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale", "output", "bucket", "act", "act_scale",
            "partial", "counters")),
        ("seq_len", ctypes.c_int), ("local_expert_offset", ctypes.c_int), ("routed_scaling_factor", ctypes.c_float),
        ("variant", ctypes.c_int), ("ctas", ctypes.c_int), ("device", ctypes.c_int), ("stream", ctypes.c_void_p)]


def open_library(path):
    """The compiled library with its functions' types; RuntimeError where its struct of a call is not ours."""
    library = ctypes.CDLL(str(path))
    library.derby_moe_run.argtypes = [ctypes.POINTER(_Call)]
    library.derby_moe_counters.argtypes = [ctypes.c_int]
    library.derby_moe_piece_bytes.argtypes = [ctypes.c_int]
    library.derby_moe_piece_bytes.restype = ctypes.c_longlong
    if library.derby_moe_call_bytes() != ctypes.sizeof(_Call):
        raise RuntimeError(f"derby_moe_sm90: derby_moe_call has {library.derby_moe_call_bytes()} bytes in {path}, "
                           f"{ctypes.sizeof(_Call)} in main.py")
    return library


_library = None


def _load():
    global _library
    if _library is None:
        _library = open_library(library.build("90a"))
    return _library


def choose_variant(seq_len):
    """Which pair of GEMM kernels: 0 for 16 tokens, which route for themselves, 1 up to 64 pairs, 2 the same with
    clusters of two CTAs that share what they load of the weights, 3 up to 128 pairs and clusters. An expert sees
    seq_len / 32 pairs on average and several times that when it is popular. Measured on an H200: see docs/lab.
    """
    return 0 if seq_len <= MOST_ROUTED else 1 if seq_len <= 1024 else 2 if seq_len <= 2048 else 3


workspace = workspaces.Workspace(torch.int32, torch.uint8, torch.float32, torch.uint8)


def space_for(library, seq_len, ctas, device):
    """The counters, zeros between calls, and then those of _Call from `bucket` to `partial`."""
    pairs = seq_len * TOP_K
    return workspace(device, library.derby_moe_counters(ctas), NUM_LOCAL * seq_len * 2, pairs * INTERMEDIATE,
                     pairs * INTERMEDIATE // 128, library.derby_moe_piece_bytes(ctas))


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
    library = _library or _load()
    device = hidden_states.device
    index = device.index or 0
    ctas = _ctas.get(index)
    if ctas is None:
        ctas = torch.cuda.get_device_properties(device).multi_processor_count // 2 * 2  # in clusters of two
        _ctas[index] = ctas
    stream = torch.cuda.current_stream(device).cuda_stream
    counters, *others = space_for(library, seq_len, ctas, device).addresses
    call = _Call(
        *[tensor.data_ptr() for tensor in (
            routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
            gemm2_weights, gemm2_weights_scale, output)],
        *others, counters, seq_len, int(local_expert_offset), float(routed_scaling_factor), choose_variant(seq_len),
        ctas, index, stream)
    with torch.cuda.device(device):
        error = library.derby_moe_run(call)
    if error:
        raise RuntimeError(f"derby_moe_sm90: launch failed: CUDA error {error}")
