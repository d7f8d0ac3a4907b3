"""The recorded times of each operator on one GPU, by which a package chooses solutions; and the loss of that choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.constraints import solved_size
from kernelderby.catalog.libraries import library_of
from kernelderby.catalog.selection import SCORED
from kernelderby.catalog.traces import fresh_workloads
from kernelderby.deploy.runtime.selector import Selector
from kernelderby.errors import DerbyError
from kernelderby.roofline.recorded import RecordedTimes, recorded
from kernelderby.roofline.selection import BASELINE_AUTHOR
from kernelderby.rows.measurement import Measurement

FRESH = "fresh"  # the origin of shapes that no file lists
KIND = "graph"  # the kind of times: servers replay graphs
KINDS = ("own", "library", "plain")  # of solutions, see kind_of()
POOLS = {
    "num_blocks": ("block_table", "slot_mapping"),
    "state_count": ("initial_state_indices",),
}  # axis -> its indices
_SOME_SIZE = 1 << 13  # any size of an axis, to test whether a constraint determines another axis


@dataclass(frozen=True, slots=True)
class TimedShape:
    """sizes: the sizes of choosing_axes(), in their order. us: solution -> time. origin: the origin of its workload."""

    sizes: tuple[int, ...]
    us: dict[str, float]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class HeldOutShapes:
    """The shapes of one origin, for which the shapes of all other origins choose. mean: mean loss; None without shapes
    at which the chosen solution has a time. untimed: number of the other shapes. outside: number of shapes outside the
    measured region, where libraries run. twins: number of shapes at sizes that the others measured too, with other
    contents such as routings."""

    shapes: int
    mean: float | None
    untimed: int
    outside: int
    twins: int


@dataclass(frozen=True, slots=True)
class ChoiceLoss:
    """By how much longer the chosen solution took than the fastest, as a share. Each shape is left out in turn, so that
    the choice does not know it. inside: number of shapes inside the region of the others; mean and worst are their
    losses. outside: number of shapes outside, where libraries run; outside_mean is their mean loss. The losses are None
    without shapes. untimed: number of further shapes, at which the chosen solution has no time. held_out: origin -> its
    shapes, except published ones. Shapes of the origin "fresh" never choose."""

    inside: int
    mean: float | None
    worst: float | None
    outside: int
    outside_mean: float | None
    untimed: int
    held_out: dict[str, HeldOutShapes]


@dataclass(frozen=True, slots=True)
class Winners:
    """The winners of one operator. solutions: the solutions in the package: our own, then libraries, then plain torch.
    fastest: solution -> number of shapes on which it is fastest. left_out: solution that does not take part -> why."""

    definition: Definition
    solutions: tuple[Solution, ...]
    shapes: tuple[TimedShape, ...]
    fastest: dict[str, int]
    loss: ChoiceLoss
    left_out: dict[str, str]

    def data(self) -> dict[str, Any]:
        """The data for Selector, and for running the solutions."""
        return {
            "axes": choosing_axes(self.definition),
            "solutions": {each.name: _about(each) for each in self.solutions},
            "points": [[list(each.sizes), [each.us.get(one.name) for one in self.solutions]] for each in self.shapes],
        }


@dataclass(frozen=True, slots=True)
class AllWinners:
    """gpus: the GPU's names in the rows, the most frequent one first. measured: first and last day. skipped: definition
    -> why it has no winners."""

    gpus: tuple[str, ...]
    protocol: str
    measured: tuple[str, str]
    operators: tuple[Winners, ...]
    skipped: dict[str, str]


def winners(
    catalog: Catalog,
    definitions: Sequence[Definition],
    gpu: str | None = None,
    refused: Callable[[Solution], str | None] = lambda _: None,
) -> AllWinners:
    """refused: says why a solution cannot be in this package. DerbyError if the GPU has no rows, or these definitions
    have none."""
    rows = [row for each in definitions for row in catalog.traces(each.name, clocks=False)]
    if not rows:
        asked = ", ".join(each.name for each in definitions[:3]) + (" ..." if len(definitions) > 3 else "")
        raise DerbyError(f"{asked}: no recorded rows; measure with `derby bench`")
    found = recorded(rows, catalog.solutions, gpu, kind=KIND)
    operators, skipped = [], {}
    for definition in definitions:
        try:
            operators.append(_winners(catalog, definition, found, rows, refused))
        except DerbyError as reason:
            skipped[definition.name] = str(reason)
    if not operators:
        raise DerbyError(f"traces/: no rows to choose by on {found.group.gpu}; measure with `derby bench`")
    counted = [row for row in found.rows.values() if row.definition in {each.definition.name for each in operators}]
    names = [row.gpu for row in counted]
    days = sorted(row.timestamp[:10] for row in counted)
    gpus = tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))
    return AllWinners(gpus, found.group.protocol, (days[0], days[-1]), tuple(operators), skipped)


def kind_of(solution: Solution) -> str:
    """own: brings its kernels. library: calls kernels of an installed library, or torch's. plain: the set's
    baseline."""
    if solution.author == BASELINE_AUTHOR:
        return "plain"
    return "library" if library_of(solution) else "own"


def _winners(
    catalog: Catalog,
    definition: Definition,
    found: RecordedTimes,
    rows: Sequence[Measurement],
    refused: Callable[[Solution], str | None],
) -> Winners:
    own = {each.name: each for each in catalog.solutions.values() if each.definition == definition.name}
    plain = next((each for each in own.values() if kind_of(each) == "plain"), None)
    if plain is None:
        raise DerbyError("has no baseline to fall back to")
    times = found.times.get(definition.name, {})
    left_out = {
        name: reason
        for name, each in own.items()
        if each is not plain and (reason := refused(each) or _unfit(each, times.get(name)))
    }
    listed = catalog.workloads(definition.name)
    fresh = fresh_workloads(rows, definition, lambda problem: None)
    of_set, of_fresh = (
        [shape for workload in workloads if len((shape := _timed(definition, workload, times, left_out)).us) > 1]
        for workloads in (listed, fresh)
    )
    if not of_set:
        raise DerbyError("no shape has times of two solutions of the present code")
    kept = _kept(of_set, own) | {plain.name}
    solutions = [each for each in own.values() if each.name not in left_out]
    return replace(
        _chosen(definition, solutions, of_set, of_fresh, left_out), solutions=_ordered(own[each] for each in kept)
    )


def _timed(
    definition: Definition, workload: Workload, times: Mapping[str, Mapping[str, Any]], left_out: Mapping[str, str]
) -> TimedShape:
    """The shape with the times of the present code."""
    us = {
        name: own[workload.uuid].latency_us
        for name, own in times.items()
        if name not in left_out and workload.uuid in own and not own[workload.uuid].outdated
    }
    return TimedShape(tuple(workload.axes[axis] for axis in choosing_axes(definition)), us, workload.origin or "")


def without_solutions(found: AllWinners, reasons: Mapping[str, str]) -> AllWinners:
    """The winners without some solutions; the loss of the choice is computed from the others. reasons: solution -> why
    it is left out."""
    operators = []
    for each in found.operators:
        gone = {one.name: reasons[one.name] for one in each.solutions if one.name in reasons}
        kept = [one for one in each.solutions if one.name not in gone]
        if not gone:
            operators.append(each)
            continue
        names = {one.name for one in kept}
        shapes = [replace(one, us={name: us for name, us in one.us.items() if name in names}) for one in each.shapes]
        operators.append(_chosen(each.definition, kept, [one for one in shapes if one.us], [], each.left_out | gone))
    return replace(found, operators=tuple(operators))


def _chosen(
    definition: Definition,
    solutions: Sequence[Solution],
    shapes: Sequence[TimedShape],
    fresh: Sequence[TimedShape],
    left_out: dict[str, str],
) -> Winners:
    first = [min(each.us, key=lambda name: (each.us[name], name)) for each in shapes]
    fastest = {each.name: first.count(each.name) for each in _ordered(solutions) if each.name in first}
    loss = _loss(definition, solutions, shapes, fresh)
    return Winners(definition, _ordered(solutions), tuple(shapes), fastest, loss, left_out)


def _ordered(solutions: Iterable[Solution]) -> tuple[Solution, ...]:
    return tuple(sorted(solutions, key=lambda each: (KINDS.index(kind_of(each)), each.name)))


def _unfit(solution: Solution, times: Mapping[str, Any] | None) -> str | None:
    if solution.setup:
        return "needs a setup()"
    if solution.language not in ("python", "triton"):
        return f"written in {solution.language}"
    if not times:
        return "no time as a CUDA graph"
    return "only times of former code" if all(each.outdated for each in times.values()) else None


def _kept(shapes: Sequence[TimedShape], own: Mapping[str, Solution]) -> set[str]:
    """The solutions that are the fastest of all, of our own, or of the libraries, on at least one shape."""
    found = set()
    for shape in shapes:
        for kinds in (KINDS, ("own",), ("library",)):
            some = [name for name in shape.us if kind_of(own[name]) in kinds]
            found |= {min(some, key=lambda name: (shape.us[name], name))} if some else set()
    return found


def choosing_axes(definition: Definition) -> list[str]:
    """The variable axes that determine a choice, in order. Two kinds are left out. An axis that follows from earlier
    ones by a constraint (num_n_blocks from n), since one octave would count twice. And the size of a pool (the blocks
    of a paged cache, the slots of states), because a call reads only the part that its indices name."""
    known, kept = {axis: size for axis, size in definition.axes.items() if size is not None}, []
    for axis in (axis for axis, size in definition.axes.items() if size is None):
        follows = any(solved_size(each, axis, known) is not None for each in definition.constraints)
        known[axis] = _SOME_SIZE
        if not follows and not any(name in definition.inputs for name in POOLS.get(axis, ())):
            kept.append(axis)
    return kept


def _about(solution: Solution) -> dict[str, Any]:
    requires = solution.requires
    capability = [
        [int(part) for part in each.split(".")] if each else None
        for each in (requires.minimum_compute_capability, requires.maximum_compute_capability)
    ]
    return {
        "kind": kind_of(solution),
        "author": solution.author,
        "entry": solution.entry_point,
        "modules": list(requires.modules),
        "capability": capability,
        "in_place": solution.in_place,
        "returns": not solution.destination_passing_style,
    }


def _loss(
    definition: Definition, solutions: Sequence[Solution], shapes: Sequence[TimedShape], fresh: Sequence[TimedShape]
) -> ChoiceLoss:
    def selector(known: Sequence[TimedShape]) -> Selector:
        return Selector(
            {
                "axes": choosing_axes(definition),
                "solutions": {each.name: {"kind": kind_of(each)} for each in solutions},
                "points": [[each.sizes, [each.us.get(one.name) for one in solutions]] for each in known],
            }
        )

    inside: list[float] = []
    outside: list[float] = []
    untimed = 0
    for shape in shapes:
        choice = selector([each for each in shapes if each.sizes != shape.sizes])
        lost = _lost(choice, shape)
        if lost is None:
            untimed += 1
        else:
            (inside if choice.inside(shape.sizes) else outside).append(lost)
    held_out: dict[str, HeldOutShapes] = {}
    for origin in [*sorted({each.origin for each in shapes}.difference(SCORED)), FRESH]:
        held = fresh if origin == FRESH else [each for each in shapes if each.origin == origin]
        known = [each for each in shapes if each.origin != origin]
        if held and known:
            choice = selector(known)
            beyond = sum(not choice.inside(each.sizes) for each in held)
            twins = len([each for each in held if each.sizes in {one.sizes for one in known}])
            losses = [lost for each in held if (lost := _lost(choice, each)) is not None]
            held_out[origin] = HeldOutShapes(len(held), _mean(losses), len(held) - len(losses), beyond, twins)
    worst = max(inside, default=None)
    return ChoiceLoss(len(inside), _mean(inside), worst, len(outside), _mean(outside), untimed, held_out)


def _lost(choice: Selector, shape: TimedShape) -> float | None:
    """None if the chosen solution has no time at the shape."""
    chosen = choice.order(shape.sizes, choice.kinds)[0]
    return shape.us[chosen] / min(shape.us.values()) - 1 if chosen in shape.us else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
