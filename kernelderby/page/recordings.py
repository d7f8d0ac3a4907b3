"""The profiles of a set under profiles/ and reports/profiles/, each in the sections for which it has data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelderby.api.profile_file import ProfileFile, open_profile_file, staged
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu
from kernelderby.page.kernels import shown_kernels
from kernelderby.page.layers import shown_layers
from kernelderby.page.model.recordings import ShownKernels, ShownLayers, ShownPipeline, ShownStudy, ShownTimeline
from kernelderby.page.pipelines import printed_stages, shown_pipeline
from kernelderby.page.studies import UNFORESEEN, activity_study, capture_study, comparisons, told_of
from kernelderby.page.timelines import shown_timeline
from kernelderby.profile.recorded import is_profile, profile_files, solution_of, title_of
from kernelderby.rows.measurement import Measurement
from kernelderby.store.bounds import reading

PRINTED = "_stages.csv"  # output of `derby profile stages --overview`, kept in place of the recording


@dataclass(slots=True)
class Recordings:
    """The contents of the recordings, in the order of their paths."""

    pipelines: list[ShownPipeline] = field(default_factory=list)
    layers: list[ShownLayers] = field(default_factory=list)
    kernels: list[ShownKernels] = field(default_factory=list)
    timelines: list[ShownTimeline] = field(default_factory=list)
    studies: list[ShownStudy] = field(default_factory=list)


def recordings(catalog: Catalog, rows: Sequence[Measurement], problem: Callable[[str], None]) -> Recordings:
    """rows: those of the set. problem: gets a line for every unreadable file, which is skipped."""
    found = Recordings()
    paths = list(profile_files(catalog.root, problem))
    for path in paths:
        try:
            with reading(path):
                _take(catalog, rows, path, found)
        except (DerbyError, *UNFORESEEN) as error:
            problem(told_of(path, error))
    found.studies += comparisons(catalog, list(filter(is_profile, paths)), problem)
    return found


def _take(catalog: Catalog, rows: Sequence[Measurement], path: Path, found: Recordings) -> None:
    name = path.relative_to(catalog.root).as_posix()
    if path.suffix == ".toml":
        if not any(beside.exists() for beside in map(path.with_suffix, (".csv", ".sqlite", ".json"))):
            found.layers.append(shown_layers(path, name))  # else it supplements the other file
    elif path.name.endswith(PRINTED):
        found.pipelines += printed_stages(path, path.name.removesuffix(PRINTED), name)
    elif is_profile(path):
        opened = open_profile_file(path)
        found.kernels.append(shown_kernels(opened.kernel_table(_gpu(opened)), name))
        timeline = shown_timeline(opened.profile, name)
        if timeline is not None:
            found.timelines.append(timeline)
            found.studies += filter(None, (capture_study(catalog, path, rows), activity_study(catalog, opened)))
        solution = solution_of(catalog, path)
        if solution:
            pipeline = staged(opened, solution, catalog.solution(solution).stages)
            if not pipeline.occurs:
                raise DerbyError(f"{path}: no stage of {solution} occurs in it, so it shows kernels only")
            found.pipelines.append(shown_pipeline(pipeline, name, title_of(path, solution)))


def _gpu(opened: ProfileFile) -> str | None:
    """The profile's GPU; without one, the GPU at the end of the file's name ("sglang_llama_h200.csv")."""
    if opened.gpu:
        return opened.gpu
    named = find_gpu(opened.path.name.partition(".")[0].rpartition("_")[2])
    return named.names[0] if named else None
