"""Sizes that follow from axes: `B+1`, `D/128`, `2*T`. A contract has an axis for each, and a constraint."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelderby.catalog import constraints
from kernelderby.errors import DerbyError

_WORDS = {"+": "plus", "-": "minus", "*": "times", "//": "over", "/": "over", "%": "mod", "**": "to", ",": ""}
_TOKEN = re.compile(r"\*\*|//|\w+|[-+*/%,]")


class NoSize(Exception):
    """The formula gives no valid size for the given sizes."""


@dataclass(frozen=True, slots=True)
class Formula:
    """text: arithmetic of axes, without blanks. The result of `/` must be whole; `//` rounds down."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def axis(self) -> str:
        """The name of its axis in a contract: B_plus_1."""
        tokens = _TOKEN.findall(self.text)
        if self.factors and tokens[0].isdecimal():
            tokens.reverse()
        words = [_WORDS.get(token, token) for token in tokens]
        name = "_".join(word for word in words if word)
        return name if name.isidentifier() else f"size_{name}"

    @property
    def axes(self) -> tuple[str, ...]:
        return _axes(self.text)

    def renamed(self, names: Mapping[str, str]) -> Formula:
        return Formula(re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), self.text))

    def size(self, sizes: Mapping[str, int]) -> int:
        """The size that it gives. NoSize if that is not a whole number from 0 on."""
        try:
            found = constraints.formula_value(self.text, sizes)
        except constraints.NotArithmetic as problem:
            raise NoSize(str(problem)) from None
        if isinstance(found, bool) or found != int(found) or found < 0:
            raise NoSize(f"{self} is {found:g}, no size")
        return int(found)

    @property
    def factors(self) -> tuple[str, ...]:
        """The two factors of a product such as 2*D or D*2, in their order."""
        return tuple(self.text.split("*")) if re.fullmatch(r"\d+\*[A-Za-z_]\w*|[A-Za-z_]\w*\*\d+", self.text) else ()

    def is_same(self, other: object) -> bool:
        """Whether two formulas are the same product: 2*D and D*2 are."""
        return isinstance(other, Formula) and bool(self.factors) and sorted(self.factors) == sorted(other.factors)

    def fitted(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Axis sizes for which the formula gives at least 1: a divided axis becomes twice its divisor."""
        try:
            if self.size(sizes) > 0:
                return {}
        except NoSize:
            pass
        found: dict[str, int] = {}
        for node in ast.walk(ast.parse(self.text, mode="eval")):
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
                try:
                    divisor = Formula(ast.unparse(node.right)).size(sizes)
                except NoSize:
                    continue
                found |= dict.fromkeys(_axes(ast.unparse(node.left)), 2 * divisor)
        return found


def formula(word: str, part: str) -> Formula | int:
    """The parsed formula, or its value if it names no axis. DerbyError in one line."""
    try:
        text = ast.unparse(ast.parse(part, mode="eval")).replace(" ", "")
        axes = _axes(text)
        found = constraints.formula_value(text, dict.fromkeys(axes, 6720))  # divisible by small numbers
    except (SyntaxError, ValueError, RecursionError, MemoryError, constraints.NotArithmetic):
        found = None
    if found is None or isinstance(found, bool):
        raise DerbyError(
            f"{word!r:.80}: {part!r:.40} is no axis, number or arithmetic of them (+ - * / // % ** min max); write "
            "(D+127)//128 to round up"
        )
    made = Formula(text)
    try:
        return made if axes else made.size({})
    except NoSize as problem:
        raise DerbyError(f"{word!r:.80}: {problem}; mend it") from None


def all_sizes(sizes: Mapping[str, int], formulas: Mapping[str, Formula]) -> dict[str, int]:
    """The sizes of all axes, with those that follow by formulas. NoSize if a formula has no valid size."""
    return {**sizes, **{axis: each.size(sizes) for axis, each in formulas.items()}}


def fitted(sizes: Mapping[str, int], formulas: Iterable[Formula]) -> dict[str, int]:
    found = dict(sizes)
    for each in formulas:
        found |= each.fitted(found)
    return found


def _axes(text: str) -> tuple[str, ...]:
    nodes = [*ast.walk(ast.parse(text, mode="eval"))]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return tuple(dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name) and node not in called))
