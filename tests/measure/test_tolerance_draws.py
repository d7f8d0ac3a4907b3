"""benchmarks/tolerance_draws.py on draws with known answers."""

from __future__ import annotations

import math
import random

import pytest
from measuring import MISBEHAVIOURS

pytest.importorskip("torch")
from kernelderby.catalog import Catalog

CHECKOUT = MISBEHAVIOURS.parent.parent


@pytest.fixture(scope="module")
def tolerance_draws():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("tolerance_draws", CHECKOUT / "benchmarks/tolerance_draws.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("scale", [0.05, 0.08, 0.12])
def test_the_tail_of_an_exponential(tolerance_draws, scale):
    uniform = random.Random(7)
    shares = [uniform.expovariate(1 / scale) for _ in range(20_000)]
    found, expected = tolerance_draws.chance_of_failure(shares), math.exp(-1 / scale)
    assert 0.1 < math.log(found) / math.log(expected) < 1.3
    assert tolerance_draws.chance_of_failure([0.0] * 1000) == 0


def test_shares_of_a_bound(tolerance_draws):
    import torch

    definition = Catalog.open(MISBEHAVIOURS).definition("scaled_add_n16")
    tight = definition.tolerances[0]
    reference = torch.ones(4, 16)
    off = reference.clone()
    off[0, 0] += min(tight.atol, tight.rtol) * 0.5 or 1e-9
    assert 0 < tolerance_draws.used_of_bounds(definition, {"out": off}, {"out": reference}) < 1
    assert tolerance_draws.used_of_bounds(definition, {"out": reference + 1}, {"out": reference}) > 1


def test_odd_rows_do_not_fail_an_honest_solution(tolerance_draws, checkout):
    """By the bounds of normal numbers one draw in seven of this one failed, where w and the state are both large."""
    catalog = Catalog.open(checkout)
    definition = catalog.definition("chunk_gated_delta_rule_state")
    module = tolerance_draws.module_of(definition)
    baseline = catalog.solution("chunk_gated_delta_rule_state_baseline")
    candidate = tolerance_draws.Candidate(
        tolerance_draws.load_solution(definition, baseline), True, definition, baseline.in_place
    )
    case = tolerance_draws.small_cases(definition, module.SMALL_AXES, [{"num_tokens": 64, "num_chunks": 1}], 1)[0]
    group = tolerance_draws.Group(definition, module, case, candidate, tolerance_draws.ODD_ROWS)
    for _ in range(60):
        group.look()
    assert max(group.shares) < 1 and not group.failures


@pytest.fixture(scope="module")
def linear(tolerance_draws):
    catalog = Catalog.open(CHECKOUT)
    definition = catalog.definition("linear_sigmoid_mul")
    baseline = catalog.solution("linear_sigmoid_mul_baseline")
    candidate = tolerance_draws.Candidate(tolerance_draws.load_solution(definition, baseline), True, definition)
    return definition, tolerance_draws.module_of(definition), candidate


def test_shapes_from_the_corners(tolerance_draws, linear):
    definition, module, _ = linear
    sizes = [case.sizes for case in tolerance_draws.drawn_cases(definition, module, 24)]
    assert len(sizes) == 24
    assert any(each["num_tokens"] == 1 for each in sizes) and any(each["out_features"] == 1 for each in sizes)
    assert any(each["num_tokens"] > 1000 for each in sizes) and any(each["hidden_size"] > 1000 for each in sizes)
    assert min(each["num_tokens"] * each["out_features"] for each in sizes) >= 16


def test_who_adds_parts_in_bfloat16_passes(tolerance_draws, linear):
    """With 1 in 1,000 allowed every draw of this solution failed."""
    definition, module, candidate = linear
    sizes = {"num_tokens": 6, "hidden_size": 4096, "out_features": 256}
    case = tolerance_draws.small_cases(definition, module.SMALL_AXES, [sizes], 1)[0]
    plain, split = (
        tolerance_draws.Group(definition, module, case, candidate, tolerance_draws.NORMAL, splits)
        for splits in (False, True)
    )
    for _ in range(3):
        plain.look()
        split.look()
    assert max(plain.shares) < min(split.shares) < max(split.shares) < 0.9 and split.failures == 0


def test_split_attention_is_attention(tolerance_draws):
    import torch

    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, heads, 40, 16, generator=generator).bfloat16() for heads in (4, 2, 2))
    for named in ({"is_causal": True}, {"attn_mask": torch.ones(40, 40, dtype=torch.bool).tril(3)}, {"scale": 0.1}):
        named |= {"enable_gqa": True}
        whole = torch.nn.functional.scaled_dot_product_attention(query, key, value, **named)
        with tolerance_draws.SplitProducts():
            parts = torch.nn.functional.scaled_dot_product_attention(query, key, value, **named)
        assert not torch.equal(parts, whole) and torch.allclose(parts.float(), whole.float(), atol=0.02, rtol=0.02)
