"""How a number of things is told, `1 row` and `2 rows`, and a text that is too long."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """one: the words for 1, such as `row`, or `row has`. many: those for all other numbers (default: one and an s)."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
