"""Recordings on the page: pipelines, layers, kernels, time lines, and the results of each profile."""

from __future__ import annotations

from msgspec import Struct


class ShownStage(Struct, frozen=True):
    """One stage of a pipeline. time_us: of one invocation, or of all if their number is unknown. is_rest: the row holds
    the unexplained rest. speedups: the pipeline's speedups with this stage faster by each of the page's factors, then
    without the stage; empty if the source has shares only."""

    name: str
    title: str
    time_us: float
    share: float
    is_rest: bool
    speedups: tuple[float, ...]
    notes: tuple[str, ...] = ()


class ShownPipeline(Struct, frozen=True):
    """A solution's stages in one profile. title: the workload, or the file. outside: kind, us and share of the GPU work
    outside the pipeline. span_us: first start to last end, if events were recorded."""

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
    """One profile or published table. have, of: number of kernels with a time here, and in any column."""

    title: str
    gpu: str
    facts: tuple[str, ...]
    have: int
    of: int
    layer_us: float
    overlapped_us: float
    modules: tuple[ShownModule, ...]


class ShownLayerRow(Struct, frozen=True):
    """kernel: empty for the row of a module or a group. times: one per column. ratios: over the first column, with the
    number of kernels that both have and the number of all."""

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
    """All launches of one name. source: its source file, if the name determines it."""

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
    """The kernels of one profile. left_out: number of small kernels that are not listed, and their share. totals:
    library, role, architecture and dtype -> name, share, us, launches. findings: severity and text."""

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
    """One stream of one GPU. operations, busy_us: in the whole recording. spans: the shown operations, in fours: place
    in the timeline's names, start and duration in ns, row. rows: number of rows; overlapping operations of a stream are
    in different rows."""

    gpu: str
    stream: str
    operations: int
    busy_us: float
    rows: int
    spans: tuple[int, ...]


class ShownTimeline(Struct, frozen=True):
    """A recording's operations one by one. operations: their number. listed: the number of operations shown here, taken
    from the middle. part: begin and end of the shown part, in ns from the first operation. names: short name, name,
    role. roles: role, operations, us in the whole recording, longest first. hidden_lanes: number of streams that are
    not shown. invocations: name, from, to in ns."""

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
    """columns: title, and whether it holds numbers. rows: for each column text and emphasis (report.model)."""

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]
    caption: str


class ShownStudy(Struct, frozen=True):
    """One answer of `derby profile activity`, `derby capture --gain` or `derby profile compare`, as its tables. kind:
    which of these. title: the profile, or both profiles."""

    kind: str
    title: str
    facts: tuple[str, ...]
    tables: tuple[ShownTable, ...]
    notes: tuple[str, ...]
