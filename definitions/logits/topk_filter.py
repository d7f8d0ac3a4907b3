"""Top-k filter of logits. Sorts each row, where a kernel would only select."""

import torch

LOWEST = -3.4028234663852886e38  # of float32

SMALL_AXES = {"num_tokens": 5, "vocab_size": 99, "top_k": 7, "filter_value": LOWEST}
# One value of each row, all of them, more than there are; a larger row than a block holds.
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"top_k": 1}, {"top_k": 99}, {"top_k": 500},
                  {"vocab_size": 4215, "top_k": 50}, {"filter_value": 0.0}]
# Vocabularies of models, and anything.
AXES_SPACE = {"num_tokens": (1, 1024),
              "vocab_size": [[32000, 32768, 102400, 128256, 129280, 151552, 151936, 163840, 200064, 201088, 262144],
                             (1000, 262144)], "top_k": [1, 20, 50, (1, 1000)], "filter_value": LOWEST}
SMALL_SPACE = {"num_tokens": (1, 16), "vocab_size": (50, 9000), "top_k": [1, 20, (1, 100)]}


@torch.no_grad()
def run(logits, top_k, filter_value):
    place = min(top_k, logits.shape[1]) - 1
    threshold = logits.sort(dim=-1, descending=True).values[:, place, None]
    return logits.masked_fill(logits < threshold, filter_value)


def count_cost(axes, inputs):
    """Comparisons are no arithmetic: only the logits once in and once out."""
    size = 4 * axes["num_tokens"] * axes["vocab_size"]
    return {"flops": {"float32": 0}, "bytes_read": size, "bytes_written": size}
