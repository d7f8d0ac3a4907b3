"""Copies that a form of an operator adds to a solution's recorded time, because of its memory.

A solution that updates its inputs gets a copy of them in the functional and the `_out` form; one that writes new
outputs has them copied into the inputs in the `_` form. Our kernels get a copy of a tensor that is not contiguous; an
engine's own kernels take it as it is. Rows time a solution without these copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import torch

POOL_US = 1e9  # of a copy back into a pool, whose size no point holds: never for an update of some slots


def with_copies(
    about: Mapping[str, Any], gpu: Mapping[str, Any], in_place: bool, slices: Collection[str] = ()
) -> list[list[Any]]:
    """The points of operators.json, each time with the copies of that form. gpu: bytes_per_us of its memory, and
    launch_us, the time of a kernel in a graph that moves next to nothing, without the gap before it, which no row
    holds. slices: inputs that are not contiguous."""
    found = []
    for sizes, times in about["points"]:
        axes = {**about["constants"], **dict(zip(about["axes"], sizes, strict=True))}
        more = [
            _outputs(about, own["in_place"], axes, gpu, in_place)
            + sum(_copy(about["inputs"][name], axes, gpu, POOL_US) for name in slices if own["kind"] == "own")
            for own in about["solutions"].values()
        ]
        found.append([sizes, [us and us + extra for us, extra in zip(times, more, strict=True)]])
    return found


def _outputs(
    about: Mapping[str, Any], own: Mapping[str, str], axes: Mapping[str, int], gpu: Mapping[str, Any], in_place: bool
) -> float:
    """us. own: output -> input of the solution, whose memory it writes."""
    total = 0.0
    for name, spec in about["outputs"].items():
        shared = about["in_place"].get(name) if in_place else None
        count = int(name in own) if shared is None else int(own.get(name) != shared) * (1 + (name in own))
        total += count * _copy(spec, axes, gpu, POOL_US if in_place else 0.0)
    return total


def _copy(spec: Mapping[str, Any], axes: Mapping[str, int], gpu: Mapping[str, Any], of_pool: float) -> float:
    """us."""
    if not set(spec["shape"]) <= set(axes):
        return of_pool
    size = prod(axes[axis] for axis in spec["shape"]) * getattr(torch, spec["dtype"]).itemsize
    return float(gpu["launch_us"] + 2 * size / gpu["bytes_per_us"])
