"""block_scaled_mm as servers call it, with a bfloat16 output: ((x * x_scale) @ (weight * weight_scale).T) rounded once.

Scales as in DeepSeek-V3's report (arXiv 2412.19437, section 3.3): of 1x128 values of x, of 128x128 values of weight.
"""

import torch

SMALL_AXES = {"m": 5, "n": 256, "k": 384, "num_n_blocks": 2, "num_k_blocks": 3}
SMALL_VARIANTS = [{}, {"m": 0}, {"m": 1}, {"m": 200, "n": 128, "num_n_blocks": 1, "k": 1024, "num_k_blocks": 8},
                  {"m": 300, "n": 384, "num_n_blocks": 3, "k": 128, "num_k_blocks": 1}]
AXES_SPACE = {"m": (1, 16384), "num_n_blocks": [[4, 12, 16, 18, 24, 32, 36, 48, 56, 64, 96, 112, 144, 192], (1, 288)],
              "n": "128 * num_n_blocks", "num_k_blocks": [[4, 8, 12, 16, 32, 40, 56, 64, 112, 128, 144], (1, 144)],
              "k": "128 * num_k_blocks"}
SMALL_SPACE = {"m": (1, 130), "num_n_blocks": (1, 3), "num_k_blocks": (1, 6)}
REFERENCE_ROWS = {"x": 0, "x_scale": 0}


def dequantize(values, scale, rows):
    """values fp8 [r, c], scale float32 [r / rows, c / 128] -> float32 [r, c]."""
    return values.float() * scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)


@torch.no_grad()
def run(x, x_scale, weight, weight_scale):
    """A thousand rows at a time: the whole of x in float32 would take gigabytes at the largest shape."""
    columns = dequantize(weight, weight_scale, 128).t()
    output = torch.empty(x.shape[0], weight.shape[0], dtype=torch.bfloat16, device=x.device)
    for codes, scale, out in zip(x.split(1024), x_scale.split(1024), output.split(1024), strict=True):
        out.copy_(dequantize(codes, scale, 1) @ columns)
    return output


def generate_inputs(axes_and_scalars, device):
    """The scales, log-normal with a standard deviation of 0.25: of x around 1, of the weight around 1.2 / sqrt(k), so
    that outputs have a standard deviation near 1 at every k. `seed` fixes every value, drawn on the CPU."""
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))

    def scale(around, *shape):
        return torch.randn(*shape, generator=generator).mul_(0.25).exp_().mul_(around).to(device)

    return {"x_scale": scale(1.0, size["m"], size["num_k_blocks"]),
            "weight_scale": scale(1.2 * size["k"] ** -0.5, size["num_n_blocks"], size["num_k_blocks"])}


def count_cost(axes, inputs):
    """As of block_scaled_mm, with 2 bytes an output: per block along k two products with scales, and a sum but for the
    first."""
    m, n, k, blocks = (axes[name] for name in ("m", "n", "k", "num_k_blocks"))
    return {"flops": {"float8_e4m3fn": m * n * (2 * k + 3 * blocks - 1)},
            "bytes_read": m * (k + 4 * blocks) + n * k + 4 * axes["num_n_blocks"] * blocks,
            "bytes_written": 2 * m * n}
