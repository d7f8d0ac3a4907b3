"""The environments of the rows, each once: rows of one run differ only in their clocks."""

from __future__ import annotations

import json
from typing import Any

from kernelderby.page.text import words
from kernelderby.rows.measurement import Measurement

_CLOCKS = (("sm_mhz", "SM ", " MHz"), ("temperature_celsius", "", " C"), ("power_watts", "", " W"))
_DEEPEST = 20  # levels of one environment: no run writes more than three
_OF_ONE_ROW = {"clocks", "clocks_before", "seconds", "empty_kernel_us", "secret"}


class Environments:
    """A list without repetitions."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        self._known: dict[str, int] = {}  # keys in the form of the rows: nearly all rows of a session are equal

    def place(self, row: Measurement) -> int:
        """The place of the row's environment in `all`."""
        own = {name: value for name, value in row.environment.items() if name not in _OF_ONE_ROW}
        as_it_is = repr((own, row.session))
        if as_it_is not in self._known:
            self._known[as_it_is] = self._place(own, row.session)
        return self._known[as_it_is]

    def _place(self, own: dict[str, Any], session: str | None) -> int:
        found = {name: _plain(value) for name, value in own.items()}
        found |= {"session": words(session)} if session else {}
        key = json.dumps(found, sort_keys=True)
        if key not in self._places:
            self._places[key] = len(self.all)
            self.all.append(found)
        return self._places[key]


def _plain(value: Any, level: int = 0) -> Any:
    if isinstance(value, dict | list | tuple) and level == _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {words(str(name)): _plain(each, level + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, level + 1) for each in value]
    return value if isinstance(value, bool | int | float) or value is None else words(str(value))


def clocks_in_words(row: Measurement) -> str:
    """The range of a row's clocks over its rounds: "SM 1980 MHz, 39 to 41 C, 126 to 135 W"."""
    rounds = row.environment.get("clocks") or ()
    if not isinstance(rounds, list) or not all(isinstance(each, dict) for each in rounds):
        return ""
    parts = []
    for name, before, after in _CLOCKS:
        values = [each[name] for each in rounds if isinstance(each.get(name), int | float)]
        if values:
            low, high = f"{min(values):.0f}", f"{max(values):.0f}"
            parts.append(before + (low if low == high else f"{low} to {high}") + after)
    throttled = {str(reason) for each in rounds for reason in each.get("throttled_by") or ()}
    if throttled:
        parts.append("throttled by " + ", ".join(sorted(throttled)))
    return words(", ".join(parts))
