"""One author against the best library on every shape: over operators, as CUDA graphs and launched by the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelderby.catalog import Solution, Workload
from kernelderby.catalog.libraries import library_of, oldest
from kernelderby.catalog.selection import LEGS
from kernelderby.errors import DerbyError
from kernelderby.rank.field import version_of
from kernelderby.rank.lead import Lead, best_library, lead_of, of_present_code, strongest_library
from kernelderby.roofline import selection
from kernelderby.roofline.recorded import RecordedTime, RecordedTimes, recorded
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.statistics.means import geometric_mean
from kernelderby.statistics.ratio import Ratio
from kernelderby.store.fields import suggestion

KINDS = ("graph", "eager")
_Best = Mapping[str, Mapping[str, RecordedTime]]  # uuid -> author


@dataclass(frozen=True, slots=True)
class OperatorLead:
    """kinds: lead by graph and by eager time, for each kind that the author and a library share on a shape with present
    code. of_shapes: number of workloads that count. outdated: number of workloads left out because a time of the author
    or of the best library is of former code. unopposed: number of workloads left out because the library that is best
    on most of the operator's workloads, of any leg, was not measured there. failed: library -> number of workloads on
    which all of its solutions that ran failed."""

    definition: str
    of_shapes: int
    kinds: dict[str, Lead]
    outdated: int
    unopposed: int
    failed: dict[str, int]


@dataclass(frozen=True, slots=True)
class Leads:
    """One author's leads on one GPU under one protocol. operators: operators with a comparison, or with one that is
    left out. alone: definitions on which the author was measured and no library. total: the leads over all operators;
    the ratio is the geomean of the operators' geomeans, the other numbers count workloads. Empty if all times are of
    former code. versions: library in total -> the oldest version in its rows; "unknown" if a row does not name it.
    origin: the leg (selection.LEGS)."""

    gpu: str
    protocol: str
    measured_from: str
    measured_to: str
    author: str
    operators: tuple[OperatorLead, ...]
    alone: tuple[str, ...]
    total: dict[str, Lead]
    versions: dict[str, str]
    origin: str = ""


def leads(
    rows: Sequence[Measurement],
    workloads: Mapping[str, Sequence[Workload]],
    solutions: Mapping[str, Solution],
    author: str | None = None,
    gpu: str | None = None,
    protocol: str | None = None,
    origin: str = "",
    kinds: Sequence[str] = KINDS,
    elsewhere: Sequence[Measurement] = (),
) -> tuple[Leads, ...]:
    """For every GPU that has rows, the one with most shapes first, or for the named GPU; each under its newest
    protocol, or the named one. workloads: definition -> the workloads that count. author: default the author who is
    fastest on the most shapes, by graph times if there are any. origin: the leg, which the result names. kinds: the
    times to compare, of KINDS. elsewhere: rows of other legs, which also say which library is strongest. DerbyError: no
    rows, an unknown author, GPU or protocol; nothing to compare.
    """
    authors = {solution.author for solution in solutions.values()}
    if author is not None and author not in authors:
        raise DerbyError(f"--author: no solution of the set is by {author!r}; {suggestion(author, authors)}")
    groups = selection.group_rows(rows)
    if not groups:
        raise DerbyError("traces/: no recorded rows; measure with `derby bench`")
    names = [gpu] if gpu else sorted({key.gpu for key in groups if protocol in (None, key.protocol)})
    if not names:
        selection.choose_group(groups, None, protocol)  # the error lists the existing ones
    found = [
        one for name in names if (one := _leads(rows, workloads, solutions, author, name, protocol, kinds, elsewhere))
    ]
    found = [replace(one, origin=origin) for one in found]
    if not found:
        who = author or "one author"
        raise DerbyError(
            f"traces/: no shape was measured with a solution of {who} and of another library; "
            "measure both with `derby bench --together`"
        )
    return tuple(sorted(found, key=lambda each: -_shapes(each)))


def leads_on_legs(
    rows: Sequence[Measurement],
    legs: Mapping[str, Mapping[str, Sequence[Workload]]],
    solutions: Mapping[str, Solution],
    author: str | None = None,
    gpu: str | None = None,
    protocol: str | None = None,
    kinds: Sequence[str] = KINDS,
) -> tuple[Leads, ...]:
    """leads() for each measured leg (selection.LEGS -> definition -> workloads). All legs on a GPU are of the author of
    its first leg. GPU after GPU, in the order of the first leg. DerbyError if no leg was measured."""
    found: list[Leads] = []
    problem: DerbyError | None = None
    for leg in LEGS:
        if leg not in legs:
            continue
        uuids = {workload.uuid for own in legs[leg].values() for workload in own}
        own_rows = [row for row in rows if row.uuid in uuids]
        others = [row for row in rows if row.uuid not in uuids]
        for name in [gpu] if gpu else sorted({row.gpu for row in own_rows}):
            first = next((each.author for each in found if gpu or each.gpu == name), None)
            try:
                found += leads(own_rows, legs[leg], solutions, author or first, name, protocol, leg, kinds, others)
            except DerbyError as error:
                problem = problem or error
    if not found:
        raise problem or DerbyError("traces/: no recorded rows; measure with `derby bench`")
    order = {each.gpu: place for place, each in reversed([*enumerate(sorted(found, key=_weight))])}
    return tuple(sorted(found, key=lambda each: (order[each.gpu], LEGS.index(each.origin))))


def _weight(found: Leads) -> tuple[int, int]:
    return LEGS.index(found.origin), -_shapes(found)


def _shapes(found: Leads) -> int:
    return max((lead.workloads for lead in found.total.values()), default=0)


def _leads(
    rows: Sequence[Measurement],
    workloads: Mapping[str, Sequence[Workload]],
    solutions: Mapping[str, Solution],
    author: str | None,
    gpu: str,
    protocol: str | None,
    kinds: Sequence[str],
    elsewhere: Sequence[Measurement],
) -> Leads | None:
    times = {kind: recorded(rows, solutions, gpu, protocol, kind) for kind in KINDS}
    group = times["eager"].group
    best = {
        kind: {name: _best_by_author(found, solutions, workloads[name], name) for name in workloads}
        for kind, found in times.items()
    }
    author = author or _most_often_fastest(best["graph"]) or _most_often_fastest(best["eager"])
    if author is None:
        return None
    of_operators: dict[str, dict[tuple[str, str], selection.CountedRow]] = {}
    of_group = (row for row in (*rows, *elsewhere) if (row.gpu, row.protocol) == (group.gpu, group.protocol))
    for key, one in selection.newest_rows(of_group, solutions).items():
        of_operators.setdefault(one.measurement.definition, {})[key] = one
    operators = tuple(
        operator
        for name in sorted(workloads)
        if (
            operator := _operator(
                *(name, len(workloads[name]), author),
                {kind: best[kind][name] for kind in kinds},
                times["eager"].rows,
                strongest_library(author, of_operators.get(name, {}), solutions),
                solutions,
                _failed(name, workloads[name], times["eager"].rows, solutions, author),
            )
        )
    )
    compared = {operator.definition for operator in operators}
    alone = tuple(
        name
        for name in sorted(set(workloads) - compared)
        if any(author in of_shape for kind in kinds for of_shape in best[kind][name].values())
    )
    total = {kind: _over_operators([each.kinds[kind] for each in operators if kind in each.kinds]) for kind in kinds}
    uuids = {workload.uuid for name in compared for workload in workloads[name]}
    counted = [row for row in rows if row.uuid in uuids and row.protocol == group.protocol]
    moments = sorted(row.timestamp for row in counted if row.gpu == group.gpu)
    if not operators:
        return None
    return Leads(
        group.gpu,
        group.protocol,
        moments[0] if moments else "",
        moments[-1] if moments else "",
        author,
        operators,
        alone,
        {kind: lead for kind, lead in total.items() if lead},
        _versions([lead for lead in total.values() if lead], best, times["eager"].rows, solutions),
    )


def _versions(
    total: Sequence[Lead],
    best: Mapping[str, Mapping[str, _Best]],
    rows: Mapping[tuple[str, str], Measurement],
    solutions: Mapping[str, Solution],
) -> dict[str, str]:
    """Raced library -> the oldest version in its rows of present code."""
    found: dict[str, set[str]] = {who: set() for lead in total for who in lead.libraries}
    for of_kind in best.values():
        for of_definition in of_kind.values():
            for uuid, of_shape in of_definition.items():
                for who in found.keys() & of_shape.keys():
                    time = of_shape[who]
                    library = None if time.outdated else library_of(solutions[time.solution or ""])
                    if library:
                        found[who].add(version_of(rows[time.solution or "", uuid], library))
    return {who: oldest(versions) for who, versions in found.items()}


def _best_by_author(
    found: RecordedTimes, solutions: Mapping[str, Solution], workloads: Sequence[Workload], of: str
) -> _Best:
    """uuid -> author -> the shortest time of the author's solutions of a definition, former code included."""
    best: dict[str, dict[str, RecordedTime]] = {workload.uuid: {} for workload in workloads}
    for name, own in found.times.get(of, {}).items():
        for uuid, time in own.items():
            if uuid in best:
                kept = best[uuid].setdefault(solutions[name].author, time)
                if time.latency_us < kept.latency_us:
                    best[uuid][solutions[name].author] = time
    return best


def _most_often_fastest(best: Mapping[str, Mapping[str, Mapping[str, RecordedTime]]]) -> str | None:
    """The author who is fastest most often, over the shapes on which two authors were measured."""
    fastest = Counter(
        min(own, key=lambda author: (own[author].latency_us, author))
        for of_definition in best.values()
        for of_shape in of_definition.values()
        if len(own := {author: time for author, time in of_shape.items() if author != selection.BASELINE_AUTHOR}) > 1
    )
    return min(fastest, key=lambda author: (-fastest[author], author), default=None)


def _operator(
    name: str,
    of_shapes: int,
    author: str,
    best: Mapping[str, _Best],
    rows: Mapping[tuple[str, str], Measurement],
    strongest: str | None,
    solutions: Mapping[str, Solution],
    failed: dict[str, int],
) -> OperatorLead | None:
    kinds: dict[str, Lead] = {}
    outdated, unopposed = set[str](), set[str]()
    raced = {
        uuid
        for (solution, uuid), row in rows.items()
        if row.definition == name and solutions[solution].author == strongest
    }
    for kind, of_definition in best.items():
        own: dict[str, dict[str, Measurement]] = {}
        for uuid, of_shape in of_definition.items():
            every = {who: rows[time.solution or "", uuid] for who, time in of_shape.items()}
            former = {who for who, time in of_shape.items() if time.outdated}
            own[uuid] = of_present_code(author, every, kind, former)
            if author in every and best_library(author, every, kind) is not None and not own[uuid]:
                outdated.add(uuid)
            elif own[uuid] and strongest and uuid not in raced and best_library(author, own[uuid], kind):
                unopposed.add(uuid)
                own[uuid] = {}
        if found := lead_of(author, own, kind):
            kinds[kind] = found
    if not kinds and not outdated and not unopposed:
        return None
    return OperatorLead(name, of_shapes, kinds, len(outdated), len(unopposed), failed)


def _failed(
    definition: str,
    workloads: Sequence[Workload],
    rows: Mapping[tuple[str, str], Measurement],
    solutions: Mapping[str, Solution],
    author: str,
) -> dict[str, int]:
    uuids = {workload.uuid for workload in workloads}
    passed: dict[tuple[str, str], bool] = {}
    for (name, uuid), row in rows.items():
        who = solutions[name].author
        if row.is_unjudged or uuid not in uuids or row.definition != definition:
            continue
        if who not in (author, selection.BASELINE_AUTHOR):
            passed[who, uuid] = passed.get((who, uuid), False) or row.status is Status.PASSED
    return dict(sorted(Counter(who for (who, _), any_passed in passed.items() if not any_passed).items()))


def _over_operators(found: Sequence[Lead]) -> Lead | None:
    if not found:
        return None
    libraries: Counter[str] = Counter()
    for each in found:
        libraries.update(each.libraries)
    workloads, wins, ties, losses, unpaired = (
        sum(numbers)
        for numbers in zip(
            *((each.workloads, each.wins, each.ties, each.losses, each.unpaired) for each in found), strict=True
        )
    )
    return Lead(
        *(workloads, wins, ties, losses, unpaired),
        Ratio(geometric_mean([each.ratio.value for each in found])),
        least=min(each.least for each in found),
        most=max(each.most for each in found),
        libraries=dict(libraries.most_common()),
    )
