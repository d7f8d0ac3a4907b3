"""Recordings on the page: pipelines, layers, kernels, time lines, and the results of each profile."""

from __future__ import annotations

from msgspec import Struct


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


class ShownTable(Struct, frozen=True):
    """columns: title, and whether it holds numbers. rows: text and emphasis (report.model) a column."""

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]
    caption: str


class ShownStudy(Struct, frozen=True):
    """One answer of `derby profile activity`, `derby capture --gain` or `derby profile compare`, as its tables. kind:
    which. title: the profile, or both."""

    kind: str
    title: str
    facts: tuple[str, ...]
    tables: tuple[ShownTable, ...]
    notes: tuple[str, ...]
