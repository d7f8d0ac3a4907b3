"""Arithmetic of axes as text: `constraints` of a definition, such as "n == 128 * num_n_blocks", and the formulas of
AXES_SPACE and of the rules for models. Nothing is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import cache
from typing import Any

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_CALLS = {"min": min, "max": max}
_GREATEST_BASE, _GREATEST_EXPONENT = 1 << 64, 8
_UNARY = {ast.USub: operator.neg, ast.Not: operator.not_}
_LONGEST = 1000  # characters: nobody writes a longer relation for readers


class NotArithmetic(Exception):
    """The text refers to more than sizes, such as the contents of a tensor, so it cannot be judged here."""


def syntax_problem(text: str) -> str | None:
    """Why the text is not an expression."""
    try:
        _parsed(text)
    except NotArithmetic as problem:
        return str(problem)
    return None


def relation_holds(text: str, sizes: Mapping[str, int]) -> bool | None:
    """Whether the relation holds for these sizes; None if it refers to anything else."""
    try:
        return bool(_value(_parsed(text).body, sizes))
    except (NotArithmetic, ZeroDivisionError, OverflowError, RecursionError):
        return None


def solved_size(text: str, name: str, sizes: Mapping[str, int]) -> int | None:
    """The size of the axis for which an equality holds; None if the text is not an equality, or not linear in that
    axis."""
    match _parsed(text).body:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            try:
                at = [_value(left, {**sizes, name: size}) - _value(right, {**sizes, name: size}) for size in (0, 1)]
                found = int(at[0] / (at[0] - at[1]))
            except (NotArithmetic, ArithmeticError, TypeError, RecursionError):
                return None
            return found if found >= 0 and relation_holds(text, {**sizes, name: found}) else None
    return None


def formula_value(text: str, sizes: Mapping[str, Any]) -> Any:
    """The value of the formula: a number or a truth value. NotArithmetic if it refers to an unknown name."""
    try:
        return _value(_parsed(text).body, sizes)
    except (ZeroDivisionError, OverflowError, RecursionError, TypeError) as error:
        raise NotArithmetic(f"{text!r:.80} gives no number ({error})") from None


@cache
def _parsed(text: str) -> ast.Expression:
    if len(text) > _LONGEST:
        raise NotArithmetic(f"is longer than {_LONGEST} characters")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotArithmetic(f"is no expression ({str(error)[:60]})") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.BinOp(op=ast.Pow()):
            base, exponent = _value(node.left, sizes), _value(node.right, sizes)
            if not (0 < base < _GREATEST_BASE and abs(exponent) <= _GREATEST_EXPONENT):
                raise NotArithmetic(f"{ast.unparse(node)} is no power of sizes")
            return base**exponent
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_], keywords=[]) if name in _CALLS:
            return _CALLS[name](*[_value(each, sizes) for each in node.args])
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(node.left, sizes), _value(node.right, sizes))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(node.operand, sizes))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, sizes) else orelse, sizes)
        case ast.BoolOp(op=op):
            values = [_value(each, sizes) for each in node.values]
            return all(values) if isinstance(op, ast.And) else any(values)
        case ast.Compare(ops=ops) if all(type(op) in _COMPARE for op in ops):
            values = [_value(each, sizes) for each in (node.left, *node.comparators)]
            pairs = zip(ops, values[:-1], values[1:], strict=True)
            return all(_COMPARE[type(op)](left, right) for op, left, right in pairs)
    raise NotArithmetic(f"{ast.unparse(node)} is no arithmetic of axes")
