"""A race on the page: solutions of one operator on one GPU, cell by cell."""

from __future__ import annotations

from msgspec import Struct


class ShownInterval(Struct, frozen=True, array_like=True):
    """A ratio with its 95 % interval; kind: paired, unpaired or none. verdict: faster, slower or tie."""

    value: float
    low: float | None
    high: float | None
    kind: str
    verdict: str


class ShownTime(Struct, frozen=True, array_like=True):
    """One kind of time of one cell. low_us, high_us: the baseline's time multiplied by the ratio's interval.
    flops_per_second: the counted flops over the time, None without flops."""

    time_us: float
    low_us: float | None = None
    high_us: float | None = None
    ratio: ShownInterval | None = None
    share: float | None = None
    fair: float | None = None
    flops_per_second: float | None = None


class ShownCell(Struct, frozen=True, array_like=True):
    """One solution on one workload. times: one for each of KINDS, None if missing. environment: place in the page's
    list. marks: outdated, too good. clocks: in words."""

    status: str
    times: tuple[ShownTime | None, ...]
    marks: tuple[str, ...]
    message: str
    timestamp: str
    hash: str
    host_us: float | None
    wall_us: float | None
    matched_ratio: float | None
    error_norm: float | None
    environment: int
    clocks: str


class ShownRow(Struct, frozen=True, array_like=True):
    """One workload in one order: the fastest solution and its margin. Names are places in the race's solutions."""

    fastest: int | None
    second: int | None
    margin: ShownInterval | None


class ShownStanding(Struct, frozen=True):
    """One solution over all workloads of a race, by one kind of time."""

    solution: str
    author: str
    place: int | None
    passed: int
    geomean: ShownInterval | None
    total_us: float | None
    wins: int
    ties: int
    losses: int
    fastest_on: int
    failures: dict[str, int]


class ShownLead(Struct, frozen=True):
    """The lead of the first solution's author over the best library on each workload (rank/lead.py). second: the
    library that is best on most workloads. libraries: number of libraries in the race."""

    second: str
    libraries: int
    ratio: ShownInterval
    wins: int
    ties: int
    losses: int
    workloads: int


class ShownOrder(Struct, frozen=True):
    """A race by one kind of time. share: the median over the shapes of S of the fastest solution; fair: the geomean of
    its S_fair. middle: the place of the shape that has this median S."""

    kind: str
    baseline: str | None
    standings: tuple[ShownStanding, ...]
    rows: tuple[ShownRow, ...]
    lead: ShownLead | None
    share: float | None
    fair: float | None
    with_share: int
    middle: int | None
    notes: tuple[str, ...]


class ShownRace(Struct, frozen=True):
    """Solutions of one definition on one GPU under one protocol, on the workloads of one origin. kind: the kind of time
    that `derby rank` compares by default. orders: by kind. shapes: places of the workloads among the operator's shapes.
    cells: workload by workload, one cell per solution. is_default: `derby rank` uses this protocol by default."""

    definition: str
    gpu: str
    protocol: str
    is_default: bool
    origin: str
    shapes: tuple[int, ...]
    measured_from: str
    measured_to: str
    drivers: tuple[str, ...]
    commits: tuple[str, ...]
    solutions: tuple[str, ...]
    kind: str
    orders: dict[str, ShownOrder]
    cells: tuple[tuple[ShownCell, ...], ...]
