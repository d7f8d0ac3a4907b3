"""A solution on one workload, and its results so far."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from typing import Any

from kernelderby.catalog import Solution
from kernelderby.measure.judge.doubt import Claims, Judged, witnessed
from kernelderby.measure.judge.race import Race, Turn
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.rows.measurement import Correctness


@dataclass(slots=True)
class Racer:
    """A solution on one workload: its worker, and its results so far. times: kind -> rounds -> one span per call."""

    solution: Solution
    worker: WorkerProcess
    iterations: int = 0
    correctness: Correctness | None = None
    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    host_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    judge_us: dict[str, float] = field(default_factory=dict)  # kind -> time of a call by the judge's clock
    judge_unsure_us: dict[str, float] = field(default_factory=dict)  # kind -> uncertainty of that time
    clocks: list[dict[str, Any]] = field(default_factory=list)  # before the first turn, then after each
    graph_missing: str = ""
    seconds: float = 0.0  # taken by this solution alone
    secret: str = ""  # of the workload
    draw: int = 0  # of its contents: its number among the solutions of its author
    judged: Race | None = None  # None until it is prepared

    @property
    def race(self) -> Race:
        if self.judged is None:
            raise RuntimeError(f"{self.solution.name} is not prepared yet")
        return self.judged

    def release(self) -> None:
        """Gives the judge's memory back."""
        if self.judged is not None:
            self.judged.release()

    def add(self, turn: Turn, outputs: int) -> None:
        """outputs: the definition's number of outputs; a solution that returns its outputs leaves them to be copied.
        Wrong if a round has no witness."""
        copies = 0 if self.solution.destination_passing_style else outputs
        eager = witnessed(turn.eager, copies)
        graph = witnessed(turn.graph, copies) if turn.graph else None
        for kind, spans in (
            ("eager", eager.spans_us),
            ("busy", eager.busy_us),
            ("graph", graph.spans_us if graph else []),
        ):
            if spans:
                self.times.setdefault(kind, []).append(tuple(round(span, 3) for span in spans))
        self.host_us += turn.eager.host_us
        self.wall_us += turn.eager.wall_us
        known = set(map(_kind, self.notes))  # a worker says the same of every round, or spells with its numbers
        for note in [*eager.notes, *(f"graph: {note}" for note in (graph.notes if graph else []))]:
            if _kind(note) not in known:
                known.add(_kind(note))
                self.notes.append(note)

    @property
    def claims(self) -> Claims:
        return Claims(
            {kind: _median(self.times[kind]) for kind in ("eager", "graph") if kind in self.times},
            statistics.median(self.host_us),
        )

    def accept(self, judged: Judged) -> None:
        """If the judge's clock gives a longer time than the claim, its time counts; the samples keep their ratios."""
        if judged.graph_missing:
            self.times.pop("graph", None)
            self.graph_missing = judged.graph_missing
        self.judge_unsure_us |= {kind: round(each.unsure_us, 3) for kind, each in judged.relayed.items()}
        for kind, clocked in judged.clocked.items():
            self.judge_us[kind] = round(clocked.call_us, 3)
            if clocked.short_us:
                claimed = _median(self.times[kind])
                factor = clocked.call_us / claimed
                self.times[kind] = [tuple(round(span * factor, 3) for span in spans) for spans in self.times[kind]]
                if kind == "eager":  # the host's clock around the same calls
                    self.wall_us = [wall * factor for wall in self.wall_us]
                self.notes.append(
                    f"{kind}: {clocked.call_us:.1f} us a call by the judge's clock, which counts; its process's timer "
                    f"says {claimed:.1f} us"
                )

    def compared(self, kind: str) -> list[tuple[float, ...]]:
        return self.times.get(kind, [])


def _kind(note: str) -> str:
    """A note without its numbers and quotations."""
    return re.sub("\x02[^\x03]*\x03|\\d+", "", note)


def first_two(racers: list[Racer]) -> tuple[list[Racer], str]:
    """The two leading racers, and the kind of time that decides: graph if two or all have it, otherwise eager."""
    with_graph = [racer for racer in racers if "graph" in racer.times]
    kind = "graph" if with_graph and len(with_graph) >= min(2, len(racers)) else "eager"
    leading = sorted(with_graph if kind == "graph" else racers, key=lambda racer: _median(racer.compared(kind)))
    return leading[:2], kind


def _median(rounds: list[tuple[float, ...]]) -> float:
    return statistics.median([span for spans in rounds for span in spans])
