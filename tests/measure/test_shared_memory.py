"""The tensors of a set in an arena, as a solution gets them."""

import torch

from kernelderby.measure.wire.shared import shared_set

CPU = torch.device("cpu")


def test_a_compiled_graph_writes_into_outputs_of_several_types():
    """As into a user's tensors: torch refuses where the storage of one type is also that of another."""
    made = shared_set(
        {"x": ((4, 8), torch.bfloat16), "positions": ((4,), torch.int32), "eps": 0.5},
        {"quantized": ((4, 8), torch.float8_e4m3fn), "scales": ((4, 1), torch.float32), "none": ((0, 3), torch.int64)},
        CPU,
    )
    x, positions, eps = made.inputs.values()
    quantized, scales, none = made.outputs.values()
    x.copy_(torch.arange(32).view(4, 8))
    positions.fill_(2)
    held = (x, positions, quantized, scales)
    assert [each.untyped_storage().nbytes() for each in held] == [each.nbytes for each in held]
    assert none.shape == (0, 3)

    def written(x, positions, eps, quantized, scales):
        quantized.copy_((x / 4).to(quantized.dtype))
        scales.copy_(x.float().amax(1, keepdim=True) + eps + positions[:, None])

    torch.compile(written, fullgraph=True, backend="aot_eager")(x, positions, eps, quantized, scales)
    assert torch.equal(quantized.float(), (x / 4).to(torch.float8_e4m3fn).float())
    assert scales.flatten().tolist() == [9.5, 17.5, 25.5, 33.5]
    made.release()
