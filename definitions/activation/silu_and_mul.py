"""SwiGLU activation (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202), in float32."""

import torch

SMALL_AXES = {"num_tokens": 5, "num_halves": 2, "intermediate_size": 99}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"intermediate_size": 8},
                  {"num_tokens": 70, "intermediate_size": 768}]
# Intermediate sizes of models and their parts of 2 to 8 GPUs; then multiples of 8, then anything.
WIDTHS = [192, 256, 384, 512, 704, 768, 1024, 1408, 1536, 1792, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 4864, 6144,
          6400, 7168, 8192, 9728, 12288, 14336, 16384, 18432, 21504, 25600, 28672, 53248]
AXES_SPACE = {"num_tokens": (1, 16384), "intermediate_size": [WIDTHS, WIDTHS, WIDTHS, (16, 32768, 8), (100, 32768)]}

INPUT_DRAWS = [{"gate_up": 100.0}]  # gates whose exponential leaves float32's range


@torch.no_grad()
def run(gate_up):
    gate, up = gate_up[:, 0].float(), gate_up[:, 1].float()
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def count_cost(axes, inputs):
    """Five for each output: negation, exponential, sum and quotient of the SiLU, and the product with up."""
    values = axes["num_tokens"] * axes["intermediate_size"]
    return {"flops": {"bfloat16": 5 * values}, "bytes_read": 2 * 2 * values, "bytes_written": 2 * values}
