"""A profile as an object: where the time of a recording goes."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from kernelderby.api.arguments import question, typed
from kernelderby.catalog import Catalog
from kernelderby.catalog.solutions import read_stages
from kernelderby.errors import DerbyError
from kernelderby.profile.activity import Activity, activity_of
from kernelderby.profile.compare.difference import Comparison
from kernelderby.profile.compare.kernels import compare_kernels
from kernelderby.profile.compare.stages import compare_stages
from kernelderby.profile.counters import Counters, read_counters
from kernelderby.profile.filters import Selection, selected
from kernelderby.profile.kernels.findings import findings
from kernelderby.profile.kernels.summary import summarise
from kernelderby.profile.layers.draft import Draft, draft_of
from kernelderby.profile.layers.table import LayerTable, layer_table
from kernelderby.profile.pace import Pace, pace_of
from kernelderby.profile.perfetto import trace_events
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import Profile
from kernelderby.profile.stages.notes import StatedFigure
from kernelderby.profile.stages.stated import stated_beside
from kernelderby.profile.stages.walk import INVOCATION, Pipeline, pipeline_of
from kernelderby.profile.stages.whatif import SPEEDUPS, WhatIfs, whatif
from kernelderby.profile.timeline import timelines_of
from kernelderby.report.answer import Answer
from kernelderby.report.profile.activity import activity_answer
from kernelderby.report.profile.compare import compare_answer
from kernelderby.report.profile.counters import counters_answer
from kernelderby.report.profile.kernels import KernelsOf, kernels_answer
from kernelderby.report.profile.layers import layers_answer
from kernelderby.report.profile.pace import pace_answer
from kernelderby.report.profile.pipelines import stages_answer
from kernelderby.report.profile.whatif import whatif_answer
from kernelderby.rows.measurement import Stage
from kernelderby.store.fields import json_bytes
from kernelderby.store.files import write_whole


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """One file: an nsys export or table, a Kineto trace. profile: its spans and sums."""

    profile: Profile

    def __repr__(self) -> str:
        return f"ProfileFile({str(self.path)!r})"

    @property
    def path(self) -> Path:
        return self.profile.path

    @property
    def gpu(self) -> str | None:
        """The GPU that the file names; None without one."""
        return self.profile.gpu

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self.profile.warnings)

    @question("kernels")
    def select(self, selection: Selection | None) -> ProfileFile:
        """The part of the profile that a selection (profile.filters.make_selection) takes."""
        return ProfileFile(selected(self.profile, selection))

    @question("timeline")
    def write_timeline(self, out: Path | str) -> int:
        """Writes a trace for ui.perfetto.dev, packed if the name ends in .gz. Returns the number of events. DerbyError:
        the file name has another ending, its folder is missing, or the profile has sums only."""
        out = Path(out)
        if not out.name.endswith((".json", ".json.gz")):
            raise DerbyError(f"{out}: a trace is a .json or .json.gz file; end the name so")
        if not out.parent.is_dir():
            raise DerbyError(f"{out}: no such folder; name an existing folder")
        events = list(trace_events(self.profile))
        text = json_bytes({"traceEvents": events, "displayTimeUnit": "ns"})
        write_whole(out, gzip.compress(text, mtime=0) if out.suffix == ".gz" else text)
        return len(events)

    @question("layers")
    def draft(self) -> Draft:
        """A layer map from the period of the kernels: `.text()` writes it as a map, `.stages_text()` as stages.
        DerbyError if no layer repeats."""
        return draft_of(self.profile)

    @question("activity")
    def activity(self) -> Answer[tuple[Activity, ...]]:
        """How its GPUs spent their time: busy, idle with causes, communication beside computing, launches, ranges,
        calls."""
        return activity_answer([activity_of(self.profile)])

    @question("pace")
    def pace(self, within: str = INVOCATION) -> Answer[tuple[Pace, ...]]:
        """The repetitions, one by one, of the ranges whose name matches."""
        return pace_answer([pace_of(self.profile, within)])

    @question("kernels")
    def kernels(self, *, gpu: str | None = None, top: int | None = None) -> Answer[tuple[KernelsOf, ...]]:
        """Every kernel with its library, role and architecture, and findings. gpu: the GPU, if the file names none or a
        wrong one. top: maximum number of rows in text and Markdown; the rest is summed."""
        return kernels_answer([self.kernel_table(gpu)], top)

    @typed
    def kernel_table(self, gpu: str | None = None) -> KernelsOf:
        table = summarise(self.profile, gpu)
        timelines = timelines_of(self.profile) if self.profile.has_events else ()
        found = findings(table, self.profile.api_sums(), timelines)
        return KernelsOf(table, tuple(found), self.profile.has_events)

    @question("stages")
    def stages(
        self, solution: str, root: Path | str = ".", *, within: str | None = None
    ) -> Answer[tuple[Pipeline, ...]]:
        """A solution's pipeline stage by stage, and all other work. solution: a solution of the trace set, or a .toml
        file with [[stages]] as in solution.toml."""
        return stages_answer([self.pipeline(solution, root, within=within)])

    @typed
    def pipeline(self, solution: str, root: Path | str = ".", *, within: str | None = None) -> Pipeline:
        return staged(self, solution, stages_of(solution, root), within)

    @question("whatif")
    def whatif(
        self,
        solution: str,
        root: Path | str = ".",
        *,
        factors: Sequence[float] = SPEEDUPS,
        floors_us: Mapping[str, float] | None = None,
    ) -> Answer[tuple[WhatIfs, ...]]:
        """How much the pipeline gains if one stage runs faster. floors_us: stage -> its minimum time. DerbyError for a
        factor that is not a number above 1, and for a floor below 0."""
        for name, values, least in (("factors", factors, 1), ("floors_us", (floors_us or {}).values(), 0)):
            for value in values:
                if not isinstance(value, int | float) or not least <= value < inf or value == 1 == least:
                    raise DerbyError(f"{name}: {value!r:.60} is no number above {least}; give another one")
        return whatif_answer([whatif(self.pipeline(solution, root), tuple(factors), dict(floors_us or {}))])

    @question("compare")
    def compare(
        self,
        after: ProfileFile,
        solution: str | None = None,
        root: Path | str = ".",
        *,
        within: str | None = None,
        kind: str | None = None,
    ) -> Answer[Comparison]:
        """The changes from this recording to another one: step by step, then by stage of a solution, or by kernel
        without a solution. within: regular expression of the ranges that mark the steps. kind: the kind of step whose
        kernels are shown."""
        if solution is None:
            return compare_answer(compare_kernels(self.profile, after.profile, within, kind))
        stages = stages_of(solution, root)
        return compare_answer(compare_stages(staged(self, solution, stages), staged(after, solution, stages)))


def stages_of(solution: str, root: Path | str) -> tuple[Stage, ...]:
    """Of a solution of the trace set, or of a .toml file. DerbyError without such a solution or file."""
    if solution.endswith(".toml"):
        return read_stages(Path(solution))
    return Catalog.open(root).solution(solution).stages


def staged(opened: ProfileFile, solution: str, stages: Sequence[Stage], within: str | None = None) -> Pipeline:
    """ProfileFile.pipeline() of a solution with these stages."""
    stated = stated_beside(opened.path)
    found = pipeline_of(opened.profile, stages, solution, stated_total_ns=stated.total_ns, within=within or INVOCATION)
    figures = (StatedFigure(entry, found.invocations) for entry in stated.stated)
    return replace(found, warnings=(*found.warnings, *figures))


@question("counters")
def counters(*paths: Path | str) -> Answer[tuple[Counters, ...]]:
    """ncu's counters of each kernel, from files as `derby profile run --with ncu` writes them. DerbyError for other
    files."""
    return counters_answer([read_counters(Path(path)) for path in paths])


@question("layers")
def layers(*paths: Path | str, layer_map: str | None = None, selection: Selection | None = None) -> Answer[LayerTable]:
    """A served model's layers, group by group and module by module. Each file has a column; a file with several kinds
    of steps has a column for each kind. layer_map: a shipped map or a .toml. Module tables bring their own map; without
    a map, a profile's layer is found by its period. selection: use only that part of the profiles. DerbyError if no
    layer is found, and for the map of another model."""
    return layers_answer(layer_table([Path(path) for path in paths], layer_map, selection))


@question("kernels")
def open_profile_file(path: Path | str) -> ProfileFile:
    """DerbyError for a file that is no profile."""
    return ProfileFile(open_profile(path))
