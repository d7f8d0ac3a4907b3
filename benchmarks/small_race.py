"""The nineteen small and memory-bound operators against their aims, from the recorded traces; needs no GPU.

    python benchmarks/small_race.py            # what is missed, a line a shape
    python benchmarks/small_race.py --write    # the tables of docs/lab/memory_bound.md, between its two markers

Aims, for the time as a CUDA graph and launched by the host alike:
    one pass            empty kernel + 1.08 x bytes needed / the measured copy + 1 us
    sorts and selects   half the best rival's time where that is above 10 us, else 5 us beyond the empty kernel; without
                        a rival 5 us beyond the empty kernel
    any shape           at most 1 / 0.97 of the best rival's time
    any operator        the best rival over ours, geometric mean over the shapes, at least 1.1
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import kernelderby
from kernelderby.catalog import Workload
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu
from kernelderby.rank.model import PASSED, Cell, WorkloadRow
from kernelderby.report.numbers import amount, factor, microseconds
from kernelderby.roofline.selection import BASELINE_AUTHOR
from kernelderby.store.counts import counted
from kernelderby.store.files import write_whole

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "docs" / "lab" / "memory_bound.md"
OPENING, CLOSING = "<!-- benchmarks/small_race.py --write -->", "<!-- /benchmarks/small_race.py -->"
OURS = "kernelderby"
GPU = "NVIDIA H200"
KINDS = ("graph", "eager")
ONE_PASS = (
    "rms_norm",
    "fused_add_rms_norm",
    "layer_norm",
    "l2_norm",
    "gated_rms_norm",
    "fused_qk_rmsnorm",
    "silu_and_mul",
    "fp8_dynamic_per_token_quant",
    "per_token_group_quant_fp8",
    "fused_rmsnorm_quant",
    "fused_qkv_rope",
    "mrope",
    "reshape_and_cache",
    "causal_conv1d",
    "moe_sum_reduce",
)
SELECTING = ("topk_filter", "moe_topk_gating_softmax", "moe_align_block_size", "moe_count_and_sort")


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload. ours, best: kind of time -> us; empty where not measured. rival: whose the best graph time is.
    bytes_needed: that have to move, in place where our solution works in place. aim: kind -> us."""

    label: str
    bytes_needed: int
    ours: dict[str, float]
    best: dict[str, float]
    rival: str
    aim: dict[str, float]
    outdated: bool = False

    def lead(self, kind: str = "graph") -> float | None:
        """The best rival's time over ours."""
        return self.best[kind] / self.ours[kind] if kind in self.ours and kind in self.best else None

    def above(self, kind: str = "graph") -> bool:
        return kind in self.ours and self.ours[kind] > self.aim[kind]


def ceilings() -> tuple[float, dict[str, float]]:
    """The measured copy in bytes per us, and the empty kernel's us by kind. DerbyError where they were not measured."""
    gpu = find_gpu(GPU)
    measured = gpu.measured if gpu else None
    if (
        measured is None
        or "copy" not in measured.traffic_bytes_per_second
        or set(KINDS) - set(measured.empty_kernel_us)
    ):
        raise DerbyError(f"{GPU}: has no measured copy and empty kernel; run benchmarks/ceilings.py there")
    return measured.traffic_bytes_per_second["copy"] / 1e6, measured.empty_kernel_us


def aims(selecting: bool, bytes_needed: int, best: dict[str, float]) -> dict[str, float]:
    """Kind of time -> us."""
    copy, empty = ceilings()
    if not selecting:
        return {kind: empty[kind] + 1.08 * bytes_needed / copy + 1 for kind in KINDS}
    return {kind: best[kind] / 2 if best.get(kind, 0) > 10 else empty[kind] + 5 for kind in KINDS}


def floor_us(bytes_needed: int) -> float:
    """As a graph: the empty kernel, then the bytes needed at the speed of the measured copy."""
    copy, empty = ceilings()
    return empty["graph"] + bytes_needed / copy


def times(cell: Cell) -> dict[str, float]:
    """Kind -> us of a cell of a ranking by graph time."""
    if cell.status != PASSED:
        return {}
    pairs = zip(KINDS, (cell.latency_us, cell.eager_us), strict=True)
    return {kind: value for kind, value in pairs if value is not None}


def shape_of(
    row: WorkloadRow, workload: Workload, ours: str, names: set[str], in_place: bool, selecting: bool
) -> Shape:
    """names: of the solutions that race against ours."""
    if workload.cost is None:
        raise DerbyError(f"{row.label}: has no cost; run derby pack")
    rivals = {name: times(cell) for name, cell in row.cells.items() if name in names}
    known = {kind: [found[kind] for found in rivals.values() if kind in found] for kind in KINDS}
    best = {kind: min(values) for kind, values in known.items() if values}
    rival = next((name for name, found in rivals.items() if best and found.get("graph") == best["graph"]), "")
    needed = workload.cost.needed(in_place)
    mine = row.cells.get(ours, Cell("not measured"))
    return Shape(row.label, needed, times(mine), best, rival, aims(selecting, needed, best), mine.outdated)


def rivals_of(rows: Sequence[WorkloadRow], authors: dict[str, str]) -> set[str]:
    """Solution -> author of the solutions that race against ours. If a library was timed on any shape, plain torch is
    no rival, not even on shapes without a time of that library."""
    others = {name for name, author in authors.items() if author != OURS}
    libraries = {name for name in others if authors[name] != BASELINE_AUTHOR}
    return {name for name in libraries if any(times(row.cells[name]) for row in rows if name in row.cells)} or others


def shapes_of(trace_set: kernelderby.TraceSet, operator: str) -> list[Shape]:
    """Every surveyed shape of an operator, from the least work."""
    own = {
        solution.name: solution
        for solution in trace_set.solutions.values()
        if (solution.author, solution.definition) == (OURS, operator)
    }
    [name] = own
    workloads = {workload.uuid: workload for workload in trace_set.workloads[operator]}
    [ranking, *_] = trace_set.rank(operator, origin="survey", gpu=GPU).value
    authors = {each.name: each.author for each in trace_set.solutions.values() if each.definition == operator}
    rivals = rivals_of(ranking.rows, authors)
    shapes = [
        shape_of(row, workloads[row.uuid], name, rivals, bool(own[name].in_place), operator in SELECTING)
        for row in ranking.rows
    ]
    return sorted(shapes, key=lambda shape: shape.bytes_needed)


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def leads(shapes: Sequence[Shape], kind: str) -> list[float]:
    return [lead for shape in shapes if (lead := shape.lead(kind)) is not None]


def lead_text(shapes: Sequence[Shape], kind: str) -> str:
    """Geometric mean (worst shape)."""
    known = leads(shapes, kind)
    return f"{factor(geomean(known))} ({factor(min(known))})" if known else "-"


def reach_text(shapes: Sequence[Shape]) -> str:
    """The lead that a kernel at its floor on every shape would have over the best rival: a bound of the possible
    gain."""
    known = [shape.best["graph"] / floor_us(shape.bytes_needed) for shape in shapes if shape.lead() is not None]
    return factor(geomean(known)) if known else "-"


def missed(operator: str, shapes: Sequence[Shape]) -> list[str]:
    """A line for each aim that is not reached, and for each shape without a time."""
    lines = []
    for kind in KINDS:
        known = leads(shapes, kind)
        if known and geomean(known) < 1.1:
            lines.append(f"{operator}: {kind}: {geomean(known):.3f} over the best rival, aim 1.1")
    for shape in shapes:
        if not shape.ours:
            lines.append(f"{operator} {shape.label}: not measured")
        if shape.outdated:
            lines.append(f"{operator} {shape.label}: measured with other sources")
        for kind in KINDS:
            if shape.above(kind):
                lines.append(f"{operator} {shape.label}: {kind} {shape.ours[kind]:.2f} us, aim {shape.aim[kind]:.2f}")
            if (lead := shape.lead(kind)) is not None and lead < 0.97:
                lines.append(f"{operator} {shape.label}: {kind} {lead:.3f} over {shape.rival}, aim 0.97")
    return lines


def summary(found: dict[str, list[Shape]]) -> list[str]:
    lines = [
        "| operator | shapes | graph, over the best rival | eager | at the floor | below 0.97 | above the aim "
        "| largest, MB | TB/s |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for operator, shapes in found.items():
        measured = [shape for shape in shapes if shape.ours]
        below = sum(lead < 0.97 for lead in leads(shapes, "graph"))
        cells = [
            operator,
            f"{len(measured)} of {len(shapes)}" if len(measured) < len(shapes) else str(len(shapes)),
            lead_text(shapes, "graph"),
            lead_text(shapes, "eager"),
            "-" if operator in SELECTING else reach_text(shapes),
            str(below),
            str(sum(shape.above() for shape in shapes)),
        ]
        if measured:
            largest = max(measured, key=lambda shape: shape.bytes_needed)
            speed = largest.bytes_needed / largest.ours["graph"] / 1e6
            cells += [amount(largest.bytes_needed / 1e6), f"{speed:.2f}" if speed > 0.1 else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for kind in KINDS:
        raced = [values for shapes in found.values() if (values := leads(shapes, kind))]
        if raced:
            mean, worst = geomean([geomean(values) for values in raced]), min(map(min, raced))
            lines.append(
                f"{kind}: {mean:.2f} over {counted(len(raced), 'operator')} with a rival, worst shape {worst:.2f}.  "
            )
    return lines


def table(operator: str, shapes: Sequence[Shape]) -> list[str]:
    """Every shape: time as a graph, eager in brackets."""
    lines = [
        f"**{operator}**",
        "",
        "| shape | MB | floor | aim | ours | best rival | lead | beyond |",
        "|:--|--:|--:|--:|--:|:--|--:|--:|",
    ]
    for shape in shapes:
        floor = floor_us(shape.bytes_needed)
        cells = [shape.label, amount(shape.bytes_needed / 1e6), microseconds(floor)]
        cells += [microseconds(shape.aim["graph"]), pair_text(shape.ours) + ("†" if shape.outdated else "")]
        cells.append(f"{pair_text(shape.best)} {shape.rival.removesuffix('_' + operator)}" if shape.rival else "-")
        lead = shape.lead()
        cells.append("-" if lead is None else f"**{lead:.2f}**" if lead < 0.97 else f"{lead:.2f}")
        cells.append(f"{shape.ours['graph'] - floor:.2f}{' !' if shape.above() else ''}" if shape.ours else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def pair_text(found: dict[str, float]) -> str:
    if "graph" not in found:
        return "-"
    return microseconds(found["graph"]) + (f" ({microseconds(found['eager'])})" if "eager" in found else "")


def page_text(found: dict[str, list[Shape]]) -> str:
    lines = summary(found)
    for operator, shapes in found.items():
        lines += ["", *table(operator, shapes)]
    return "\n".join(lines)


def replaced(page: str, text: str) -> str:
    """The page with its part between the markers replaced by text. DerbyError if it has no markers."""
    before, opening, rest = page.partition(f"{OPENING}\n")
    _, closing, after = rest.partition(f"{CLOSING}\n")
    if not (opening and closing):
        raise DerbyError(f"{PAGE}: has no lines {OPENING} and {CLOSING}")
    return f"{before}{opening}{text}\n{closing}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="fill the tables of docs/lab/memory_bound.md")
    arguments = parser.parse_args()
    trace_set = kernelderby.open(CHECKOUT)
    found = {operator: shapes_of(trace_set, operator) for operator in (*ONE_PASS, *SELECTING)}
    if arguments.write:
        write_whole(PAGE, replaced(PAGE.read_text(encoding="utf-8"), page_text(found)))
        return
    print("\n".join(line.rstrip() for line in summary(found)))
    print("\n".join(line for operator, shapes in found.items() for line in missed(operator, shapes)))


if __name__ == "__main__":
    try:
        main()
    except DerbyError as error:
        raise SystemExit(f"small_race: {error}") from None
