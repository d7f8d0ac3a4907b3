"""The gain of the whole pipeline if one stage runs faster: Amdahl's law over the shares of a Pipeline.

Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", AFIPS 1967: with a
stage at share p of the time, k times faster, the whole is 1 / (1 - p + p / k) times faster, at most 1 / (1 - p). Kernel
time only, without launches. If kernels overlap, a stage's time is its added time (StageRow.added_ns).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelderby.errors import DerbyError
from kernelderby.profile.stages.walk import NOT_ITEMISED, TOGETHER, Pipeline
from kernelderby.rows.measurement import Stage

SPEEDUPS = (1.2, 2.0)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One stage. speedups: of the pipeline, for each requested factor. floor_us: of one invocation, None if unknown.
    at_floor: the pipeline's speedup with the stage at its floor; gone: with the stage free. floor_share: floor over
    measured time; above 1 the floor or the measurement is wrong."""

    stage: str
    title: str
    time_ns: float
    share: float
    speedups: tuple[float, ...]
    gone: float
    floor_us: float | None = None
    floor_share: float | None = None
    at_floor: float | None = None


@dataclass(frozen=True, slots=True)
class WhatIfs:
    """stages: the most worthwhile first. bound: the pipeline's speedup if everything except `largest` were free."""

    pipeline: Pipeline
    factors: tuple[float, ...]
    stages: tuple[WhatIf, ...]
    largest: str | None
    bound: float | None


def amdahl(share: float, factor: float) -> float:
    """Speedup of the whole when a share of its time runs `factor` times faster; infinity for factor and share alike.

    amdahl(0.086, 2) == 1.045: an 8.6 % kernel at twice its speed makes the whole 4.5 % faster.
    """
    rest = 1 - share + (share / factor if factor != float("inf") else 0)
    return 1 / rest if rest > 0 else float("inf")


def time_saved(speedup: float) -> float:
    """Share of the time that a speedup takes away: 1.045 saves 4.3 %. Documents often confuse this with the gain of 4.5
    %."""
    return 1 - 1 / speedup


def whatif(
    pipeline: Pipeline, factors: Sequence[float] = SPEEDUPS, floors_us: Mapping[str, float] | None = None
) -> WhatIfs:
    """floors_us: stage -> its minimum time in one invocation; "K3 / K5" gives the floor of several stages together,
    which then share a row. DerbyError for a stage that the profile lacks.

    Sorted by the gain that is within reach: at the floor where one is known, otherwise at the largest factor.
    """
    floors_us = dict(floors_us or {})
    rows = [row for row in pipeline.stages if row.total_ns > 0 and row.name != NOT_ITEMISED]
    known = {row.name for row in rows}
    for name in floors_us:
        if missing := [part for part in name.split(TOGETHER) if part not in known and name not in known]:
            raise DerbyError(
                f"{pipeline.profile}: no stage {', '.join(missing)} to give a floor; "
                f"there are {', '.join(row.name for row in rows) or 'none'}"
            )
    found = [
        _one(pipeline, row.name, row.title, pipeline.time_ns(row), tuple(factors), floors_us.get(row.name))
        for row in rows
    ]
    for name in floors_us:
        if name not in known:
            parts = [row for row in rows if row.name in name.split(TOGETHER)]
            found.append(
                _one(pipeline, name, "together", sum(map(pipeline.time_ns, parts)), tuple(factors), floors_us[name])
            )
    found.sort(key=lambda one: (-_within_reach(one), -one.time_ns, one.stage))
    largest = max(rows, key=pipeline.time_ns, default=None)
    bound = pipeline.cost_ns / pipeline.time_ns(largest) if largest else None
    return WhatIfs(pipeline, tuple(factors), tuple(found), largest.name if largest else None, bound)


def rows_of_role(pipeline: Pipeline, stages: Sequence[Stage], role: str) -> list[str]:
    """Names of the pipeline's rows that took time and whose stages all have the role. "K3 / K5" has two stages."""
    names = {stage.name for stage in stages if stage.role == role}
    return [row.name for row in pipeline.stages if row.total_ns > 0 and set(row.name.split(TOGETHER)) <= names]


def _one(
    pipeline: Pipeline, name: str, title: str, time_ns: float, factors: tuple[float, ...], floor_us: float | None
) -> WhatIf:
    share = time_ns / pipeline.cost_ns
    speedups = tuple(amdahl(share, factor) for factor in factors)
    gone = amdahl(share, float("inf"))
    if floor_us is None or not pipeline.invocations:
        return WhatIf(name, title, time_ns, share, speedups, gone)
    floor_share = floor_us / (time_ns / pipeline.invocations / 1e3)
    at_floor = amdahl(share, max(1.0, 1 / floor_share) if floor_share else float("inf"))
    return WhatIf(name, title, time_ns, share, speedups, gone, floor_us, floor_share, at_floor)


def _within_reach(one: WhatIf) -> float:
    if one.at_floor is not None:
        return one.at_floor
    return one.speedups[-1] if one.speedups else one.gone
