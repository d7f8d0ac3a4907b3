"""Assigns each kernel of a stream to a step and a layer, by the cheapest walk around the layer map.

A stream's kernels in order are read as passes over the map's steps, first to last and round again. The walk tells
kernels of one name apart, such as the seven fp8 GEMMs in a DeepSeek layer. Leaving out optional steps is free, required
ones cost JUMP plus one each (up to FAR), and leaving a kernel unattributed costs STRAY. The cheapest walk is found by
dynamic programming over "the step that was matched last". Costs are small integers relative to the best and cut off
above it, so layers that repeat bring the same cost vectors back: each (vector, candidates) is worked out once and a
long profile costs one dictionary lookup a kernel.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from kernelderby.profile.layers.map import LayerMap

JUMP, FAR, STRAY = 3, 4, 8  # STRAY above JUMP + FAR: a lone kernel of a side stream is matched, layer after layer
LEAST_SHARE = 0.25  # of the stream's median layer; kernels elsewhere may resemble a shorter pass
NOWHERE = -1


@dataclass(slots=True)
class LayerWalk:
    """For each kernel its step (NOWHERE: unattributed), and the number of its pass over the map, counted from 0.

    Unattributed kernels between two kernels of one pass have its number: they run inside a layer.
    """

    steps: array[int]
    passes: array[int]


@dataclass
class Matcher:
    """Feed one stream's kernels in order, then ask for the walk. One matcher serves all streams in turn."""

    layer_map: LayerMap
    _jumps: list[list[int]] = field(init=False)
    _moves: dict[tuple[bytes, tuple[int, ...]], int] = field(default_factory=dict)  # (costs, candidates) -> move
    # Of each move the costs after it, a byte a step, and the step before it, ~step where the kernel is left out.
    _table: list[tuple[bytes, array[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._jumps = _jump_costs(self.layer_map)

    def walk(self, candidates: Sequence[tuple[int, ...]]) -> LayerWalk:
        """candidates: per kernel the steps that it may be (LayerMap.candidates), in order of start."""
        costs = bytes(not self.layer_map.usual(step.line[0]) for step in self.layer_map.steps)
        moves = array("l")
        for options in candidates:
            if not options:  # unattributed, wherever the walk is
                moves.append(NOWHERE)
                continue
            move = self._moves.get((costs, options))
            if move is None:
                move = self._moves[costs, options] = len(self._table)
                self._table.append(self._move(costs, options))
            moves.append(move)
            costs = self._table[move][0]
        return self._trace(moves, costs)

    def _move(self, costs: bytes, options: tuple[int, ...]) -> tuple[bytes, array[int]]:
        after = [cost + STRAY for cost in costs]
        previous = [~step for step in range(len(costs))]
        for step in options:
            cost, origin = min((cost + self._jumps[origin][step], origin) for origin, cost in enumerate(costs))
            if cost <= after[step]:
                after[step], previous[step] = cost, origin
        least = min(after)
        limit = JUMP + FAR + 2  # from the best step any other is reached for less
        return bytes(min(cost - least, limit) for cost in after), array("h", previous)

    def _trace(self, moves: array[int], costs: bytes) -> LayerWalk:
        """Backwards along the cheapest walk, then forwards to number the passes."""
        steps = array("l", [NOWHERE]) * len(moves)
        at = costs.index(min(costs))
        for index in range(len(moves) - 1, -1, -1):
            if moves[index] == NOWHERE:
                continue
            origin = self._table[moves[index]][1][at]
            if origin >= 0:
                steps[index] = at
                at = origin
        return _numbered(steps, self.layer_map)


def _jump_costs(layer_map: LayerMap) -> list[list[int]]:
    """[from][to]: the cost of the required steps in between, going round. After a group that replaces others, the
    replaced steps are not missing, unless the walk continues in one of them. Entering such a group costs one. So
    kernels that both kinds of layer have (a shared expert's, on a side stream) count as the usual layer's.
    """
    steps = layer_map.steps
    count = len(steps)
    costs = []
    for origin in range(count):
        row, skipped, replaced = [0] * count, 0, 0
        group = layer_map.groups[steps[origin].line[0]]
        for distance in range(1, count + 1):
            step = (origin + distance) % count
            name = steps[step].line[0]
            missing = skipped + (replaced if name in group.instead_of else 0)
            row[step] = JUMP + min(missing, FAR) if missing else 0
            row[step] += (name != group.name or step <= origin) and not layer_map.usual(name)
            if name in group.instead_of:
                replaced += not steps[step].optional
            else:
                skipped += not steps[step].optional
        if steps[origin].repeat:
            row[origin] = 0
        costs.append(row)
    return costs


def _numbered(steps: array[int], layer_map: LayerMap) -> LayerWalk:
    passes = array("l", [NOWHERE]) * len(steps)
    number, last, since = NOWHERE, len(layer_map.steps), 0
    sizes: list[int] = []
    for index, step in enumerate(steps):
        if step == NOWHERE:
            continue
        if step < last or (step == last and not layer_map.steps[step].repeat):
            number += 1
            sizes.append(0)
        else:
            for between in range(since, index):
                passes[between] = number
        passes[index] = number
        sizes[number] += 1
        last, since = step, index + 1
    return _without_fragments(LayerWalk(steps, passes), sizes)


def _without_fragments(walk: LayerWalk, sizes: list[int]) -> LayerWalk:
    """Removes passes far shorter than the stream's median pass: they are no layers, and their kernels become
    unattributed."""
    least = LEAST_SHARE * median(sizes) if sizes else 0
    if all(size >= least for size in sizes):
        return walk
    for index, number in enumerate(walk.passes):
        if number != NOWHERE and sizes[number] < least:
            walk.steps[index] = walk.passes[index] = NOWHERE
    return walk
