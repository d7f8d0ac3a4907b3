"""What the tolerances of the attention operators accept and refuse."""

import itertools

import pytest
import torch
from operators import CATALOG, inputs_at, load, outputs_of
from test_attention import NAMES, naive_rows, rows_of

from kernelderby.measure.judge.correctness import compare
from kernelderby.rows.measurement import Status

LARGER = {
    "attention_forward": {"num_tokens": 700, "len_cu_seqlens": 4, "max_seqlen": 290},
    "unified_attention": {
        "num_tokens": 300,
        "num_blocks": 31,
        "max_query_len": 90,
        "max_seq_len": 140,
        "max_blocks_per_seq": 9,
    },
    "paged_attention_decode": {"num_seqs": 8, "num_blocks": 50, "max_context_len": 128, "max_blocks_per_seq": 8},
    "mla_decode_attention": {"batch_size": 4, "num_heads": 16, "cache_len": 200, "max_context_len": 150},
    "mla_paged_decode_attention": {
        "batch_size": 4,
        "num_heads": 16,
        "num_blocks": 33,
        "max_context_len": 150,
        "max_blocks_per_seq": 10,
    },
}


def rounded(row, sm_scale, dtype):
    """One row as a fused kernel computes it: float32 sums, weights below 1 in `dtype`, divided by their sum last."""
    query, keys, values = (tensor.float() for tensor in row)
    scores = keys @ query * sm_scale
    weights = torch.exp(scores - scores.max())
    return weights.to(dtype).float() @ values / weights.sum()


def verdict_of(name, inputs, function):
    """The verdict on function(query, keys, values) for each row, against the reference."""
    (expected,) = outputs_of(name, inputs)
    found = torch.stack([function(*row) for row in rows_of(name, inputs)]).view(expected.shape).to(torch.bfloat16)
    return compare(CATALOG.definition(name), {"output": found}, {"output": expected})


def attention(query, keys, values, sm_scale):
    return torch.softmax(keys.float() @ query.float() * sm_scale, dim=-1) @ values.float()


PLAUSIBLE = {
    "weights in bfloat16": lambda row, scale: rounded(row, scale, torch.bfloat16),
    "scaled queries and weights in bfloat16": lambda row, scale: rounded(
        (row[0] * scale, *row[1:]), 1.0, torch.bfloat16
    ),
}
WRONG = {
    "weights in fp8": lambda row, scale: rounded(row, scale, torch.float8_e4m3fn),
    "values in fp8": lambda row, scale: attention(row[0], row[1], row[2].to(torch.float8_e4m3fn), scale),
    "keys in fp8": lambda row, scale: attention(row[0], row[1].to(torch.float8_e4m3fn), row[2], scale),
    "scale by a tenth": lambda row, scale: attention(*row, 0.9 * scale),
    "scale of a head size half as large": lambda row, scale: attention(*row, 2**0.5 * scale),
    "zeros": lambda row, scale: torch.zeros_like(row[2][0]),
    "mean of the values": lambda row, scale: row[2].float().mean(0),
    "the last token missing": lambda row, scale: attention(row[0], row[1][:-1], row[2][:-1], scale),
    "the first token missing": lambda row, scale: attention(row[0], row[1][1:], row[2][1:], scale),
    "one token twice": lambda row, scale: attention(
        row[0], row[1][[0, *range(len(row[1]))]], row[2][[0, *range(len(row[1]))]], scale
    ),
    "no division by the sum": lambda row, scale: torch.exp(row[1].float() @ row[0].float() * scale) @ row[2].float(),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", PLAUSIBLE)
def test_plausible_roundings_pass(name, how):
    inputs = inputs_at(name, **LARGER[name])
    verdict = verdict_of(name, inputs, lambda *row: PLAUSIBLE[how](row, inputs["sm_scale"]))
    assert verdict.status is Status.PASSED, verdict.message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", WRONG)
def test_wrong_answers_fail(name, how):
    inputs = inputs_at(name, **LARGER[name])
    verdict = verdict_of(name, inputs, lambda *row: WRONG[how](row, inputs["sm_scale"]))
    assert verdict.status in (Status.WRONG_VALUES, Status.NOT_A_NUMBER)


@pytest.mark.parametrize("name", NAMES)
def test_a_few_heads_of_a_long_context_that_are_left_out_fail(name):
    """Outputs shrink with the root of the length: in time no element of zeros is far off."""
    (expected,) = outputs_of(name, inputs_at(name, **LARGER[name]))
    expected = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).mul(32768**-0.5).bfloat16()
    found = expected.clone()
    rows = found.view(-1, found.shape[-1])
    rows[: len(rows) // 16] = 0
    verdict = compare(CATALOG.definition(name), {"output": found}, {"output": expected})
    assert verdict.status is Status.WRONG_VALUES and "of its norm" in verdict.message
    assert min(verdict.correctness.matched_ratio.values()) > 0.9


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("attention_forward", "one sequence"),
        ("unified_attention", "as if without context"),
        ("unified_attention", "heads in turn"),
        ("paged_attention_decode", "heads in turn"),
        ("unified_attention", "blocks in order"),
        ("paged_attention_decode", "blocks in order"),
        ("unified_attention", "whole blocks"),
        ("paged_attention_decode", "whole blocks"),
        ("mla_decode_attention", "all slots"),
        ("mla_decode_attention", "without the rotary part"),
    ],
)
def test_misread_contracts_fail(name, how):
    """The reference on inputs that say something else."""
    inputs = inputs_at(name)
    (expected,) = outputs_of(name, inputs)
    found = load(name).run(**misread(how, dict(inputs)))
    if how == "heads in turn":
        found = found.unflatten(1, (inputs["key_cache"].shape[2], -1)).transpose(1, 2).flatten(1, 2)
    verdict = compare(CATALOG.definition(name), {"output": found}, {"output": expected})
    assert verdict.status is Status.WRONG_VALUES


def misread(how, inputs):
    lengths = "seq_lens" if "seq_lens" in inputs else "context_lens"
    if how == "one sequence":
        inputs["cu_seqlens_q"] = inputs["cu_seqlens_k"] = inputs["cu_seqlens_q"][[0, -1]]
    elif how == "as if without context":
        inputs["seq_lens"] = inputs["cu_seqlens_q"].diff()
    elif how == "blocks in order":
        inputs["block_table"] = inputs["block_table"].sort().values
    elif how == "whole blocks":
        inputs[lengths] = (inputs[lengths] + 15) // 16 * 16
    elif how == "all slots":
        inputs["context_lens"] = torch.full_like(inputs["context_lens"], inputs["kv_cache"].shape[1])
    elif how == "without the rotary part":
        inputs["query"] = inputs["query"].clone()
        inputs["query"][..., 512:] = 0
    elif how == "heads in turn":  # head h reads key head h % num_kv_heads
        inputs["query"] = inputs["query"].unflatten(1, (-1, inputs["key_cache"].shape[2])).transpose(1, 2).flatten(1, 2)
    return inputs


@pytest.mark.parametrize("name", ["attention_forward", "unified_attention"])
def test_the_other_mask_fails(name):
    """Causal where all is visible, and the other way round."""
    inputs = inputs_at(name)
    (expected,) = outputs_of(name, inputs)
    heads, bounds = expected.shape[1], inputs["cu_seqlens_q"].tolist()
    rows, others = list(rows_of(name, inputs)), []
    for first, last in itertools.pairwise(bounds):
        for token in range(first, last):
            seen = token - first + 1 if name == "attention_forward" else None
            keys_of = rows[heads * (last - 1) : heads * last]  # the last token's: all of the sequence
            others += [
                (rows[heads * token + head][0], *(part[:seen] for part in keys_of[head][1:])) for head in range(heads)
            ]
    found = naive_rows(others, inputs["sm_scale"]).view(expected.shape).to(torch.bfloat16)
    verdict = compare(CATALOG.definition(name), {"output": found}, {"output": expected})
    assert verdict.status is Status.WRONG_VALUES
