"""The host's side of the experts' kernels (experts_*.cuh): a C call, its struct, the buffers between the kernels."""

import ctypes
import importlib

import torch

from . import workspaces

MOST_EXPERTS = 256   # as in experts_schedule.cuh; experts_triton.py takes more, and widths that 8 does not divide
PIECE_FLOATS = 256   # of a stream-K piece, for each row of a tile


class Call(ctypes.Structure):
    """Call of experts_launch.cuh: the same fields in the same order."""

    _fields_ = [*((name, ctypes.c_void_p) for name in (
        "hidden_states", "hidden_states_scale", "gate_up_weight", "gate_up_weight_scale", "down_weight",
        "down_weight_scale", "topk_ids", "topk_weights", "output", "starts", "sorted", "row_of", "results", "act",
        "act_scale", "partial", "arrived")), *((name, ctypes.c_int) for name in (
            "tokens", "hidden", "intermediate", "experts", "top_k", "variant", "slab", "stores", "ctas"))]


class Experts:
    """library: CudaLibrary whose C function takes a Call. most_rows: of the largest tile. dtype: of the values between
    the GEMMs."""

    def __init__(self, library, most_rows, dtype):
        self.library, self.most_rows, self.dtype = library, most_rows, dtype
        self.ctas = {}
        self.workspace = workspaces.Workspace(torch.int32, torch.int32, torch.int32, torch.bfloat16, dtype,
                                              torch.float32, torch.float32)

    def _workspace(self, pairs, hidden, intermediate, stores, ctas, device):
        """The buffers of Call: `arrived`, then those from `starts` to `partial`."""
        scales = -(-intermediate // 128) if self.dtype.itemsize == 1 else 0
        return self.workspace(device, ctas, MOST_EXPERTS + 1, 2 * pairs, pairs, pairs * stores * hidden,
                              pairs * intermediate, pairs * scales, ctas * self.most_rows * PIECE_FLOATS)

    def __call__(self, config, hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
                 down_weight_scale, topk_ids, topk_weights, output):
        """Shapes as in the definitions, all contiguous and at addresses that 16 divides; scales None in bf16. config:
        variant, one of kernel.cu's; slab, how many blocks of 256 columns of the output are computed at a time (0: all);
        stores, whether the second GEMM stores a row for each pair, to be summed by a last kernel, or adds to the
        output."""
        tokens, hidden = hidden_states.shape
        experts, _, intermediate = down_weight.shape
        top_k = topk_ids.shape[1]
        if hidden % 8 or intermediate % 8 or experts > MOST_EXPERTS or 0 in (tokens, top_k, experts, intermediate):
            with torch.cuda.device_of(output):
                importlib.import_module(f"{__package__}.experts_triton").run_any(
                    hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
                    down_weight_scale, topk_ids, topk_weights, output)
            return
        device = hidden_states.device
        ctas = self.ctas.get(device)
        if ctas is None:
            ctas = torch.cuda.get_device_properties(device).multi_processor_count // 2 * 2  # in clusters of two
            self.ctas[device] = ctas
        stores = int(config["stores"])
        space = self._workspace(tokens * top_k, hidden, intermediate, stores, ctas, device)
        tensors = (hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
                   down_weight_scale, topk_ids, topk_weights, output)
        call = Call(*[t if t is None else t.data_ptr() for t in tensors], *space.addresses[1:], space.addresses[0],
                    tokens, hidden, intermediate, experts, top_k, config["variant"], config["slab"], stores, ctas)
        self.library(device, call)
