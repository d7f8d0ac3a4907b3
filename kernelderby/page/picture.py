"""The picture for a README: one race on its logarithmic axis, and S of every operator. SVG, readable on any ground."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from kernelderby.errors import DerbyError
from kernelderby.page.model.operators import ShownOperator
from kernelderby.page.model.page import KINDS, PageModel
from kernelderby.page.model.races import ShownOrder, ShownRace
from kernelderby.report.numbers import floor_us, percent
from kernelderby.store.counts import shortened
from kernelderby.store.fields import suggestion

# Okabe and Ito's palette, darkened for a white ground. Each colour has its own shape, so colour alone never decides.
LOOKS = (
    ("#0072b2", "circle"),
    ("#c27a00", "square"),
    ("#00805f", "triangle"),
    ("#b0528a", "diamond"),
    ("#2d8fce", "down"),
    ("#c04a00", "cross"),
    ("#7a6d00", "plus"),
    ("#4b535e", "bar"),
)
INK, QUIET, LINE, PAPER = "#1a1f26", "#565f6b", "#e2e5ea", "#ffffff"
WIDTH, GAP, HEAD, FOOT = 1000, 36, 62, 30
OPERATOR_ROW = 16
NAMES, LONGEST = 178, 28  # pixels, and letters, for the name of an operator


@dataclass(frozen=True, slots=True)
class Axis:
    """Logarithmic, from low to high, over the pixels left to right."""

    low: float
    high: float
    left: float
    right: float

    def at(self, value: float) -> float:
        return self.left + math.log(value / self.low) / math.log(self.high / self.low) * (self.right - self.left)

    def ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        wide = self.high / self.low > 300
        found = [step * 10.0**power for power in decades for step in ((1,) if wide else (1, 3))]
        return [tick for tick in found if self.low <= tick <= self.high]


def picture(model: PageModel, definition: str | None = None) -> str:
    """definition: the race to draw; default the one with most solutions, of equal ones the one with fewest rows.
    DerbyError if nothing was recorded."""
    gpu = next((each for each in model.gpus if each.rows), None)
    raced = [each for each in model.operators if gpu and each.races.get(gpu.id)]
    raced = [each for each in raced if gpu and _measured(model.races[each.races[gpu.id][0]])]
    if gpu is None or not raced:
        raise DerbyError("--picture: the set holds no recorded times; measure with `derby bench`")
    chosen = _chosen(model, raced, gpu.id, definition)
    place = [each.id for each in model.gpus].index(gpu.id)
    race = model.races[chosen.races[gpu.id][0]]
    rows = len(_measured(race))
    legend = 44 + 17 * len(race.solutions)
    step = min(84.0, max(24.0, (len(raced) * OPERATOR_ROW - legend) / max(rows, 1)))
    height = HEAD + FOOT + max(rows * step + legend, len(raced) * OPERATOR_ROW + 20)
    middle = WIDTH / 2
    parts = [
        *_race(chosen, race, place, step, 16, middle - GAP / 2),
        *_operators(model, raced, gpu.id, middle + GAP / 2, WIDTH - 16),
        _text(16, height - 10, f"{gpu.name} · dashed: what light allows (the floor) · S: floor over time", QUIET, 11),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        'font-family="system-ui, Segoe UI, Roboto, DejaVu Sans, sans-serif" role="img">\n'
        f"<title>{escape(gpu.name)}: the race of {escape(chosen.name)}, and S of every operator</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _chosen(model: PageModel, raced: Sequence[ShownOperator], gpu: str, definition: str | None) -> ShownOperator:
    if definition is not None:
        found = next((each for each in raced if each.name == definition), None)
        if found is None:
            raise DerbyError(f"--race: {definition!r} has no times; {suggestion(definition, [e.name for e in raced])}")
        return found
    races = {each.name: model.races[each.races[gpu][0]] for each in raced}
    return max(raced, key=lambda each: (len(races[each.name].solutions), -len(_measured(races[each.name]))))


def _times(race: ShownRace, at: int) -> list[float | None]:
    found = [cell.times[KINDS.index(race.kind)] for cell in race.cells[at]]
    return [each.time_us if each else None for each in found]


def _measured(race: ShownRace) -> list[int]:
    """Places of the workloads for which some solution has a time."""
    return [at for at in range(len(race.cells)) if any(time is not None for time in _times(race, at))]


def _sizes(label: str) -> tuple[str, str]:
    """Names and sizes of a label such as "num_tokens=126, hidden_size=4096". Parts without a name count as names."""
    pairs = [part.partition("=") for part in label.split(", ")]
    return " × ".join(name for name, *_ in pairs), " × ".join(size or name for name, _, size in pairs)


def _race(operator: ShownOperator, race: ShownRace, gpu: int, step: float, left: float, right: float) -> Iterator[str]:
    measured = _measured(race)
    floors = {at: floor[0] for at in measured if (floor := operator.shapes[race.shapes[at]].floors[gpu])}
    times = [time for at in measured for time in _times(race, at) if time is not None]
    start = left + 104
    values = [*times, *floors.values()]
    axis = Axis(min(values) * 0.85, max(values) * 1.15, start, right)
    bottom = HEAD + len(measured) * step
    yield _text(left, 24, shortened(operator.name, 52), INK, 14, bold=True)
    axes = _sizes(operator.shapes[race.shapes[measured[0]]].label)[0]
    yield _text(left, 42, shortened(f"{axes}: {race.kind} time in us, a mark a solution", 76), QUIET, 11)
    for tick in axis.ticks():
        x = axis.at(tick)
        yield f'<path d="M{x:.1f} {HEAD - 4}V{bottom:g}" stroke="{LINE}"/>'
        yield _text(x, bottom + 14, floor_us(tick), QUIET, 10, "middle")
    apart = max(0.0, min(12.0, (step - 18) / max(1, len(race.solutions) - 1)))  # lanes, if there is room
    for row, at in enumerate(measured):
        y = HEAD + (row + 0.5) * step
        yield _text(left, y + 4, shortened(_sizes(operator.shapes[race.shapes[at]].label)[1], 17), INK, 11)
        yield f'<path d="M{start:.1f} {y + step / 2:.1f}H{right:.1f}" stroke="{LINE}"/>'
        if at in floors:
            x = axis.at(floors[at])
            top, down = y - step / 2 + 3, step - 6
            yield f'<path d="M{x:.1f} {top:.1f}v{down:.1f}" stroke="{INK}" stroke-width="1.5" stroke-dasharray="3 2"/>'
        for place, time in reversed([*enumerate(_times(race, at))]):
            if time is not None:
                yield _mark(axis.at(time), y + apart * (place - (len(race.solutions) - 1) / 2), place)
    for place, name in enumerate(race.solutions):
        y = bottom + 34 + 17 * place
        yield _mark(left + 110, y - 4, place)
        yield _text(left + 122, y, f"{name}{_behind(race, name)}", INK, 11.5, bold=place == 0)


def _behind(race: ShownRace, name: str) -> str:
    """How much longer the solution takes than the first, in words."""
    order: ShownOrder = race.orders[race.kind]
    standing = next(each for each in order.standings if each.solution == name)
    if standing.geomean is None or name == order.baseline:
        return ""
    return f"  ×{standing.geomean.value:.2f}"


def _operators(model: PageModel, raced: Sequence[ShownOperator], gpu: str, left: float, right: float) -> Iterator[str]:
    start, end = left + NAMES, right - 46
    yield _text(left, 24, "S of every operator", INK, 14, bold=True)
    yield _text(left, 42, "median over its shapes, of the fastest solution; grey: one author only", QUIET, 11)
    bottom = HEAD + len(raced) * OPERATOR_ROW
    for tenth in (0, 25, 50, 75, 100):
        x = start + tenth / 100 * (end - start)
        yield f'<path d="M{x:.1f} {HEAD - 4}V{bottom:g}" stroke="{LINE}"/>'
        yield _text(x, bottom + 14, f"{tenth}%", QUIET, 10, "middle")
    for row, operator in enumerate(raced):
        race = model.races[operator.races[gpu][0]]
        order = race.orders[race.kind]
        y = HEAD + row * OPERATOR_ROW
        yield _text(left, y + 12, shortened(operator.name, LONGEST), INK, 11)
        if order.share is None or race.protocol != model.protocols[gpu]:  # an older protocol: no S beside the others
            continue
        width = min(1.0, order.share) * (end - start)
        fill = LOOKS[0][0] if order.lead else "#9aa3ae"
        yield f'<rect x="{start:.1f}" y="{y + 3}" width="{max(width, 1):.1f}" height="10" rx="1.5" fill="{fill}"/>'
        yield _text(start + max(width, 1) + 5, y + 12, percent(order.share), QUIET, 10)


def _mark(x: float, y: float, place: int) -> str:
    color, shape = LOOKS[place % len(LOOKS)]
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}"/>'
    paths = {
        "square": "m-4.3-4.3h8.6v8.6h-8.6z",
        "triangle": "m0-5l5 9h-10z",
        "diamond": "m0-5.6l5 5.6l-5 5.6l-5-5.6z",
        "down": "m0 5l5-9h-10z",
        "bar": "m-1.6-5.5h3.2v11h-3.2z",
    }
    if shape in paths:
        return f'<path d="M{x:.1f} {y:.1f}{paths[shape]}" fill="{color}"/>'
    lines = "m-4.5-4.5l9 9m0-9l-9 9" if shape == "cross" else "m-5.5 0h11m-5.5-5.5v11"
    return f'<path d="M{x:.1f} {y:.1f}{lines}" stroke="{color}" stroke-width="2.4"/>'


def _text(x: float, y: float, words: str, fill: str, size: float, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}>'
        f"{escape(words)}</text>"
    )
