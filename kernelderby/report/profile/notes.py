"""Notes about a pipeline and about a comparison of two profiles, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from kernelderby.profile.compare import caveats
from kernelderby.profile.compare.caveats import Caveat
from kernelderby.profile.stages import notes
from kernelderby.profile.stages.notes import InvocationSource
from kernelderby.profile.stages.walk import Pipeline, StageRow
from kernelderby.profile.steps.find import StepMark, StepsFoundBy
from kernelderby.store.counts import counted

_KINDS = 6  # kinds of steps in one line
_NAME = 80  # characters of a kernel's name
_ANNOTATION = 60
_CAVEATS = {
    Caveat.NO_INVOCATIONS: "a profile has no invocations of the pipeline: totals are compared",
    Caveat.NO_COMMON_LENGTH: (
        "most kernels ran neither equally often nor a multiple as often, and no steps were found in both"
    ),
    Caveat.NEIGHBOURS_ALIKE: "another kernel has nearly the same neighbours",
    Caveat.ONLY_SUMS: "only sums: role and launches are the same, their order is not known",
}
_SOURCES = {
    InvocationSource.MARKED: "marked by NVTX ranges",
    InvocationSource.COUNTED: "counted along the events",
    InvocationSource.NO_STAGE: "no stage occurs",
}


def invocations_from(found: notes.InvocationsFrom) -> str:
    if found.source is InvocationSource.PATTERNS:
        return f"{found.agreeing} of {counted(found.patterns, 'pattern has', 'patterns have')} this count"
    return _SOURCES[found.source]


def pipeline_data(pipeline: Pipeline) -> dict[str, Any]:
    """The fields of a pipeline and its rows as a dict, with the notes in words."""
    data = asdict(replace(pipeline, samples={}, warnings=()))
    for row, stage in zip(data["stages"], pipeline.stages, strict=True):
        row["notes"] = stage_notes(stage)
    return data | {
        "invocations_from": invocations_from(pipeline.invocations_from),
        "warnings": told_warnings(pipeline.warnings),
        "samples": pipeline.samples,
    }


def stage_notes(row: StageRow) -> tuple[str, ...]:
    return tuple(map(_stage_note, row.notes))


def _stage_note(note: notes.StageNote) -> str:
    match note:
        case notes.SharedName():
            return "not separable: they share a kernel name, and a summary has no order"
        case notes.MissingSometimes(missing, invocations):
            return f"missing in {missing} of {counted(invocations, 'invocation')}"
        case notes.KernelsVary(fewest, most):
            return f"{fewest} to {counted(most, 'kernel')} an invocation"
        case notes.TakingTurns(instances):
            return f"variants of {' + '.join(map(str, instances))} kernels take turns"
        case notes.UnevenCount(instances, each, invocations):
            wanted = f"{each} x {invocations}" if each > 1 else str(invocations)
            difference = instances - each * invocations
            direction = "more" if difference > 0 else "fewer"
            return f"{counted(instances, 'kernel')}, {abs(difference)} {direction} than {wanted}"


def told_warnings(warnings: Iterable[caveats.ComparisonWarning]) -> tuple[str, ...]:
    """Each line once."""
    return tuple(dict.fromkeys(map(_warning, warnings)))


def _warning(warning: caveats.ComparisonWarning) -> str:
    match warning:
        case Caveat():
            return _CAVEATS[warning]
        case caveats.OfProfile(letter, own):
            return f"{letter}: {_of_pipeline(own)}"
        case caveats.Overlapping(path, row, by_added):
            told = f"times are what a {row} adds"
            return f"{path}: kernels overlap; " + (
                told if by_added else "the other profile has no events, so durations are compared"
            )
        case caveats.Longer(letter, times):
            which = "first" if letter == "A" else "second"
            return (
                f"most kernels ran {float(times):.4g} x as often in the {which} profile; its times are divided by that"
            )
    return _of_pipeline(warning)


def _of_pipeline(warning: notes.PipelineWarning) -> str:
    match warning:
        case str():
            return warning
        case notes.AmbiguousKernel(name, stages, others):
            taken = " / ".join(stages)
            return (
                f"{name[:_NAME]}: fits stage {taken} and also {', '.join(others)}; counted as "
                f"{taken}; narrow the patterns in solution.toml"
            )
        case notes.UnmatchedStage(stage, nvtx, patterns):
            wanted = " or ".join([f"range {nvtx!r}"] * bool(nvtx) + [*patterns]) or "nothing"
            return f"stage {stage}: nothing in the profile fits {wanted}"
        case notes.CutKernels(stages):
            cut = ", ".join(f"{name} ({count} of {counted(whole, 'kernel')})" for name, count, whole in stages)
            return (
                f"{cut}: started to the nanosecond where another kernel ends, so the recorder cut kernels that "
                "overlap; what they last together is right, what each of them lasts may not be"
            )
        case notes.MoreThanStated(path, itemised_ns, stated_ns):
            return (
                f"{path}: its stages sum to {itemised_ns / 1e6:.1f} ms, more than the stated total of "
                f"{stated_ns / 1e6:.1f} ms; shares are of the sum"
            )
        case notes.GlueOutside(stage):
            return (
                f"stage {stage}: a summary cannot tell its kernels from the harness's; they count outside the pipeline"
            )
        case notes.StatedFigure():
            return f"stated by the source: {_stated(warning)}"


def _stated(figure: notes.StatedFigure) -> str:
    """The figure, with derived ones."""
    entry, parts = figure.entry, []
    if entry.bytes is not None:
        moved = f"{entry.bytes / 1e12:.3g} TB"
        if entry.seconds is not None:
            moved += f" in {entry.seconds:g} s ({entry.bytes / entry.seconds / 1e12:.3g} TB/s)"
        parts.append(moved)
        if figure.invocations:
            parts.append(f"{entry.bytes / figure.invocations / 1e9:.3g} GB an invocation")
    elif entry.seconds is not None:
        parts.append(f"{entry.seconds:g} s")
    if entry.shares:
        total = sum(entry.shares)
        terms = " + ".join(f"{share:g}" for share in entry.shares)
        text = f"{terms} = {total:.4g} %" if len(entry.shares) > 1 else f"{total:g} %"
        parts.append(f"{text} of the {entry.of}" if entry.of else text)
        if entry.seconds is not None and entry.bytes is None and total:
            parts.append(f"which is {entry.seconds / total * 100:.3g} s in all")
    return f"{entry.what}: {', '.join(parts)}"


def first_warnings(warnings: Iterable[caveats.FirstWarning]) -> tuple[str, ...]:
    """Each line once."""
    return tuple(dict.fromkeys(map(_first, warnings)))


def _first(warning: caveats.FirstWarning) -> str:
    match warning:
        case caveats.OtherClock(factor):
            return (
                f"most kernels take {factor:.2f} times as long in B: the GPU's clock may differ, which does not "
                "count as a change"
            )
        case caveats.NoSteps(letter):
            return f"no steps were found in {letter}, so both profiles are compared as a whole"
        case caveats.OnlyKinds(letter, kinds):
            told = ", ".join(f"{kind or 'unnamed'} ({count})" for kind, count in kinds[:_KINDS])
            return f"steps of a kind that only {letter} has: {told}"
        case caveats.WarmUp(letter, kind, steps):
            what = f"{kind} " if kind else ""
            return f"{letter}: the first {steps} {what}steps took longer than the rest (warm-up) and are left out"
        case caveats.OtherLaunches(kind, before, after):
            what = f"a {kind} step" if kind else "a step"
            return (
                f"launches differ: {what} has {before:g} in A and {after:g} in B, so its kernels are not the same ones"
            )
        case caveats.ReplaysGraphs(letter):
            eager = "B" if letter == "A" else "A"
            return (
                f"{letter} replays CUDA graphs, {eager} launches kernel by kernel: idle time has other causes in each"
            )


def not_comparable(why: Caveat | caveats.WholeGraphs | None) -> str:
    match why:
        case None:
            return ""
        case Caveat():
            return _CAVEATS[why]
        case caveats.WholeGraphs(before, after):
            told = " and ".join(f"{letter} {count:,}" for letter, count in (("A", before), ("B", after)) if count)
            return (
                f"CUDA graphs were recorded whole ({told}), so their kernels are missing; "
                "record with --cuda-graph-trace=node"
            )


def steps_found_by(found: StepsFoundBy | None) -> str:
    """How the steps of a profile were found; "" without steps."""
    match found:
        case None:
            return ""
        case StepsFoundBy(StepMark.RANGES, word):
            return f"ranges that fit {word}"
        case StepsFoundBy(StepMark.ANNOTATIONS, word):
            return f"annotations like {word[:_ANNOTATION]}"
    return f"their period ({found.steps} found)"


def doubt_told(doubt: caveats.Doubt | None) -> str:
    match doubt:
        case None:
            return ""
        case Caveat():
            return _CAVEATS[doubt]
        case caveats.FewNeighbours(share):
            return f"{share:.0%} of its places have the same neighbours"
        case caveats.OtherDuration(factor):
            return f"a launch takes {factor:.1f} times as long or short, and its neighbours changed too"
