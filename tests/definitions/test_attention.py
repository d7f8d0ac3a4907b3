"""The attention operators against naive ones in float64, one query at a time; their inputs and costs."""

import pytest
import torch
from operators import CATALOG, close, inputs_at, load, outputs_of, small_variants
from test_published_costs import PUBLISHED

from kernelderby.catalog.selection import of_origin

PAGED = ["unified_attention", "paged_attention_decode", "mla_paged_decode_attention"]
NAMES = ["attention_forward", *PAGED, "mla_decode_attention"]


def naive_rows(rows, sm_scale):
    """(query [size], keys and values [length, size]) of each row -> [rows, size], in float64."""
    found = []
    for query, keys, values in rows:
        weights = torch.softmax(query.double() @ keys.double().t() * sm_scale, dim=-1)
        found.append(weights @ values.double())
    return torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)


def slots(inputs, sequence, length):
    """(block, place in the block) of the first `length` tokens of a sequence."""
    table, size = inputs["block_table"][sequence].tolist(), block_size(inputs)
    return [table[token // size] for token in range(length)], [token % size for token in range(length)]


def block_size(inputs):
    return inputs["kv_cache" if "kv_cache" in inputs else "key_cache"].shape[1]


def paged_rows(inputs, sequence, queries, length):
    """(query, keys, values) of every head of the last queries [n, heads, head_dim] of a sequence, token by token."""
    blocks, places = slots(inputs, sequence, length)
    group = queries.shape[1] // inputs["key_cache"].shape[2]
    for row, query in enumerate(queries):
        sees = length - len(queries) + row + 1
        for head in range(queries.shape[1]):
            at = blocks[:sees], places[:sees], head // group
            yield query[head], inputs["key_cache"][at], inputs["value_cache"][at]


def rows_of(name, inputs):
    """(query, keys, values) for each row of the output, in its order."""
    if name == "attention_forward":
        bounds = inputs["cu_seqlens_q"].tolist()
        for token in range(bounds[-1]):
            first = max(bound for bound in bounds[:-1] if bound <= token)
            last = min(bound for bound in bounds if bound > token)
            for head in range(inputs["query"].shape[1]):
                yield inputs["query"][token, head], inputs["key"][first:last, head], inputs["value"][first:last, head]
    elif name == "unified_attention":
        bounds = inputs["cu_seqlens_q"].tolist()
        for sequence, length in enumerate(inputs["seq_lens"].tolist()):
            yield from paged_rows(inputs, sequence, inputs["query"][bounds[sequence] : bounds[sequence + 1]], length)
    elif name == "paged_attention_decode":
        for sequence, length in enumerate(inputs["context_lens"].tolist()):
            yield from paged_rows(inputs, sequence, inputs["query"][sequence, None], length)
    else:
        for sequence, length in enumerate(inputs["context_lens"].tolist()):
            paged = name == "mla_paged_decode_attention"
            slots_used = inputs["kv_cache"][slots(inputs, sequence, length) if paged else (sequence, slice(length))]
            for query in inputs["query"][sequence]:
                yield query, slots_used, slots_used[:, :512]


@pytest.mark.parametrize(("name", "changes"), small_variants(*NAMES))
def test_the_reference_agrees_with_naive_attention(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    close(output, naive_rows(rows_of(name, inputs), inputs["sm_scale"]).view(output.shape))


def unneeded(name, inputs):
    """True for each slot of the cache that no token needs."""
    if name == "mla_decode_attention":
        return torch.arange(inputs["kv_cache"].shape[1]) >= inputs["context_lens"].unsqueeze(-1)
    cache = inputs["kv_cache" if "kv_cache" in inputs else "key_cache"]
    free = torch.ones(cache.shape[:2], dtype=torch.bool)
    lengths = inputs["seq_lens" if name == "unified_attention" else "context_lens"]
    for sequence, length in enumerate(lengths.tolist()):
        free[slots(inputs, sequence, length)] = False
    return free


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_no_token_needs_does_not_count(name):
    inputs = inputs_at(name)
    (before,) = outputs_of(name, inputs)
    free = unneeded(name, inputs)
    assert free.any() and not free.all()
    for cache in ("key_cache", "value_cache", "kv_cache"):
        if cache in inputs:
            inputs[cache][free] = torch.nan
    if "block_table" in inputs:
        lengths = inputs["seq_lens" if name == "unified_attention" else "context_lens"]
        spare = block_size(inputs) * torch.arange(inputs["block_table"].shape[1]) >= lengths.unsqueeze(-1)
        assert (inputs["block_table"][spare] == 0).all() and spare.any()
        inputs["block_table"][spare] = 3
    assert torch.equal(load(name).run(**inputs), before)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("attention_forward", {}),
        ("unified_attention", {}),
        ("unified_attention", {"num_tokens": 165, "num_blocks": 15, "max_query_len": 33, "max_seq_len": 33}),
    ],
)
def test_queries_are_taken_in_blocks(name, changes, monkeypatch):
    module, inputs = load(name), inputs_at(name, **changes)
    expected = naive_rows(rows_of(name, inputs), inputs["sm_scale"]).view(inputs["query"].shape)
    for scores in (1, 300, 2000):  # one query at a time, a few, more
        monkeypatch.setattr(module, "MAX_SCORES", scores)
        close(module.run(**inputs), expected)


# Generated inputs -----------------------------------------------------------------------------------------------------


def lengths_of(name, inputs):
    """(queries, tokens) of each sequence."""
    if name == "attention_forward":
        assert torch.equal(inputs["cu_seqlens_q"], inputs["cu_seqlens_k"])
        return (inputs["cu_seqlens_q"].diff(),) * 2
    if name == "unified_attention":
        return inputs["cu_seqlens_q"].diff(), inputs["seq_lens"]
    return torch.ones_like(inputs["context_lens"]), inputs["context_lens"]


def assert_valid(name, values, inputs):
    """values: axes and scalars. Lengths are within bounds, blocks suffice, and each block belongs to one sequence
    only."""
    queries, tokens = lengths_of(name, inputs)
    longest = values.get("max_seqlen", values.get("max_seq_len", values.get("max_context_len")))
    assert (queries >= 1).all() and (tokens >= queries).all() and (tokens <= longest).all()
    assert (queries <= values.get("max_query_len", longest)).all()
    if "num_tokens" in values:
        assert int(queries.sum()) == values["num_tokens"] and inputs["cu_seqlens_q"][0] == 0
    if name == "mla_decode_attention":
        assert (tokens <= values["cache_len"]).all()
    if name in PAGED:
        size = values.get("block_size", 16)
        used = size * torch.arange(values["max_blocks_per_seq"]) < tokens.unsqueeze(-1)
        assert torch.equal(used.sum(-1), (tokens + size - 1) // size)
        blocks = inputs["block_table"][used]
        assert blocks.unique().numel() == blocks.numel() <= values["num_blocks"]
        assert ((inputs["block_table"] >= 0) & (inputs["block_table"] < max(1, values["num_blocks"]))).all()


@pytest.mark.parametrize(("name", "changes"), small_variants(*NAMES))
def test_generated_inputs_are_valid(name, changes):
    module = load(name)
    values = {**module.SMALL_AXES, **changes}
    for seed in range(20):
        inputs = module.generate_inputs({**values, "seed": seed}, "cpu")
        assert_valid(name, values, inputs)
        again = module.generate_inputs({**values, "seed": seed}, "cpu")
        assert all(torch.equal(again[key], tensor) for key, tensor in inputs.items())
        for key, tensor in inputs.items():
            spec = CATALOG.definition(name).inputs[key]
            assert tensor.shape == tuple(values[axis] for axis in spec.shape) and tensor.dtype is torch.int32


@pytest.mark.parametrize("name", NAMES)
def test_small_inputs_vary(name):
    """Other seeds give other lengths, and lengths differ within a batch; paged sequences end within a block."""
    module = load(name)
    made = [lengths_of(name, module.generate_inputs({**module.SMALL_AXES, "seed": seed}, "cpu")) for seed in range(10)]
    assert len({tuple(tokens.tolist()) for _, tokens in made}) > 5
    assert all(tokens.unique().numel() > 1 for _, tokens in made)
    if name in PAGED:
        assert any((tokens % 16 != 0).any() for _, tokens in made)
    if name == "unified_attention":
        assert any((tokens > queries).any() for queries, tokens in made)


@pytest.mark.parametrize("name", NAMES)
def test_the_surveys_shapes_have_equal_lengths_and_exactly_the_blocks_they_need(name):
    module, definition = load(name), CATALOG.definition(name)
    for workload in CATALOG.workloads(name):
        values = {**definition.sizes(workload.axes), **workload.scalars}
        inputs = module.generate_inputs({**values, "seed": workload.seed}, "cpu")
        assert_valid(name, values, inputs)
        if workload.origin != "survey":
            continue
        queries, tokens = lengths_of(name, inputs)
        assert queries.unique().numel() == tokens.unique().numel() == 1
        if name in PAGED:
            assert inputs["block_table"].unique().numel() == inputs["block_table"].numel() == values["num_blocks"]
        if name == "unified_attention":
            assert torch.equal(queries, tokens)


def test_the_serving_shapes_of_unified_attention_have_context_decode_and_ragged_lengths():
    name = "unified_attention"
    module, definition = load(name), CATALOG.definition(name)
    shapes = [workload for workload in CATALOG.workloads(name) if workload.origin == "serving"]
    groups = {shape.axes["num_query_heads"] // shape.axes["num_kv_heads"] for shape in shapes}
    kinds, longest = [], 0
    for shape in shapes:
        values = {**definition.sizes(shape.axes), **shape.scalars, "seed": shape.seed}
        queries, tokens = lengths_of(name, module.generate_inputs(values, "cpu"))
        assert (tokens > queries).any()
        assert int(queries.max()) <= values["max_query_len"]
        longest = max(longest, int(tokens.max()))
        ragged = len(tokens) > 1 and tokens.unique().numel() > 1
        kinds.append(("decode" if queries.max() == 1 else "mixed" if queries.min() == 1 else "chunks", ragged))
    assert len(shapes) >= 12 and groups == {1, 4, 8, 16} and longest == 131072
    assert {kind for kind, _ in kinds} == {"decode", "mixed", "chunks"}
    assert all((kind, True) in kinds for kind in ("decode", "mixed", "chunks"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("attention_forward", {"num_tokens": 3}),
        ("attention_forward", {"num_tokens": 77}),
        ("unified_attention", {"num_tokens": 4}),
        ("unified_attention", {"num_tokens": 101}),
        ("unified_attention", {"num_blocks": 4}),
        ("paged_attention_decode", {"num_blocks": 4}),
    ],
)
def test_sizes_that_do_not_agree_are_an_error(name, changes):
    module = load(name)
    with pytest.raises(ValueError, match="mend"):
        module.generate_inputs({**module.SMALL_AXES, **changes}, "cpu")


# Costs, counted by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "axes", "inputs", "flops", "read", "written"),
    [
        (
            "attention_forward",
            {"num_tokens": 5, "num_heads": 3, "head_dim": 8, "len_cu_seqlens": 3},
            {"cu_seqlens_q": [0, 2, 5]},
            4 * 3 * 8 * (4 + 9),
            3 * 5 * 3 * 8 * 2 + 2 * 3 * 4,
            5 * 3 * 8 * 2,
        ),
        # 2 queries after 15 tokens see 16 and 17; 3 without context see 1, 2 and 3. Blocks: 2 and 1.
        (
            "unified_attention",
            {
                "num_tokens": 5,
                "num_seqs": 2,
                "len_cu_seqlens": 3,
                "block_size": 16,
                "num_query_heads": 6,
                "num_kv_heads": 2,
                "head_dim": 8,
            },
            {"cu_seqlens_q": [0, 2, 5], "seq_lens": [17, 3]},
            4 * 6 * 8 * (16 + 17 + 1 + 2 + 3),
            5 * 6 * 8 * 2 + 2 * 20 * 2 * 8 * 2 + 4 * (3 + 2 + 3),
            5 * 6 * 8 * 2,
        ),
        (
            "paged_attention_decode",
            {"num_seqs": 2, "block_size": 16, "num_query_heads": 6, "num_kv_heads": 2, "head_dim": 8},
            {"context_lens": [17, 16]},
            (4 * 6 * 8 + 2) * 33,
            2 * 6 * 8 * 2 + 2 * 33 * 2 * 8 * 2 + 4 * (2 + 3),
            2 * 6 * 8 * 2,
        ),
        (
            "mla_decode_attention",
            {"batch_size": 2, "num_heads": 3, "head_dim_qk": 576, "kv_lora_rank": 512},
            {"context_lens": [7, 4]},
            3 * 11 * (3 * 576 + 2 * 512) + 6 * 576,
            6 * 576 * 2 + 11 * 576 * 2 + 8,
            6 * 512 * 2,
        ),
    ],
)
def test_cost_by_hand(name, axes, inputs, flops, read, written):
    inputs = {key: torch.tensor(value, dtype=torch.int32) for key, value in inputs.items()}
    assert load(name).count_cost(axes, inputs) == {
        "flops": {"bfloat16": flops},
        "bytes_read": read,
        "bytes_written": written,
    }


def test_the_published_bytes_of_paged_decode_hold_16_unread_blocks():
    """And nothing else is in them that our costs have not."""
    for workload in of_origin(CATALOG.workloads("paged_attention_decode"), ["survey"]):
        published = PUBLISHED["paged_attention_decode", workload.raw["shape_id"]]
        unread = 16 * 16 * 2 * workload.axes["num_kv_heads"] * workload.axes["head_dim"] * 2
        assert workload.cost.flops == {"bfloat16": int(published["flops"])}
        assert workload.cost.bytes_read + unread == int(published["bytes_read"])
        assert workload.cost.bytes_written == int(published["bytes_written"])
