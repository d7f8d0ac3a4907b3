"""The host's side of the experts' kernels (experts_*.cuh): a C call, its struct, the buffers between the kernels."""

import ctypes

import torch

HEADERS = ["experts_common.cuh", "experts_gemm.cuh", "experts_hopper.cuh", "experts_later.cuh", "experts_launch.cuh",
           "experts_narrow.cuh", "experts_route.cuh", "experts_schedule.cuh", "experts_wgmma.cuh", "experts_wide.cuh"]
MOST_EXPERTS = 256   # as in experts_schedule.cuh
PIECE_FLOATS = 256   # of a stream-K piece, for each row of a tile
SPARE = 8            # workspaces that a capture may begin without a memset in its graph


class Call(ctypes.Structure):
    """Call of experts_launch.cuh: the same fields in the same order."""

    _fields_ = [*((name, ctypes.c_void_p) for name in (
        "hidden_states", "hidden_states_scale", "gate_up_weight", "gate_up_weight_scale", "down_weight",
        "down_weight_scale", "topk_ids", "topk_weights", "output", "starts", "sorted", "row_of", "results", "act",
        "act_scale", "partial", "arrived")), *((name, ctypes.c_int) for name in (
            "tokens", "hidden", "intermediate", "experts", "top_k", "variant", "slab", "stores", "ctas"))]


class _Workspace:
    """Buffers for up to so many pairs. Only `arrived` carries anything from call to call: zeros."""

    def __init__(self, pairs, hidden, intermediate, most_rows, stores, ctas, arrived, dtype, device):
        def empty(*shape, dtype):
            return torch.empty(shape, dtype=dtype, device=device)

        scales = -(-intermediate // 128) if dtype.itemsize == 1 else 0
        self.size = pairs, pairs * intermediate, pairs * hidden * stores
        self.tensors = (
            empty(MOST_EXPERTS + 1, dtype=torch.int32), empty(pairs, 2, dtype=torch.int32),
            empty(pairs, dtype=torch.int32), empty(pairs * stores, hidden, dtype=torch.bfloat16),
            empty(pairs, intermediate, dtype=dtype), empty(pairs, scales, dtype=torch.float32),
            empty(ctas, most_rows, PIECE_FLOATS, dtype=torch.float32), arrived)
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]

    @property
    def arrived(self):
        return self.tensors[-1]

    def holds(self, pairs, hidden, intermediate, stores):
        return all(has >= needs for has, needs in zip(
            self.size, (pairs, pairs * intermediate, pairs * hidden * stores), strict=True))


class Experts:
    """library: CudaLibrary whose C function takes a Call. most_rows: the largest tile's. dtype: of what stands between
    the GEMMs."""

    def __init__(self, library, most_rows, dtype):
        self.library, self.most_rows, self.dtype = library, most_rows, dtype
        self.workspaces, self.ctas, self.spare = {}, {}, {}

    def _arrived(self, device, ctas):
        """Zeros for one workspace, of a few made at a time: a capture would record their memset and run it always."""
        spare = self.spare.setdefault(device, [])
        if not spare:
            spare.extend(torch.zeros(SPARE, ctas, dtype=torch.int32, device=device).unbind())
        return spare.pop()

    def _workspace(self, pairs, hidden, intermediate, stores, ctas, device):
        """One a stream, since two streams could use it at the same time; grown to the largest seen so far."""
        key = device, torch.cuda.current_stream(device).cuda_stream
        space = self.workspaces.get(key)
        if space is None or not space.holds(pairs, hidden, intermediate, stores):
            arrived = space.arrived if space else self._arrived(device, ctas)
            self.workspaces.pop(key, None)
            space = self.workspaces[key] = _Workspace(pairs, hidden, intermediate, self.most_rows, stores, ctas,
                                                      arrived, self.dtype, device)
        return space

    def __call__(self, config, hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
                 down_weight_scale, topk_ids, topk_weights, output):
        """Shapes as in the definitions, all contiguous and at addresses that 16 divides; scales None in bf16. config:
        variant, of kernel.cu's; slab, blocks of 256 columns of the output that are worked on at a time (0: all);
        stores, whether the second GEMM stores a row for each pair, which a last kernel sums, or adds to the output."""
        tokens, hidden = hidden_states.shape
        experts, _, intermediate = down_weight.shape
        top_k = topk_ids.shape[1]
        if hidden % 8 or intermediate % 8 or experts > MOST_EXPERTS:
            raise ValueError(f"{self.library.name}: hidden_size {hidden} and intermediate_size {intermediate} must be "
                             f"multiples of 8, num_experts {experts} at most {MOST_EXPERTS}")
        if tokens == 0:
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
        call = Call(*[t if t is None else t.data_ptr() for t in tensors], *space.addresses, tokens, hidden,
                    intermediate, experts, top_k, config["variant"], config["slab"], stores, ctas)
        self.library(device, call)
