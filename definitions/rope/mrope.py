"""Multimodal rotary position embedding of queries and keys (Qwen2-VL, arXiv 2409.12191, section 2.1), in float32.

A token has three positions: time, height and width. The first section of the columns turns by the angles of the
first, the next by those of the second, the rest by those of the third; sections are counted in pairs of columns, the
pairs are those of GPT-NeoX (j and j + head_size / 2).
"""

import torch

ROPE_BASE = 1000000.0  # of Qwen2-VL

SMALL_AXES = {"num_tokens": 5, "num_q_heads": 3, "num_kv_heads": 1, "head_size": 128, "num_position_ids": 3,
              "half_head_size": 64, "section_time": 16, "section_height": 24, "section_width": 24}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 300, "num_q_heads": 2}, {"num_kv_heads": 4},
    {"num_tokens": 130, "section_time": 8, "section_height": 12, "section_width": 44},
    {"num_tokens": 33, "section_time": 64, "section_height": 0, "section_width": 0},
]
# Groups of query heads that models have, over 1 to 8 GPUs; the sections of Qwen2-VL, and others.
AXES_SPACE = {"num_tokens": (1, 16384), "num_kv_heads": [1, 1, 2, 4, 8], "_group": [1, 2, 4, 5, 6, 7, 8, 12, 16],
              "num_q_heads": "_group * num_kv_heads", "section_time": [16, 16, 24, (1, 64)],
              "section_height": ["24 if section_time == 16 else min(20, 64 - section_time)"],
              "section_width": "64 - section_time - section_height"}


def of_sections(table, sections):
    """table [3, num_tokens, half_head_size], sizes of the sections -> what counts, [num_tokens, 1, half_head_size].

    The first section's columns come from row 0, the second's from row 1, the third's from row 2.
    """
    pieces = [columns[row] for row, columns in enumerate(table.split(sections, dim=-1))]
    return torch.cat(pieces, dim=-1).unsqueeze(1)


@torch.no_grad()
def run(query, key, cos, sin, section_time, section_height, section_width):
    sections = [section_time, section_height, section_width]
    cos, sin = of_sections(cos, sections), of_sections(sin, sections)
    half = cos.shape[-1]
    outputs = []
    for heads in (query, key):
        first, second = heads[..., :half].float(), heads[..., half:].float()
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        outputs.append(turned.to(heads.dtype))
    return tuple(outputs)


def position_ids(num_tokens, generator):
    """Time, height and width of every token of a prefill, int64 [3, num_tokens].

    Requests stand one after the other, each from position 0: one to three images, each after a run of 8 to 199 tokens
    of text. Text counts all three positions up together. An image is a grid of 8 to 39 rows and as many columns (after
    the 2 x 2 merge, so 224 to 1092 pixels a side): its tokens share the time, row and column are counted from it; the
    text goes on above the largest position so far. The batch ends where num_tokens end.
    """
    def integer(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    pieces, count = [torch.zeros(3, 0, dtype=torch.int64)], 0
    while count < num_tokens:
        start = 0
        for _ in range(integer(1, 4)):
            text = start + torch.arange(integer(8, 200)).expand(3, -1)
            start = int(text.max()) + 1
            rows, columns = integer(8, 40), integer(8, 40)
            grid = torch.cartesian_prod(torch.zeros(1, dtype=torch.int64), torch.arange(rows), torch.arange(columns))
            image = start + grid.t()
            start += max(rows, columns)
            pieces += [text, image]
            count += text.shape[1] + image.shape[1]
    return torch.cat(pieces, dim=1)[:, :num_tokens]


def generate_inputs(axes_and_scalars, device):
    """cos, sin float32 [3, num_tokens, half_head_size]: of the angles of position_ids(), at Qwen2-VL's base.

    Random numbers would not be a rotation: cos^2 + sin^2 is 1. Computed in float64 on the CPU from `seed`.
    """
    generator = torch.Generator().manual_seed(int(axes_and_scalars.get("seed", 0)))
    half = axes_and_scalars["half_head_size"]
    positions = position_ids(axes_and_scalars["num_tokens"], generator)
    frequency = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(int(positions.max()) + 1 if positions.numel() else 0)[:, None] * frequency
    return {"cos": angle.cos().float()[positions].to(device), "sin": angle.sin().float()[positions].to(device)}


def count_cost(axes, inputs):
    """3 a value (two products, a sum). Every input is read whole: of cos and sin two thirds need not be, which are
    left out of bytes_needed."""
    values = axes["num_tokens"] * (axes["num_q_heads"] + axes["num_kv_heads"]) * axes["head_size"]
    tables = 2 * axes["num_position_ids"] * axes["num_tokens"] * axes["half_head_size"]
    return {"flops": {"bfloat16": 3 * values}, "bytes_read": 2 * values + 4 * tables, "bytes_written": 2 * values,
            "bytes_needed": 4 * values + 4 * tables // axes["num_position_ids"]}
