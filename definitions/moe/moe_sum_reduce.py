"""Sum of the results of each token's experts, in float32."""

import torch

SMALL_AXES = {"num_tokens": 5, "top_k": 8, "hidden_size": 99, "routed_scaling_factor": 2.5}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8, "routed_scaling_factor": 1.0},
                  {"num_tokens": 40, "hidden_size": 512}]
# Hidden sizes of models; then multiples of 8, then anything.
WIDTHS = [896, 1024, 1152, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 3840, 4096, 5120, 5376, 6144, 7168, 8192,
          16384]
AXES_SPACE = {"num_tokens": (1, 16384), "hidden_size": [WIDTHS, WIDTHS, WIDTHS, (64, 20000, 8), (100, 20000)],
              "routed_scaling_factor": [1.0, 2.5]}


@torch.no_grad()
def run(expert_outputs, routed_scaling_factor):
    return (expert_outputs.float().sum(dim=1) * routed_scaling_factor).to(expert_outputs.dtype)


def count_cost(axes, inputs):
    """top_k - 1 sums and a product for each output."""
    outputs = axes["num_tokens"] * axes["hidden_size"]
    return {"flops": {"bfloat16": axes["top_k"] * outputs}, "bytes_read": 2 * axes["top_k"] * outputs,
            "bytes_written": 2 * outputs}
