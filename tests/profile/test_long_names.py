"""Profiles with many long template names: the work grows with the names, and few rules are searched in each."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest

from kernelderby.api.profile_file import open_profile_file
from kernelderby.profile.kernels.attribution import attribute, first_match, last_rules, rules, table
from kernelderby.profile.kernels.needles import alternatives, needles
from kernelderby.profile.names import normal_form, short_name
from tests.capture.kineto import Trace
from tests.profile.make_nsys import Export

NAMES = Path(__file__).parents[1] / "data" / "profile" / "kernel_names.csv"
TABLES = [rules(), last_rules(), *map(table, ("role", "dtype", "architecture"))]


def long_name(number, letters=1000):
    head = f"void project::detail::fused_{number}<project::Policy<cutlass::bfloat16_t, {number}>, "
    part = f"cute::tuple<cute::C<{number % 128}>, cutlass::layout::RowMajor, (int){number % 7}>, "
    tail = "std::integral_constant<bool, true> >(project::Params<float, 4>, int)"
    return head + part * ((letters - len(head) - len(tail)) // len(part)) + tail


def kineto(path, names):
    trace = Trace()
    for name in names:
        trace.operator("aten::mm", [], trace.kernel(name))
    return trace.write(path.with_suffix(".json"))


def nsys(path, names):
    with Export(path.with_suffix(".sqlite")) as export:
        for place, name in enumerate(names):
            export.kernel(name, 1000 + 2000 * place, 2000 + 2000 * place)
    return path.with_suffix(".sqlite")


def lines_run(function):
    """The number of lines of Python that a call runs: the same on every machine."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def searches(function):
    """The number of searches for a regular expression that a call makes."""
    count, before = 0, sys.getprofile()

    def profile(_, event, called):
        nonlocal count
        count += event == "c_call" and called.__name__ == "search"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("make", [kineto, nsys])
def test_the_work_grows_with_the_names_and_not_with_their_square(make, tmp_path):
    def read(first, count):
        path = make(tmp_path / str(first), map(long_name, range(first, first + count)))
        return lines_run(lambda: open_profile_file(path).kernel_table())

    read(1000, 40)  # imports and the rules
    assert read(3000, 320) < 12 * read(2000, 40)


def test_the_work_grows_with_the_letters_and_not_with_their_square():
    def read(number, letters):
        name = long_name(number, letters)
        return lines_run(lambda: (short_name(name), attribute(name)))

    read(4000, 1000)
    assert read(4002, 16_000) < 24 * read(4001, 1000)


def test_few_rules_are_searched_in_a_name():
    attribute(long_name(5000))
    assert sum(map(len, TABLES)) > 350
    assert searches(lambda: [attribute(long_name(number)) for number in range(5001, 5011)]) < 10 * 60


def test_the_needles_leave_out_no_rule_that_matches():
    with NAMES.open(encoding="utf-8", newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    examples = [example for each in TABLES for rule in each for example in rule.examples]
    for name in map(normal_form, [*names, *examples, "ÅKernel<ſoftmax>"]):
        for each in TABLES:
            found = first_match(each, name)
            wanted = next((rule.id for rule in each if rule.pattern.search(name)), None)
            assert (found and found[0].id) == wanted, name


@pytest.mark.parametrize(
    "pattern, found",
    [
        (r"^softmax", {"softmax"}),
        (r"[sS]oft_?[mM]ax\w*", {"soft", "max"}),
        (r"(?i:Norm)|\bROPE", {"norm|rope"}),
        (r"(?:abc)?de(?:gh)+f", {"de", "gh"}),
        (r"gemm(?!lora)(?:xy){2}", {"gemm", "xy"}),
        (r"ab|\d+", set()),
        (r"a::bc", {"bc"}),
        (r"a|bc", set()),
    ],
)
def test_needles(pattern, found):
    assert {"|".join(sorted(each)) for each in needles(pattern)} == found


@pytest.mark.parametrize(
    "pattern, found",
    [
        (r"a|(?:b|c)|d", ["a", "(?:b|c)", "d"]),
        (r"\||[|][]|][^]|]|e", [r"\|", "[|][]|][^]|]", "e"]),
        (r"[a[]|[\]|]|\(|b", ["[a[]", r"[\]|]", r"\(", "b"]),
    ],
)
def test_alternatives(pattern, found):
    assert alternatives(pattern) == found
    assert all(map(re.compile, found))
    assert alternatives(f"(?x){pattern}", re.VERBOSE) == [f"(?x){pattern}"]
