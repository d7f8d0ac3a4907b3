"""The choice by recorded times, on numbers worked out by hand."""

import pytest

from kernelderby.deploy.runtime.selector import Selector

KINDS = {"ours": {"kind": "own"}, "theirs": {"kind": "library"}, "torch": {"kind": "plain"}}
EVERY = set(KINDS)


def selector(*points):
    return Selector({"axes": ["tokens", "width"], "solutions": KINDS, "points": points})


@pytest.fixture
def two():
    """Ours is twice as fast at 16 tokens, the library four times as fast at 1024."""
    return selector([[16, 4096], [1.0, 2.0, 9.0]], [[1024, 4096], [4.0, 1.0, 9.0]])


def test_a_measured_shape_gets_its_fastest(two):
    assert two.order((16, 4096), EVERY) == ["ours", "theirs", "torch"]
    assert two.order((1024, 4096), EVERY) == ["theirs", "ours", "torch"]


def test_between_them_the_losses_count_half_as_much_an_octave_further(two):
    """At 64 tokens, 2 octaves from the one and 4 from the other, ours loses 2 octaves * 1/16 = 0.125 and the library
    1 * 1/4. They meet where the ratio of the weights is 2: at 90.5 tokens."""
    assert two.order((64, 4096), EVERY)[0] == "ours"
    assert two.order((90, 4096), EVERY)[0] == "ours" and two.order((91, 4096), EVERY)[0] == "theirs"


def test_the_region_ends_sixteen_octaves_beyond_what_was_measured(two):
    assert two.inside((1, 1)) and two.inside((2**26, 2**28)) and two.inside((16, 256))
    assert not two.inside((0, 4096)) and not two.inside((2**26 + 1, 4096)) and not two.inside((16, 2**28 + 1))


def test_outside_of_the_region_libraries_run_then_plain_torch(two):
    assert two.order((16, 2**28 + 1), EVERY) == ["theirs", "torch"]
    assert two.order((16, 2**28 + 1), {"ours", "torch"}) == ["torch"]


def test_what_is_not_available_does_not_run(two):
    assert two.order((1024, 4096), {"ours", "torch"})[0] == "ours"
    assert two.order((16, 4096), {"torch"}) == ["torch"]


def test_no_tokens_are_no_error(two):
    assert two.order((0, 4096), EVERY) == ["theirs", "torch"]


def test_without_a_measured_shape_nothing_but_plain_torch_and_libraries_runs():
    assert selector().order((16, 4096), EVERY) == ["theirs", "torch"]


def test_a_solution_without_a_time_anywhere_comes_last(two):
    found = selector([[16, 4096], [1.0, None, 9.0]])
    assert found.order((16, 4096), EVERY) == ["ours", "torch", "theirs"]


def test_a_near_tie_goes_to_the_one_that_was_timed_there():
    """Ours was timed far off alone, and is the fastest there; the library, timed here, loses 1 % to torch."""
    far = [4096, 4096], [1.0, 4.0, 4.0]
    points = [[16, 4096], [None, 1.01, 1.0]], far
    assert selector(*points).order((16, 4096), EVERY)[0] == "torch"
    assert selector(*points).order((16, 4096), {"ours", "theirs"})[0] == "theirs"
    assert selector([[16, 4096], [None, 2.0, 1.0]], far).order((16, 4096), {"ours", "theirs"})[0] == "ours"


def test_far_off_all_shapes_count_next_to_nothing_and_so_does_the_doubt():
    points = [[16, 4096], [None, 1.01, 1.0]], [[4096, 4096], [1.0, 4.0, 4.0]]
    assert selector(*points).order((2**22, 4096), EVERY)[0] == "ours"
