"""The notes of a Survey: the peaks behind it, its sums over operators, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernelderby.report.numbers import few
from kernelderby.roofline.operators import PUBLISHED, Operator, Survey
from kernelderby.roofline.selection import Group
from kernelderby.store.counts import counted

OUTDATED = "†"


def facts(survey: Survey, operators: Sequence[Operator]) -> tuple[str, ...]:
    """The peaks of each GPU that these operators need, with their source, and the measured rates."""
    dtypes = sorted({dtype for operator in operators for shape in operator.every for dtype in shape.dtypes})
    lines = []
    for gpu in survey.gpus:
        lines.append(
            f"{gpu.names[0]}: {_peaks(gpu.memory_bytes_per_second, gpu.flops_per_second, dtypes)} "
            f"({gpu.source}; {gpu.date})"
        )
        if gpu.measured and any(source.gpu.id == gpu.id for source in survey.sources):
            measured = gpu.measured
            lines.append(
                f"{gpu.names[0]}, measured ceilings: "
                f"{_peaks(measured.memory_bytes_per_second, measured.flops_per_second, dtypes)} "
                f"({measured.source}; {measured.date})"
            )
    for source in survey.sources:
        if source.recorded:
            group = source.recorded.group
            lines.append(
                f"best {source.gpu.id}: per shape the fastest solution that passed, {group.gpu}, protocol "
                f"{group.protocol}, {counted(group.rows, 'row')}"
            )
        else:
            lines.append(f"T_prod {source.gpu.id}: median time of the deployed kernel, as published")
    return tuple(lines)


def _peaks(memory: float, flops: dict[str, float], dtypes: Sequence[str]) -> str:
    known = [f"{dtype} {flops[dtype] / 1e12:g}" for dtype in dtypes if dtype in flops]
    return f"{memory / 1e12:g} TB/s" + (f", {', '.join(known)} TFLOP/s dense" if known else "")


def weighted(survey: Survey) -> Iterator[str]:
    for key, share in survey.weighted.items():
        gpu = next(source.gpu.id for source in survey.sources if source.key == key)
        what = "deployed kernels, as published" if key == PUBLISHED else "our best"
        if share.measured is None:
            yield f"S weighted by importance on {gpu} ({what}): no operator with an importance has a time"
        elif share.operators == share.of_operators and share.measured == share.everywhere:
            yield (
                f"S weighted by importance on {gpu} ({what}): {share.measured:.1%} over all "
                f"{counted(share.operators, 'operator')}"
            )
        else:
            yield (
                f"S weighted by importance on {gpu} ({what}): {share.measured:.1%} over the {share.operators} of "
                f"{counted(share.of_operators, 'operator')} that have a time ({share.weight:.1%} of the importance), "
                f"{share.everywhere:.1%} with 0 for every operator and shape without one"
            )
    if survey.importance:
        yield importance_note(survey.importance)


def notes(survey: Survey) -> Iterator[str]:
    for gpu in survey.gpus:
        missing = {
            operator.name: dtype
            for operator in survey.operators
            for shape in operator.every
            if shape.floors[gpu.id] is None
            for dtype in shape.dtypes
            if dtype not in gpu.flops_per_second
        }
        for dtype in sorted(set(missing.values())):
            names = ", ".join(name for name, lacked in missing.items() if lacked == dtype)
            yield f"n/a on {gpu.id}: its source gives no peak for {dtype} ({names})"
    unknown = [operator.name for operator in survey.operators if any(e.flops_per_byte is None for e in operator.every)]
    if unknown:
        yield f"S unknown, since nobody counted the work: {few(unknown)}; `derby pack` counts it from the reference"
    by_counting = [operator.name for operator in survey.operators if any(shape.counted for shape in operator.every)]
    if by_counting:
        yield f"work counted from the reference, where nobody wrote count_cost: {few(by_counting)}"
    times = [time for operator in survey.operators for shape in operator.every for time in shape.times.values()]
    outdated = sorted({time.solution or "" for time in times if time.outdated})
    if outdated:
        yield f"{OUTDATED} outdated: measured with sources that the solution has no more: {', '.join(outdated)}"
    for source in survey.sources:
        if source.recorded and source.recorded.other_groups:
            yield f"also recorded, not used here: {groups_told(source.recorded.other_groups)}"


def groups_told(groups: Iterable[Group]) -> str:
    return "; ".join(f"{group.gpu} under {group.protocol} ({counted(group.rows, 'row')})" for group in groups)


def importance_note(importance: Mapping[str, float]) -> str:
    return f"importance as printed adds up to {sum(importance.values()):.1f} %; as a weight each is divided by that sum"
