"""Which form of the block-scaled GEMM (block_scaled_launch.cuh) a shape takes, by turns of all multiprocessors."""

import functools

import torch

BLOCK = 128
# Variants of block_scaled_launch.cuh: rows of a tile, CTAs of a cluster side by side and one below the other, and what
# a turn of all multiprocessors costs beside one of variant 0 (an H200, k 2048: docs/lab/gemm_and_experts_sm90.md).
FORMS = {0: (256, 2, 1, 1.0), 1: (192, 2, 1, 0.775), 2: (128, 1, 1, 0.62), 3: (64, 1, 1, 0.45), 4: (64, 1, 2, 0.46)}
MANY = 16384  # rows from which the tail does not matter


@functools.cache
def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def cost(variant, m, n, ctas):
    """Of a problem of m rows and n columns: whole turns, and the last one's share, times a turn's cost."""
    rows, across, down, each = FORMS[variant]
    units, clusters = -(-m // (rows * down)) * -(-n // (BLOCK * across)), ctas // (across * down)
    whole, rest = divmod(units, clusters)
    return each * (whole + (0.5 if variant == 0 and 2 * rest <= clusters else 1) * (rest > 0))


def tuning_key(x, x_scale, weight, weight_scale):
    m = x.shape[0]
    return f"n={weight.shape[0]} k={x.shape[1]} m<={-(-m // 64) * 64 if m <= MANY else 1 << (m - 1).bit_length()}"


def candidates(x, x_scale, weight, weight_scale):
    m, n = -(-x.shape[0] // 64) * 64, weight.shape[0]
    if m > MANY:
        return [{"variant": variant, "group": group} for variant in (0, 1) for group in (8, 4)]
    variants = [variant for variant, form in FORMS.items() if m > 1024 or form[0] < 192]
    variants.sort(key=lambda variant: cost(variant, m, n, multiprocessors(x.device)))
    return [{"variant": variant, "group": group} for variant in variants[:3] for group in (8, 4)]
