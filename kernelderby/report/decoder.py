"""What a decoder's steps took with each variant's operators, beside what the recorded rows predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, percent


class LoadLike(Protocol):
    @property
    def tokens(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def context(self) -> int: ...


class CellLike(Protocol):
    """measure.decoder.bench.DecoderCell."""

    @property
    def load(self) -> LoadLike: ...
    @property
    def step_us(self) -> dict[str, float]: ...
    @property
    def predicted_us(self) -> float | None: ...
    @property
    def unknown(self) -> tuple[str, ...]: ...
    @property
    def difference(self) -> dict[str, float]: ...
    @property
    def eager_us(self) -> dict[str, float]: ...
    @property
    def gains_us(self) -> dict[str, float]: ...


def served_answer(title: str, where: str, cells: Sequence[CellLike]) -> Answer[tuple[CellLike, ...]]:
    """Frame: steps."""
    return Answer(
        tuple(cells),
        lambda: {"title": title, "where": where, "steps": [_data(each) for each in cells]},
        lambda: [_report(title, where, cells)],
        lambda: (frame("steps", map(_data, cells)),),
    )


def _data(cell: CellLike) -> dict[str, Any]:
    rest = {
        name: getattr(cell, name)
        for name in ("step_us", "predicted_us", "unknown", "difference", "eager_us", "gains_us")
    }
    return {name: getattr(cell.load, name) for name in ("tokens", "sequences", "context")} | rest


def _report(title: str, where: str, cells: Sequence[CellLike]) -> Report:
    columns = ("tokens", "sequences", "context", "libraries us", "compile us", "winners us", "gain predicted", "gain")
    tables = [Table("Steps", tuple(map(Column, columns)), tuple(map(_row, cells)), key_columns=2)]
    if any(cell.eager_us for cell in cells):
        tables.append(_tokens(cells))
        tables.append(_shares(cells))
    facts = [
        f"On {where}. Steps replayed as CUDA graphs, in turn A B B A; medians. One GPU, no scheduler, random weights, "
        "full cache, experts drawn by Zipf's law."
        if where != "CPU"
        else "On a CPU: the times mean nothing; the logits were compared.",
        "Libraries: the fastest installed library of each operator. Compile: torch.compile around its attention and "
        "experts. Predicted: from recorded rows, before the winners ran.",
        f"Largest difference of a logit to the libraries': {max(_differences(cells), default=0):.2g} of the largest "
        "logit.",
    ]
    unknown = dict.fromkeys(each for cell in cells for each in cell.unknown)
    notes = [f"{each}: no shape measured nearby, so nothing is predicted of it" for each in unknown]
    return Report(title, tuple(facts), tuple(tables), tuple(notes))


def _tokens(cells: Sequence[CellLike]) -> Table:
    """Tokens per second of so many layers, with graphs and without."""
    columns = ("tokens", "sequences", *(f"{name}{how}" for how in (", graph", "") for name in ("libraries", "winners")))
    rows = [
        (
            *(TableCell(str(each)) for each in (cell.load.tokens, cell.load.sequences)),
            *(
                TableCell(f"{cell.load.tokens / times[name] * 1e6:,.0f}")
                for times in (cell.step_us, cell.eager_us)
                for name in ("libraries", "winners")
            ),
        )
        for cell in cells
    ]
    return Table(
        "Tokens per second, through the layers of the decoder", tuple(map(Column, columns)), tuple(rows), key_columns=2
    )


def _shares(cells: Sequence[CellLike]) -> Table:
    """How much longer a step takes with one operator left to the libraries, of the winners' step."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.gains_us))
    rows = [
        (
            *(TableCell(str(each)) for each in (cell.load.tokens, cell.load.sequences)),
            *(
                TableCell(percent(cell.gains_us[name] / cell.step_us["winners"])) if name in cell.gains_us else NOTHING
                for name in names
            ),
        )
        for cell in cells
    ]
    return Table(
        "Longer steps with one operator left to the libraries",
        tuple(map(Column, ("tokens", "sequences", *names))),
        tuple(rows),
        key_columns=2,
    )


def _differences(cells: Sequence[CellLike]) -> list[float]:
    return [each for cell in cells for each in cell.difference.values()]


def _row(cell: CellLike) -> tuple[TableCell, ...]:
    base, winners = cell.step_us["libraries"], cell.step_us["winners"]
    predicted = NOTHING if cell.predicted_us is None else TableCell(percent(base / cell.predicted_us - 1))
    times = (cell.step_us.get(name) for name in ("libraries", "compile", "winners"))
    return (
        *(TableCell(str(each)) for each in (cell.load.tokens, cell.load.sequences, cell.load.context)),
        *(NOTHING if each is None else TableCell(microseconds(each)) for each in times),
        predicted,
        TableCell(percent(base / winners - 1)) if cell.predicted_us is not None else NOTHING,
    )
