"""Linear layer in bfloat16: output = x @ weight.T + bias, in float32. The bias may be missing."""

import torch

CHUNK = 1 << 28  # products that one step of the reference holds in float32: 1 GB

SMALL_AXES = {"m": 5, "n": 99, "k": 64, "bias_rows": 1}
SMALL_VARIANTS = [{}, {"bias_rows": 0}, {"m": 0}, {"m": 1, "bias_rows": 0}, {"n": 1, "k": 72}, {"n": 8, "k": 8},
                  {"m": 70, "n": 200, "k": 136}, {"m": 3, "n": 40, "k": 77}]
INPUT_DRAWS = [{"x": 0.01}]  # products as small as the bias

WIDTHS = [2048, 2880, 3072, 3584, 4096, 5120, 5376, 6144, 7168, 8192, 16384]
AXES_SPACE = {
    "m": (1, 16384),
    "k": [*WIDTHS, 1024, 1536, 3456, 12288, 14336, (64, 16384, 8), (1, 8192)],
    "n": [*WIDTHS, 128, 256, 384, 512, 1280, 2304, 2560, 4608, 10240, 14336, 18432, 28672, 36864, 57344, (8, 40000, 8),
          (1, 20000), "131072 if m <= 256 else 65536"],
    "bias_rows": [0, 0, 1],
}
SMALL_SPACE = {"m": (1, 70), "k": [(8, 300, 8), (1, 300)], "n": (1, 300)}
REFERENCE_ROWS = {"x": 0}


@torch.no_grad()
def run(x, weight, bias):
    """Some rows of weight at a time: all of a language model's head would take 4 GB in float32."""
    output = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    wide, step = x.float(), max(1, CHUNK // max(x.shape[0], x.shape[1], 1))
    for start in range(0, len(weight), step):
        part = slice(start, start + step)
        product = wide @ weight[part].float().t()
        output[:, part] = product + bias[:, part].float() if len(bias) else product
    return output


def count_cost(axes, inputs):
    """A product and a sum for each output and place along k, the first of which starts with the bias."""
    m, n, k, biases = axes["m"], axes["n"], axes["k"], axes["bias_rows"]
    return {"flops": {"bfloat16": m * n * (2 * k + biases)},
            "bytes_read": 2 * (m * k + n * k + biases * n), "bytes_written": 2 * m * n}
