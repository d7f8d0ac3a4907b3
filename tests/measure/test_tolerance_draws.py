"""benchmarks/tolerance_draws.py: what it says of draws whose answer is known."""

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
