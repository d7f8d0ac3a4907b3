"""What the page shows, number by number. Everything is here; assets/*.js only place, format and sort it.

The records that occur by the thousand are arrays in JSON (array_like); `fields` of the page names their places. Times
are us, shares are parts of 1, ratios are time over time; floats keep six digits, which is more than any row has.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

KINDS = ("graph", "eager", "busy")


class ShownGpu(Struct, frozen=True):
    """One GPU: rows is 0 where nothing was recorded on it, and only floors are known. ceilings: what was measured."""

    id: str
    name: str
    rows: int
    memory_bytes_per_second: float | None = None
    flops_per_second: dict[str, float] = {}
    ceiling_bytes_per_second: float | None = None
    ceiling_flops_per_second: dict[str, float] = {}
    source: str = ""
    date: str = ""


class ShownInterval(Struct, frozen=True, array_like=True):
    """A ratio with its 95 % interval; kind: paired, unpaired or none. verdict: faster, slower or tie."""

    value: float
    low: float | None
    high: float | None
    kind: str
    verdict: str


class ShownTime(Struct, frozen=True, array_like=True):
    """One kind of time of one cell. low_us, high_us: the baseline's time times the ratio's interval. flops_per_second:
    the counted flops over the time, None where there are none."""

    time_us: float
    low_us: float | None = None
    high_us: float | None = None
    ratio: ShownInterval | None = None
    share: float | None = None
    fair: float | None = None
    flops_per_second: float | None = None


class ShownCell(Struct, frozen=True, array_like=True):
    """One solution on one workload. times: of KINDS, None where there is none. environment: place in the page's list.
    marks: outdated, too good. clocks: in words."""

    status: str
    times: tuple[ShownTime | None, ...]
    marks: tuple[str, ...]
    message: str
    timestamp: str
    hash: str
    host_us: float | None
    wall_us: float | None
    empty_kernel_us: float | None
    matched_ratio: float | None
    error_norm: float | None
    environment: int
    clocks: str


class ShownRow(Struct, frozen=True, array_like=True):
    """One workload in one order: who was fastest by how much. Names are places in the race's solutions."""

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
    """The first one's author over the best library on each workload (rank/lead.py). second: the library that is the
    best one on most workloads; libraries: how many are on any."""

    second: str
    libraries: int
    ratio: ShownInterval
    wins: int
    ties: int
    losses: int
    workloads: int


class ShownOrder(Struct, frozen=True):
    """A race by one kind of time. share: S of the fastest solution on each shape, the median; fair: the geomean of its
    S_fair. middle: the place of the shape that has that median S."""

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
    """Solutions of one definition on one GPU under one protocol, on the workloads of one origin. kind: the one that
    `derby rank` compares by default; orders: by kind. shapes: places of the workloads among the operator's shapes.
    cells: workload by workload, a cell a solution. is_default: `derby rank` takes this protocol."""

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


class ShownShape(Struct, frozen=True, array_like=True):
    """One workload. label: short, see operators.labels; axes: all of them, and the scalars. floors: of each GPU of the
    page, [us, regime] or None; floor_flops: flop/s at each."""

    uuid: str
    label: str
    axes: str
    shape_id: int | None
    origin: str
    framework: str
    call_count: int | None
    flops: float | None
    bytes: float | None
    flops_per_byte: float | None
    floors: tuple[tuple[float, str] | None, ...]
    floor_flops: tuple[float | None, ...]


class ShownSolution(Struct, frozen=True):
    """needs: what it asks of a machine, in words."""

    name: str
    definition: str
    author: str
    language: str
    description: str
    needs: str


class ShownOperator(Struct, frozen=True):
    """One definition. regime: C, M or I; empty where no cost was counted. races: GPU -> places in the page's races, the
    default's first."""

    name: str
    op_type: str
    description: str
    dtypes: tuple[str, ...]
    importance: float | None
    regime: str
    shapes: tuple[ShownShape, ...]
    races: dict[str, tuple[int, ...]]


class ShownScore(Struct, frozen=True):
    """An author over all operators, weighted by importance. everywhere: what is missing counts as 0."""

    gpu: str
    protocol: str
    author: str
    share: float | None
    share_everywhere: float
    fair: float | None
    fair_everywhere: float
    operators: int
    of_operators: int
    weight: float
    shapes: int
    of_shapes: int


class ShownChange(Struct, frozen=True):
    """One solution now against another run: ratio is time now over time then."""

    definition: str
    gpu: str
    protocol: str
    kind: str
    solution: str
    ratio: ShownInterval
    wins: int
    ties: int
    losses: int
    workloads: int
    same_sources: bool


class ShownChanges(Struct, frozen=True):
    """lines: solutions measured in both runs, anew. unchanged: how many have the very same rows in both. only_here,
    only_there: definition / solution."""

    against: str
    lines: tuple[ShownChange, ...]
    unchanged: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]


class ShownGroup(Struct, frozen=True):
    """What was measured where, how and when."""

    gpu: str
    protocol: str
    rows: int
    passed: int
    definitions: int
    solutions: int
    measured_from: str
    measured_to: str
    boards: int
    drivers: tuple[str, ...]
    commits: tuple[str, ...]


class ShownFailure(Struct, frozen=True):
    """A row that did not pass, or that is doubtful. is_cheat: the judge caught a solution at something."""

    definition: str
    gpu: str
    protocol: str
    solution: str
    workload: str
    status: str
    is_cheat: bool
    message: str
    timestamp: str


class ShownMissing(Struct, frozen=True):
    """A solution without any row on a GPU that has rows of its operator."""

    definition: str
    gpu: str
    solution: str
    author: str
    needs: str


class ShownStage(Struct, frozen=True):
    """One stage of a pipeline. time_us: of one invocation, or of all where nobody knows how many there were. is_rest:
    it is what no stage explains. speedups: the pipeline's with this stage faster by each of the page's factors, then
    with the stage gone; empty where the source has no more than shares."""

    name: str
    title: str
    time_us: float
    share: float
    is_rest: bool
    speedups: tuple[float, ...]
    notes: tuple[str, ...] = ()


class ShownPipeline(Struct, frozen=True):
    """A solution's stages in one profile. title: the workload, or the file. outside: kind, us and share of all GPU work
    in the profile beside the pipeline. span_us: first start to last end, where events were recorded."""

    solution: str
    title: str
    gpu: str
    source: str
    basis: str
    total_us: float
    span_us: float | None
    stages: tuple[ShownStage, ...]
    outside: tuple[tuple[str, float, float], ...]
    factors: tuple[float, ...]


class ShownModule(Struct, frozen=True):
    """A module on a layer's time line. lane: 0, or 1 where it runs beside the longest of its overlap."""

    group: str
    module: str
    time_us: float
    start_us: float
    lane: int


class ShownLayerColumn(Struct, frozen=True):
    """One profile or published table. have, of: kernels with a time, of those that any column times."""

    title: str
    gpu: str
    facts: tuple[str, ...]
    have: int
    of: int
    layer_us: float
    model_us: float
    overlapped_us: float
    modules: tuple[ShownModule, ...]


class ShownLayerRow(Struct, frozen=True):
    """kernel: empty for a module's or a group's own row. times: a column each; ratios: over the first column, with how
    many of how many kernels both have."""

    group: str
    module: str
    kernel: str
    times: tuple[float | None, ...]
    ratios: tuple[tuple[float, int, int] | None, ...]


class ShownLayers(Struct, frozen=True):
    title: str
    source: str
    columns: tuple[ShownLayerColumn, ...]
    rows: tuple[ShownLayerRow, ...]
    notes: tuple[str, ...]


class ShownKernel(Struct, frozen=True, array_like=True):
    """All launches of one name. source: the file that it comes from, where the name decides it."""

    name: str
    short: str
    library: str
    is_guess: bool
    source: str
    role: str
    dtype: str
    architecture: str
    share: float
    total_us: float
    instances: int
    average_us: float
    median_us: float | None


class ShownKernels(Struct, frozen=True):
    """The kernels of one profile. left_out: how many small ones are not listed, and their share. totals: library, role,
    architecture and dtype -> name, share, us, launches. findings: severity and text."""

    title: str
    gpu: str
    form: str
    total_us: float
    unknown: float
    guessed: float
    kernels: tuple[ShownKernel, ...]
    left_out: tuple[int, float]
    totals: dict[str, tuple[tuple[str, float, float, int], ...]]
    findings: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


class ShownLane(Struct, frozen=True):
    """One stream of one GPU. operations, busy_us: in the whole recording. spans: of what is shown, in fours: place in
    the timeline's names, start and duration in ns, row. rows: how many; what overlaps in a stream stands in another."""

    gpu: str
    stream: str
    operations: int
    busy_us: float
    rows: int
    spans: tuple[int, ...]


class ShownTimeline(Struct, frozen=True):
    """A recording's operations one by one. operations: how many it has, listed: how many of them are here, those in
    the middle; part: when the listed ones begin and end, ns from the first operation on. names: short name, name, role.
    roles: role, operations, us in the whole recording, longest first. hidden_lanes: streams that are not here.
    invocations: name, from, to in ns."""

    title: str
    gpu: str
    form: str
    operations: int
    listed: int
    wall_ns: int
    part: tuple[int, int]
    names: tuple[tuple[str, str, str], ...]
    roles: tuple[tuple[str, int, float], ...]
    lanes: tuple[ShownLane, ...]
    hidden_lanes: int
    invocations: tuple[tuple[str, int, int], ...]


class ShownOutdated(Struct, frozen=True):
    """Rows that count, of sources that the solution has no more."""

    definition: str
    gpu: str
    protocol: str
    solution: str
    rows: int
    of_rows: int


class ShownTrust(Struct, frozen=True):
    groups: tuple[ShownGroup, ...]
    failures: tuple[ShownFailure, ...]
    outdated: tuple[ShownOutdated, ...]
    missing: tuple[ShownMissing, ...]
    warnings: tuple[str, ...]


class PageModel(Struct, frozen=True):
    """fields: array-like record -> the names of its places. environments: what cells refer to. newest: when the newest
    row was measured. protocols: GPU -> the one that its tables over all operators take; leads: GPU -> the result there
    in a sentence, where libraries were measured."""

    version: str
    newest: str
    rows: int
    kinds: tuple[str, ...]
    fields: dict[str, tuple[str, ...]]
    gpus: tuple[ShownGpu, ...]
    protocols: dict[str, str]
    leads: dict[str, str]
    operators: tuple[ShownOperator, ...]
    solutions: dict[str, ShownSolution]
    races: tuple[ShownRace, ...]
    scores: tuple[ShownScore, ...]
    changes: ShownChanges | None
    pipelines: tuple[ShownPipeline, ...]
    layers: tuple[ShownLayers, ...]
    kernels: tuple[ShownKernels, ...]
    timelines: tuple[ShownTimeline, ...]
    trust: ShownTrust
    environments: tuple[dict[str, Any], ...]


FIELDS = {
    kind.__name__: kind.__struct_fields__
    for kind in (ShownInterval, ShownTime, ShownCell, ShownRow, ShownShape, ShownKernel)
}
