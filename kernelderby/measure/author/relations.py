"""Sizes of an example that a function accepts only together: B and B + 1, D and D / 128, T, K and T * K."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from kernelderby.authoring.formulas import Formula, NoSize

_MOST_RUNS = 200  # calls of the function, over all bases
Runs = Callable[[Mapping[int, int]], bool]


def related(tied: Sequence[int], sizes: Mapping[int, int], runs: Runs) -> tuple[set[int], dict[int, Formula]]:
    """Axes that vary together: the free ones, and formulas for those that follow, over the names of axis_name(). tied:
    axes that the function accepts only at the example's size by itself. runs: whether the function accepts given other
    sizes. The function must run with every free axis at two other sizes, and with all of them changed at once."""
    left = [_MOST_RUNS]

    def tried(changed: Mapping[int, int]) -> bool:
        left[0] -= 1
        return left[0] >= 0 and runs(changed)

    free, follows = set[int](), dict[int, Formula]()
    for base in sorted(tied, key=lambda axis: sizes[axis]):
        if base in follows:
            continue
        found = _followers(base, [axis for axis in tied if axis != base], sizes, tried)
        merged = {axis: _merged(axis, each, follows, sizes) for axis, each in found.items()}
        if found and not free & found.keys() and all(merged.values()):
            free.add(base)
            follows |= {axis: each for axis, each in merged.items() if each}
    for factors in ((2, 3), (3, 2)):
        changed = {axis: sizes[axis] * factors[place % 2] for place, axis in enumerate(sorted(free))}
        if free and not tried(_all(changed, follows, sizes)):
            return set(), {}
    return free, follows


def axis_name(axis: int) -> str:
    return f"axis{axis}"


def _followers(base: int, others: Sequence[int], sizes: Mapping[int, int], tried: Runs) -> dict[int, Formula]:
    """The fewest axes that must follow this axis, with their formulas."""
    choices = [[None, *_formulas(base, other, sizes)] for other in others]
    for combination in sorted(itertools.product(*choices), key=lambda each: sum(one is not None for one in each)):
        chosen = {axis: each for axis, each in zip(others, combination, strict=True) if each is not None}
        if all(tried(_all({base: sizes[base] * factor}, chosen, sizes)) for factor in (2, 3)):
            return chosen
    return {}


def _formulas(base: int, other: int, sizes: Mapping[int, int]) -> Iterator[Formula]:
    one, two, name = sizes[base], sizes[other], axis_name(base)
    if one and two % one == 0:
        yield Formula(f"{name}*{two // one}" if two > one else name)
    if two and one % two == 0 and one > two:
        yield Formula(f"{name}/{one // two}")
    if one != two:
        yield Formula(f"{name}{two - one:+d}")


def _merged(axis: int, formula: Formula, follows: Mapping[int, Formula], sizes: Mapping[int, int]) -> Formula | None:
    """The formula of an axis that follows two axes: their product or their sum; None if it is neither."""
    if axis not in follows:
        return formula
    first, second = follows[axis].axes, formula.axes
    if len(first) > 1:
        return None
    by = {axis_name(each): sizes[each] for each in sizes}
    for sign in "*+":
        whole = Formula(f"{first[0]}{sign}{second[0]}")
        parts = Formula(f"{first[0]}{sign}{by[second[0]]}"), Formula(f"{second[0]}{sign}{by[first[0]]}")
        if parts == (follows[axis], formula):
            return whole
    return None


def _all(changed: Mapping[int, int], follows: Mapping[int, Formula], sizes: Mapping[int, int]) -> dict[int, int]:
    named = {axis_name(axis): size for axis, size in {**sizes, **changed}.items()}
    found = dict(changed)
    for axis, each in follows.items():
        try:
            found[axis] = each.size(named)
        except NoSize:
            continue
    return found
