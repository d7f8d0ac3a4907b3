"""Full (non-causal) attention over packed sequences, as in a vision encoder, in float32."""

import torch

# Scores that are held at once: 4 GB, and their softmax as much again. With fewer rows the second product, whose result
# has only head_dim columns, would leave a GPU half empty.
MAX_SCORES = 1 << 30

SMALL_AXES = {"num_tokens": 41, "num_heads": 3, "head_dim": 72, "len_cu_seqlens": 5, "max_seqlen": 19,
              "sm_scale": 72 ** -0.5}
# No token, one token, equal lengths, one sequence, more tokens than a tile holds, other head sizes.
SMALL_VARIANTS = [
    {}, {"num_tokens": 0, "len_cu_seqlens": 1}, {"num_tokens": 1, "len_cu_seqlens": 2, "max_seqlen": 1},
    {"num_tokens": 76}, {"num_tokens": 6, "max_seqlen": 3}, {"num_tokens": 150, "len_cu_seqlens": 2, "max_seqlen": 150},
    {"num_tokens": 400, "len_cu_seqlens": 4, "max_seqlen": 290, "num_heads": 1},
    {"num_heads": 2, "head_dim": 128, "sm_scale": 128 ** -0.5},
]
# Encoders' heads; one picture or many, of one size or of all sizes.
AXES_SPACE = {"num_heads": [1, 2, 4, 8, 12, 16, (1, 32)], "head_dim": [64, 72, 80, 80, 96, 128],
              "_count": [1, (1, 64)], "max_seqlen": (16, 16384),
              "num_tokens": ["_count * max_seqlen", ("_count * max_seqlen // 4 + _count", "_count * max_seqlen")],
              "len_cu_seqlens": "_count + 1", "sm_scale": "head_dim ** -0.5"}
SMALL_SPACE = {"num_heads": (1, 3), "_count": (1, 5), "max_seqlen": (1, 140)}

# Scores so far apart that one key decides: none may be left out, and without the maximum exponentials overflow.
INPUT_DRAWS = [{"query": 30.0}]


@torch.no_grad()
def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale):
    output = torch.empty_like(query)
    bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for sequence in range(len(bounds_q) - 1):
        rows = slice(bounds_q[sequence], bounds_q[sequence + 1])
        columns = slice(bounds_k[sequence], bounds_k[sequence + 1])
        for head in range(query.shape[1]):
            attend(query[rows, head], key[columns, head].float(), value[columns, head].float(), sm_scale,
                   output[rows, head])
    return output


def reference_rows(inputs, rows):
    """The inputs of these tokens alone: each is the only query of a sequence that has the keys of its own one."""
    index = torch.tensor(rows, dtype=torch.int64, device=inputs["query"].device)
    bounds = inputs["cu_seqlens_k"].tolist()
    sequences = (torch.searchsorted(inputs["cu_seqlens_q"].long(), index, right=True) - 1).tolist()
    places = [torch.arange(bounds[each], bounds[each + 1], device=index.device) for each in sequences]
    keys = torch.cat([index[:0], *places])
    offsets = torch.tensor([0, *map(len, places)], device=index.device).cumsum(0)
    return {**inputs, "query": inputs["query"][index], "key": inputs["key"][keys], "value": inputs["value"][keys],
            "cu_seqlens_q": torch.arange(len(rows) + 1, dtype=torch.int32, device=index.device),
            "cu_seqlens_k": offsets.to(torch.int32)}


def attend(query, keys, values, sm_scale, output):
    """One head of one sequence: query [rows, head_dim], keys and values [columns, head_dim] -> output like query."""
    step = max(1, MAX_SCORES // max(1, len(keys)))
    for first in range(0, len(query), step):
        scores = (query[first:first + step].float() * sm_scale) @ keys.t()
        output[first:first + step] = scores.softmax(dim=-1) @ values


def generate_inputs(axes_and_scalars, device):
    """cu_seqlens_q and cu_seqlens_k: int32 [len_cu_seqlens], the same offsets, from 0 to num_tokens.

    Where num_tokens fills every sequence up to max_seqlen, all are that long, as in the survey's shapes (one image
    each). Otherwise lengths are drawn between 1 and max_seqlen, long ones and short ones beside each other, since the
    images of a batch differ in size. `seed` fixes them; they are drawn on the CPU, so they are the same everywhere.
    """
    size = axes_and_scalars
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    lengths = split(size["num_tokens"], size["len_cu_seqlens"] - 1, size["max_seqlen"], generator)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    return {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets.clone()}


def split(total, count, largest, generator):
    """`count` lengths from 1 to `largest` that sum to `total`, in random order."""
    if not count <= total <= count * largest:
        raise ValueError(f"num_tokens: {total} tokens are not {count} sequences of 1 to {largest}; "
                         "mend num_tokens, len_cu_seqlens or max_seqlen")
    lengths, left = [], total - count
    for after in range(count - 1, -1, -1):
        low, high = max(0, left - after * (largest - 1)), min(left, largest - 1)
        lengths.append(1 + int(torch.randint(low, high + 1, (), generator=generator)))
        left -= lengths[-1] - 1
    return [lengths[place] for place in torch.randperm(count, generator=generator).tolist()]


def count_cost(axes, inputs):
    """Two products of head_dim for each pair of tokens of a sequence, without the softmax (the survey's rule)."""
    lengths = inputs["cu_seqlens_q"].long().diff()
    tensor = 2 * axes["num_tokens"] * axes["num_heads"] * axes["head_dim"]
    return {"flops": {"bfloat16": 4 * axes["num_heads"] * axes["head_dim"] * int((lengths * lengths).sum())},
            "bytes_read": 3 * tensor + 2 * 4 * axes["len_cu_seqlens"], "bytes_written": tensor}
