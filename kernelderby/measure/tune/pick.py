"""Makes a table from times: for each tuning key the configuration with the least geometric mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelderby.measure.wire.replies import Config
from kernelderby.statistics.means import geometric_mean

TIE = 1.01  # minimum gain over the heuristic's configuration, which is known to be sane at every size


def config_text(config: Config) -> str:
    """The text of a configuration. Two configurations are equal if their texts are."""
    return json.dumps(config, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload. times_us: text of a configuration -> its time, without wrong and failed ones. heuristic: text of
    the first candidate. chosen: text of the configuration that run() uses, if the solution tells it."""

    workload: str
    key: str
    times_us: dict[str, float]
    heuristic: str
    chosen: str | None = None


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """The choice for a key. config: None if the table leaves the key to the heuristic. us: geometric mean of the chosen
    configuration's times over the key's workloads. gain: the heuristic's time over us; None if a heuristic's choice
    failed."""

    key: str
    workloads: int
    config: Config | None
    us: float | None
    gain: float | None
    note: str = ""


def pick(measured: Iterable[Measured]) -> list[KeyChoice]:
    """One choice per key, sorted by key."""
    by_key: dict[str, list[Measured]] = {}
    for one in measured:
        by_key.setdefault(one.key, []).append(one)
    return [_choice(key, rows) for key, rows in sorted(by_key.items())]


def _choice(key: str, rows: Sequence[Measured]) -> KeyChoice:
    everywhere = [text for text in rows[0].times_us if all(text in row.times_us for row in rows)]
    heuristics_us = [row.times_us[row.heuristic] for row in rows if row.heuristic in row.times_us]
    heuristic_us = geometric_mean(heuristics_us) if len(heuristics_us) == len(rows) else None
    if not everywhere:
        note = "no configuration ran on all of its workloads"
        return KeyChoice(key, len(rows), None, heuristic_us, 1.0 if heuristic_us else None, note)
    times = {text: geometric_mean([row.times_us[text] for row in rows]) for text in everywhere}
    best = min(everywhere, key=lambda text: times[text])  # the first one of equals
    if heuristic_us is None:
        return KeyChoice(key, len(rows), json.loads(best), times[best], None, "the heuristic's choice failed")
    if heuristic_us > TIE * times[best]:
        return KeyChoice(key, len(rows), json.loads(best), times[best], heuristic_us / times[best])
    heuristics = {row.heuristic for row in rows}
    if len(heuristics) > 1:
        return KeyChoice(key, len(rows), None, heuristic_us, 1.0, "the heuristic's, which differ by workload")
    return KeyChoice(key, len(rows), json.loads(heuristics.pop()), heuristic_us, 1.0, "the heuristic's")
