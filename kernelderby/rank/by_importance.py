"""Authors against each other over all operators at once, each operator weighted by its importance in production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelderby.catalog import Solution, Workload
from kernelderby.errors import DerbyError
from kernelderby.hardware import Gpu, find_gpu
from kernelderby.rank.order import order
from kernelderby.roofline.floors import (
    FairShare,
    OperatorShare,
    WeightedShare,
    fair_floor_us,
    fair_share,
    operator_fair_share,
    operator_share,
    share_on,
    weighted_share,
)
from kernelderby.roofline.recorded import RecordedTime, RecordedTimes
from kernelderby.roofline.selection import Group

BEST = "best of all"  # a contender that has on every shape the fastest solution of any author


@dataclass(frozen=True, slots=True)
class OperatorStanding:
    """One contender on one operator. solution: the author's solution with the best place in that operator's ranking;
    None for BEST, which has one per shape."""

    solution: str | None
    share: OperatorShare
    fair: FairShare


@dataclass(frozen=True, slots=True)
class Contender:
    """entries: operator -> its entry, for operators on which it has a row. share: S over all operators with an
    importance; fair: the same for S_fair. shapes, of_shapes: number of passed shapes, and of all shapes, of those
    operators. outdated: number of passed rows of former sources."""

    name: str
    entries: dict[str, OperatorStanding]
    share: WeightedShare
    fair: WeightedShare
    shapes: int
    of_shapes: int
    outdated: int


@dataclass(frozen=True, slots=True)
class ImportanceRanking:
    """contenders: BEST, then authors, best first (by S with missing operators as 0). operators: the set's operators
    with an importance, largest first. left_out: definitions that have rows but no importance."""

    group: Group
    other_groups: tuple[Group, ...]
    importance: dict[str, float]
    operators: tuple[str, ...]
    contenders: tuple[Contender, ...]
    left_out: tuple[str, ...]


def rank_by_importance(
    recorded: RecordedTimes,
    workloads: Mapping[str, Sequence[Workload]],
    solutions: Mapping[str, Solution],
    importance: Mapping[str, float],
) -> ImportanceRanking:
    """workloads: the workloads of every definition with an importance. DerbyError if no such operator has a row, or the
    GPU's peaks are unknown."""
    gpu = find_gpu(recorded.group.gpu)
    if gpu is None:
        raise DerbyError(
            f"--importance: the peaks of {recorded.group.gpu} are unknown, so there is no S; describe it "
            "under kernelderby/hardware/gpus/"
        )
    operators = tuple(sorted((name for name in importance if name in workloads), key=lambda name: -importance[name]))
    if not any(recorded.times.get(name) for name in operators):
        raise DerbyError(
            f"--importance: no operator that has one was measured on {recorded.group.gpu}; measure with `derby bench`"
        )
    authors = {solutions[name].author for operator in operators for name in recorded.times.get(operator, ())}
    firsts = {operator: _firsts(recorded, operator, solutions, workloads[operator]) for operator in operators}
    found = [
        _contender(
            author, {operator: firsts[operator].get(author) for operator in operators}, workloads, gpu, importance
        )
        for author in authors
    ]
    found.sort(key=lambda each: (-each.share.everywhere, each.name))
    best = {
        operator: (None, recorded.fastest(operator)) if recorded.times.get(operator) else None for operator in operators
    }
    return ImportanceRanking(
        recorded.group,
        recorded.other_groups,
        dict(importance),
        operators,
        (_contender(BEST, best, workloads, gpu, importance), *found),
        tuple(sorted(set(recorded.times) - set(operators))),
    )


def _firsts(
    recorded: RecordedTimes, operator: str, solutions: Mapping[str, Solution], workloads: Sequence[Workload]
) -> dict[str, tuple[str | None, dict[str, RecordedTime]]]:
    """Author -> the author's first solution in the operator's order (docs/scoring.md), with its times. Only authors
    with a row."""
    known = {workload.uuid: 1.0 for workload in workloads}
    times = {
        name: {uuid: time for uuid, time in own.items() if uuid in known}
        for name, own in recorded.times.get(operator, {}).items()
    }
    ordered = order({name: {uuid: time.latency_us for uuid, time in own.items()} for name, own in times.items()}, known)
    return {solutions[name].author: (name, times[name]) for name in reversed(ordered)}


def _contender(
    name: str,
    chosen: Mapping[str, tuple[str | None, dict[str, RecordedTime]] | None],
    workloads: Mapping[str, Sequence[Workload]],
    gpu: Gpu,
    importance: Mapping[str, float],
) -> Contender:
    entries = {
        operator: OperatorStanding(
            each[0], _share(each[1], workloads[operator], gpu), _fair_share(each[1], workloads[operator], gpu)
        )
        for operator, each in chosen.items()
        if each
    }
    times = [
        each[1][workload.uuid]
        for operator, each in chosen.items()
        if each
        for workload in workloads[operator]
        if workload.uuid in each[1]
    ]
    return Contender(
        name,
        entries,
        weighted_share({operator: entry.share for operator, entry in entries.items()}, importance),
        weighted_share({operator: entry.fair for operator, entry in entries.items()}, importance),
        shapes=len(times),
        of_shapes=sum(map(len, workloads.values())),
        outdated=sum(time.outdated for time in times),
    )


def _share(times: Mapping[str, RecordedTime], workloads: Sequence[Workload], gpu: Gpu) -> OperatorShare:
    """S of every shape that has a time, a cost and a peak for each dtype in it."""
    return operator_share(
        [
            share_on(gpu, workload.cost, time.latency_us, time.in_place) if (time := times.get(workload.uuid)) else None
            for workload in workloads
        ]
    )


def _fair_share(times: Mapping[str, RecordedTime], workloads: Sequence[Workload], gpu: Gpu) -> FairShare:
    """S_fair of every shape that has a time, a cost and an empty kernel's time in its session."""
    shares: list[float | None] = []
    for workload in workloads:
        time = times.get(workload.uuid)
        if time is None:
            shares.append(None)
            continue
        floor_us = fair_floor_us(gpu, workload.cost, time.empty_kernel_us, time.in_place)
        shares.append(fair_share(floor_us, time.latency_us))
    return operator_fair_share(shares)
