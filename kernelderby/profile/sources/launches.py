"""The host's launches in a Kineto trace with the framework's operators around them, and the captured graphs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelderby.profile.operators import (
    CapturedGraph,
    CapturedLaunch,
    LaunchOrigin,
    OperatorCall,
    OperatorStacks,
    operands_of,
)

_GRAPH = re.compile(r"^(?:cuda|hip|cu)\w*GraphLaunch")
_BEGIN = re.compile(r"^(?:cuda|hip|cu)\w*StreamBeginCapture")
_END = re.compile(r"^(?:cuda|hip|cu)\w*StreamEndCapture")
_LAUNCH = re.compile(r"^(?:cuda|hip|cu)\w*(?:LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async)")


class HostOperators:
    """Takes the host's events in any order. Keeps nothing unless operators are wanted."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._stacks = OperatorStacks()
        self._graphs: dict[Any, int] = {}  # correlation -> number of the launch
        self._launches: dict[Any, list[tuple[int, str, dict[str, Any]]]] = {}

    def take(self, place: Any, name: str, start: int, duration: int, args: dict[str, Any]) -> None:
        """A framework's operator on a thread."""
        call = OperatorCall(name, operands_of(args), start, start + duration)
        self._stacks.take(place, call, args.get("External id", args.get("external id")))

    def launched(self, place: Any, name: str, start: int, args: dict[str, Any]) -> None:
        """A call of the runtime's or driver's API."""
        if not self.is_wanted:
            return
        if _GRAPH.match(name):
            self._graphs.setdefault(args.get("correlation"), len(self._graphs))
        elif _LAUNCH.match(name) or _BEGIN.match(name) or _END.match(name):
            self._launches.setdefault(place, []).append((start, name, args))

    def issued(self, args: Mapping[str, Any], launch: Sequence[Any] | None) -> LaunchOrigin:
        """The origin of GPU work with these arguments. launch: (start, process, thread, ...) of its call."""
        if not self.is_wanted:
            return LaunchOrigin()
        chain = self._stacks.chain((launch[1], launch[2]), launch[0]) if launch else ()
        chain = chain or self._stacks.chain_of(args.get("External id", args.get("external id")))
        return LaunchOrigin(chain, self._graphs.get(args.get("correlation")), _grid(args))

    def captured_graphs(self, ranges: Mapping[Any, Sequence[tuple[int, int, str]]]) -> list[CapturedGraph]:
        """ranges: thread -> its ranges (start, end, name)."""
        found = []
        for place, launches in self._launches.items():
            current: list[CapturedLaunch] | None = None
            began, last = 0, None
            for start, name, args in sorted(launches, key=lambda each: each[0]):
                if _BEGIN.match(name):
                    current, began = [], start
                elif _END.match(name):
                    if current:
                        around = sorted(each for each in ranges.get(place, ()) if each[0] <= began <= each[1])
                        found.append(CapturedGraph(tuple(current), tuple(each[2] for each in around)))
                    current = None
                elif current is not None and (args.get("correlation") is None or args.get("correlation") != last):
                    last = args.get("correlation")  # the driver's call inside the runtime's call has the same id
                    kernel = args.get("kernel") if isinstance(args.get("kernel"), str) else None
                    shown = kernel or (None if "Kernel" in name else name)
                    current.append(CapturedLaunch(self._stacks.chain(place, start), shown, _grid(args)))
        return found


def _grid(args: Mapping[str, Any]) -> tuple[int, ...] | None:
    grid = args.get("grid")
    whole = isinstance(grid, list) and all(type(each) is int for each in grid)
    return tuple(grid) if whole and isinstance(grid, list) else None
