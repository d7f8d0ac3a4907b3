"""FP8 (e4m3) matrix product with block scales, in float32: output = (x * x_scale) @ (weight * weight_scale).T.

The scales are those of DeepSeek-V3's report (arXiv 2412.19437, section 3.3): one for 1x128 values of x, one for 128x128
values of weight.
"""

import torch

BLOCK = 128
CHUNK = 1 << 26  # values of x dequantized at once: 256 MB in float32

SMALL_AXES = {"m": 5, "n": 256, "k": 384, "num_n_blocks": 2, "num_k_blocks": 3}
SMALL_VARIANTS = [{}, {"m": 0}, {"m": 1}, {"m": 200, "n": 128, "num_n_blocks": 1, "k": 1024, "num_k_blocks": 8},
                  {"m": 67, "n": 384, "num_n_blocks": 3, "k": 128, "num_k_blocks": 1}]
# Blocks of the weights of FP8 models, whole and over 2 to 8 GPUs; then any number.
BLOCKS = [4, 6, 12, 16, 18, 24, 32, 36, 40, 48, 56, 64, 96, 112, 128, 144, 192]
AXES_SPACE = {"m": (1, 16384), "num_n_blocks": [BLOCKS, BLOCKS, (1, 288)], "n": "128 * num_n_blocks",
              "num_k_blocks": [BLOCKS, BLOCKS, (1, 144)], "k": "128 * num_k_blocks"}
SMALL_SPACE = {"m": (1, 130), "num_n_blocks": (1, 3), "num_k_blocks": (1, 6)}
REFERENCE_ROWS = {"x": 0, "x_scale": 0}


@torch.no_grad()
def run(x, x_scale, weight, weight_scale):
    """A chunk of rows at a time: the whole of x in float32 would take 6 GB at the largest shape."""
    (m, k), n = x.shape, weight.shape[0]
    blocks = weight.float().view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
    dequantized = (blocks * weight_scale[:, None, :, None]).view(n, k)
    output = torch.empty(m, n, dtype=torch.float32, device=x.device)
    step = max(1, CHUNK // k)
    for start in range(0, m, step):
        rows = slice(start, min(start + step, m))
        activations = x[rows].float().view(-1, k // BLOCK, BLOCK) * x_scale[rows].unsqueeze(-1)
        torch.matmul(activations.view(-1, k), dequantized.t(), out=output[rows])
    return output


def generate_inputs(axes_and_scalars, device):
    """The scales, which must be positive.

    Log-normal with a standard deviation of 0.25, as in the FP8 mixture of experts: blocks differ by a factor of 2 to 3.
    The fp8 codes of `random` inputs lie in [-2, 2], so an activation scale near 1 gives activations as after an
    RMSNorm; a weight scale near 1.2 / sqrt(k) gives outputs with a standard deviation near 1 at every k, which is what
    the tolerance is made for.

    `seed` in axes_and_scalars fixes every value, drawn on the CPU.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))

    def scale(around, *shape):
        return torch.randn(*shape, generator=generator).mul_(0.25).exp_().mul_(around).to(device)

    return {"x_scale": scale(1.0, size["m"], size["num_k_blocks"]),
            "weight_scale": scale(1.2 * size["k"] ** -0.5, size["num_n_blocks"], size["num_k_blocks"])}


def count_cost(axes, inputs):
    """The matrix product; and for each output and block along k two products with scales and one sum with the other
    blocks, of which the first has none."""
    m, n, k = axes["m"], axes["n"], axes["k"]
    blocks = axes["num_k_blocks"]
    return {"flops": {"float8_e4m3fn": m * n * (2 * k + 3 * blocks - 1)},
            "bytes_read": m * (k + 4 * blocks) + n * k + 4 * axes["num_n_blocks"] * blocks,
            "bytes_written": 4 * m * n}
