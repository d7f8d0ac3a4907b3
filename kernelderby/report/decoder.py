"""The times of a decoder's steps with each variant's operators, beside the prediction from recorded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Column, Report, Row, Table, cell_of, right
from kernelderby.report.numbers import microseconds, percent

DOUBT_SHOWN = 0.002  # of a step
_LOAD = right("tokens", "sequences")


def served_answer(
    title: str, where: str, cells: Sequence[Any], warnings: Sequence[str] = ()
) -> Answer[tuple[Any, ...]]:
    """Frame: steps. cells: measure.decoder.bench.DecoderCell records."""
    return Answer(
        tuple(cells),
        lambda: {"title": title, "where": where, "steps": [_data(each) for each in cells]},
        lambda: [_report(title, where, cells)],
        lambda: (frame("steps", map(_data, cells)),),
        tuple(warnings),
    )


def _data(cell: Any) -> dict[str, Any]:
    rest = {name: getattr(cell, name) for name in ("step_us", "difference", "eager_us", "gains_us", "ran")}
    return {name: getattr(cell.load, name) for name in ("tokens", "sequences", "context")} | rest | _predicted(cell)


def _predicted(cell: Any) -> dict[str, Any]:
    found = cell.prediction
    if found is None:
        return {"predicted_us": None, "predicted_doubt_us": None, "predicted_parts": [], "unknown": []}
    parts = [
        {name: getattr(each, name) for name in ("name", "away", "library_us", "saved_us", "doubt_us")}
        for each in found.operators
    ]
    step = cell.step_us["libraries"] - found.saved_us
    rest = {"predicted_parts": parts, "unknown": list(found.unknown)}
    return {"predicted_us": step, "predicted_doubt_us": found.doubt_us, **rest}


def _report(title: str, where: str, cells: Sequence[Any]) -> Report:
    columns = (*_LOAD, *right("context", "libraries us", "compile us", "winners us", "gain", "predicted"))
    differences = [each for cell in cells for each in cell.difference.values()]
    tables = [Table("Steps", columns, map(_row, cells), key_columns=2)]
    if any(cell.eager_us for cell in cells):
        tables += [_tokens(cells), _shares(cells)]
    tables += [_rests_on(cells)] if any(cell.prediction for cell in cells) else []
    tables += [_ran(cells)] if any(cell.ran for cell in cells) else []
    facts = [
        f"On {where}. Steps replayed as CUDA graphs, in turn A B B A; medians. One GPU, no scheduler, random weights, "
        "full cache, experts drawn by Zipf's law."
        if where != "CPU"
        else "On a CPU: plain torch runs in both variants, so neither times nor logits compare anything.",
        "Libraries: the fastest installed library of each operator, plain torch without one. Compile: torch.compile "
        "around its attention and experts.",
        "Predicted: by the libraries' step and recorded rows, with nine in ten of the rule's own misses."
        if any(cell.prediction for cell in cells)
        else "Nothing is predicted: the package's rows are of another device.",
        f"Largest difference of a logit to the libraries': {max(differences, default=0):.2g} of the largest logit.",
    ]
    unknown = dict.fromkeys(each for cell in cells if cell.prediction for each in cell.prediction.unknown)
    notes = [f"{each}, so its saving is not predicted" for each in unknown]
    return Report(title, tuple(facts), tuple(tables), tuple(notes))


def _rests_on(cells: Sequence[Any]) -> Table:
    """For each load the operators with a relevant doubt, the largest first."""
    rows: list[Row] = []
    for cell in cells:
        step = cell.step_us["libraries"]
        parts = sorted(cell.prediction.operators if cell.prediction else (), key=lambda each: -each.doubt_us)
        for part in parts:
            if part.doubt_us > DOUBT_SHOWN * step:
                away = f"{part.away:.1f} octaves" if part.away else "measured"
                shares = (percent(each / step) for each in (part.library_us, part.saved_us, part.doubt_us))
                rows.append((cell.load.tokens, cell.load.sequences, part.name, away, *shares))
    return Table(
        "Operators with doubtful predictions",
        (*_LOAD, Column("operator", "left"), *right("row away", "of the step", "saves", "doubt")),
        rows,
        "Shares of the libraries' step. Row away: distance of the furthest call to its nearest recorded row, over "
        "all sizes; `derby bench` at those sizes removes the doubt.",
        key_columns=3,
    )


def _ran(cells: Sequence[Any]) -> Table:
    """The solutions of every load, in the order of the loads."""
    found: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        for operator, variants in cell.ran.items():
            for variant, names in variants.items():
                found.setdefault(operator, {}).setdefault(variant, []).extend(names)
    columns = (Column("operator", "left"), *(Column(name, "left") for name in ("libraries", "winners")))
    rows = [
        (operator, *(", ".join(dict.fromkeys(variants[name])) for name in ("libraries", "winners")))
        for operator, variants in found.items()
    ]
    return Table("Solutions that ran", columns, rows)


def _tokens(cells: Sequence[Any]) -> Table:
    """Tokens per second of this number of layers, with and without graphs."""
    names = ("libraries", "winners")
    rows: list[Row] = []
    for cell in cells:
        times = [found[name] for found in (cell.step_us, cell.eager_us) for name in names]
        speeds = (f"{cell.load.tokens / each * 1e6:,.0f}" for each in times)
        rows.append((cell.load.tokens, cell.load.sequences, *speeds))
    columns = (*_LOAD, *right(*(f"{name}{how}" for how in (", graph", "") for name in names)))
    return Table("Tokens per second, through the layers of the decoder", columns, rows, key_columns=2)


def _shares(cells: Sequence[Any]) -> Table:
    """How much longer a step takes with one operator left to the libraries, as a share of the winners' step."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.gains_us))
    rows: list[Row] = []
    for cell in cells:
        shares = {name: percent(gain / cell.step_us["winners"]) for name, gain in cell.gains_us.items()}
        rows.append((cell.load.tokens, cell.load.sequences, *map(shares.get, names)))
    title = "Longer steps with one operator left to the libraries"
    return Table(title, (*_LOAD, *right(*names)), rows, key_columns=2)


def _row(cell: Any) -> Row:
    base, winners = cell.step_us["libraries"], cell.step_us["winners"]
    gain = percent(base / winners - 1) if cell.eager_us or cell.prediction else None
    predicted = None
    if found := cell.prediction:
        low, middle, high = (_gain(base, found.saved_us + side * found.doubt_us) for side in (-1, 0, 1))
        predicted = f"{middle}% ({low} to {high}%)"
    times = (cell_of(cell.step_us.get(name), microseconds) for name in ("libraries", "compile", "winners"))
    return (cell.load.tokens, cell.load.sequences, cell.load.context, *times, gain, predicted)


def _gain(step: float, saved: float) -> str:
    """In per cent, to two digits."""
    gain = 100 * saved / (step - min(saved, step / 2))
    return f"{gain:.0f}" if abs(gain) >= 9.95 else f"{gain:.1f}"
