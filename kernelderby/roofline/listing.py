"""The contents of a set: every operator in a row (`derby list`), one operator in full (`derby show`). No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from kernelderby.catalog import Catalog, Definition, Solution, Workload, published
from kernelderby.catalog.selection import by_origin, of_origin
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu, gpu_id
from kernelderby.roofline.floors import OperatorShare, operator_share
from kernelderby.roofline.recorded import RecordedTime, recorded, with_shares
from kernelderby.roofline.selection import GroupKey, RowCount, choose_group, group_rows, tallies
from kernelderby.store.counts import counted


@dataclass(frozen=True, slots=True)
class ListedOperator:
    """One definition. dtypes: see dtypes_of. shapes: number of shapes that count in S (selection.by_origin). others:
    origin -> number of shapes, for other origins. importance: percent as published. shares: GPU id -> S over the
    shapes, each with its fastest solution; GPUs without any S are absent."""

    name: str
    op_type: str
    dtypes: tuple[str, ...]
    shapes: int
    others: dict[str, int]
    importance: float | None
    solutions: int
    shares: dict[str, OperatorShare]


@dataclass(frozen=True, slots=True)
class Listing:
    """gpus: ids of the GPUs with rows in the set, most rows first. of_operators: number of operators in the set."""

    operators: tuple[ListedOperator, ...]
    of_operators: int
    gpus: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Listing({counted(len(self.operators), 'operator')})"


@dataclass(frozen=True, slots=True)
class Contract:
    """One definition with everything that belongs to it. descriptions: axes | inputs | outputs -> name -> text.
    best: GPU id -> workload's uuid -> the fastest solution there."""

    definition: Definition
    dtypes: tuple[str, ...]
    descriptions: dict[str, dict[str, str]]
    importance: float | None
    solutions: tuple[Solution, ...]
    workloads: tuple[Workload, ...]
    gpus: tuple[str, ...]
    best: dict[str, dict[str, RecordedTime]]

    def __repr__(self) -> str:
        parts = f"{counted(len(self.solutions), 'solution')}, {counted(len(self.workloads), 'workload')}"
        return f"Contract({self.definition.name!r}: {parts})"


class RowsByDefinition(Protocol):
    """The facts about rows that a listing needs; api.recorded_rows.RecordedRows has them."""

    def tallies(self) -> list[RowCount]: ...
    def fastest(self, definition: str, key: GroupKey) -> dict[str, RecordedTime]: ...


def listing(
    catalog: Catalog,
    recordings: RowsByDefinition,
    words: Sequence[str] = (),
    sort: str = "importance",
    origins: Collection[str] = (),
) -> Listing:
    """words: parts of an operator's name, op_type or dtype, any case; an operator must match all words. origins: only
    workloads of these origins, and only operators that have some. sort: "name"; "importance" or
    "shapes": the largest first; "s": the smallest S on the first GPU first, since the possible gain is largest there.
    Operators without that number come last, equal ones by name. DerbyError for a word without a match, if no operator
    matches all words, and for an unknown origin.
    """
    catalog.check_origins(origins)
    matching = _matching(catalog, words)  # before all rows are read
    counted = recordings.tallies()
    gpus = _gpus(tally for tally in counted if tally.definition in catalog.definitions)
    groups = group_rows(counted)
    chosen = {gpu: choose_group(groups, gpu, None) for gpu in gpus}
    importance = published.importance(catalog.root, catalog.left_out)
    operators = []
    for each in matching:
        if not origins or of_origin(catalog.workloads(each.name), origins):
            times = {gpu: recordings.fastest(each.name, key) for gpu, key in chosen.items()}
            operators.append(_operator(catalog, each, times, importance, origins))
    operators.sort(key=lambda operator: (_sort_key(operator, sort, gpus), operator.name))
    return Listing(tuple(operators), len(catalog.definitions), gpus)


def contract(catalog: Catalog, name: str, origins: Collection[str] = ()) -> Contract:
    """origins: only workloads of these origins. DerbyError for an unknown name or origin; it suggests similar ones."""
    catalog.check_origins(origins)
    definition = catalog.definition(name)
    rows = catalog.traces(name)
    gpus = _gpus(tallies(rows))
    times = {gpu: recorded(rows, catalog.solutions, gpu).fastest(name) for gpu in gpus}
    return Contract(
        definition=definition,
        dtypes=dtypes_of(catalog, definition),
        descriptions=definition.descriptions,
        importance=published.importance(catalog.root, catalog.left_out).get(name),
        solutions=tuple(sorted(catalog.solutions_of(name), key=lambda solution: solution.name)),
        workloads=tuple(of_origin(catalog.workloads(name), origins)),
        gpus=gpus,
        best=_best(catalog, definition, times),
    )


def dtypes_of(catalog: Catalog, definition: Definition) -> tuple[str, ...]:
    """The dtypes of the workloads' flops; for an operator without costs, the dtype of its first tensor."""
    counted = {
        dtype for workload in catalog.workloads(definition.name) if workload.cost for dtype in workload.cost.flops
    }
    if counted:
        return tuple(sorted(counted))
    return tuple(spec.dtype for spec in definition.inputs.values() if spec.shape is not None)[:1]


def _matching(catalog: Catalog, words: Sequence[str]) -> list[Definition]:
    fields = {
        definition.name: (definition.name, definition.op_type, *dtypes_of(catalog, definition))
        for definition in catalog.definitions.values()
    }
    by_word = [
        {name for name, texts in fields.items() if any(word.casefold() in text.casefold() for text in texts)}
        for word in words
    ]
    where = "" if catalog.root == Path() else f"{catalog.root}: "  # the current directory needs no name
    for word, names in zip(words, by_word, strict=True):
        if not names:
            raise DerbyError(f"{where}no operator matches {word!r}; {_near(word, fields.values())}")
    found = set(fields).intersection(*by_word)
    if not found and fields:
        raise DerbyError(f"{where}no operator matches all of {', '.join(words)}; leave one out")
    return [definition for name, definition in catalog.definitions.items() if name in found]


def _near(word: str, fields: Iterable[tuple[str, ...]]) -> str:
    """Names, op_types and dtypes, and words within them, that resemble the word."""
    texts = {text for each in fields for text in each}
    near = get_close_matches(word.casefold(), sorted(texts | {part for text in texts for part in text.split("_")}))
    return f"did you mean {' or '.join(near)}?" if near else "`derby list` without words shows all"


def _operator(
    catalog: Catalog,
    definition: Definition,
    times: Mapping[str, Mapping[str, RecordedTime]],
    importance: dict[str, float],
    origins: Collection[str],
) -> ListedOperator:
    workloads, *others = by_origin(of_origin(catalog.workloads(definition.name), origins))
    shares = {}
    for gpu, best in _best(catalog, definition, times).items():
        found = [best[workload.uuid].share if workload.uuid in best else None for workload in workloads]
        if any(share is not None for share in found):
            shares[gpu] = operator_share(found)
    return ListedOperator(
        definition.name,
        definition.op_type,
        dtypes_of(catalog, definition),
        len(workloads),
        {each[0].origin or "none": len(each) for each in others},
        importance.get(definition.name),
        len(catalog.solutions_of(definition.name)),
        shares,
    )


def _sort_key(operator: ListedOperator, sort: str, gpus: tuple[str, ...]) -> float:
    if sort == "importance":
        return -(operator.importance or 0.0)
    if sort == "shapes":
        return -operator.shapes
    if sort == "s":
        share = operator.shares.get(gpus[0]) if gpus else None
        return share.measured if share and share.measured is not None else float("inf")
    return 0.0


def _gpus(tallied: Iterable[RowCount]) -> tuple[str, ...]:
    """Ids, most rows first; equal ones by id."""
    by_id: Counter[str] = Counter()
    for tally in tallied:
        by_id[gpu_id(tally.gpu)] += tally.rows
    return tuple(sorted(by_id, key=lambda each: (-by_id[each], each)))


def _best(
    catalog: Catalog, definition: Definition, times: Mapping[str, Mapping[str, RecordedTime]]
) -> dict[str, dict[str, RecordedTime]]:
    """GPU id -> uuid -> the fastest passed solution, with its shares of the GPU's peaks."""
    workloads = catalog.workloads(definition.name)
    return {gpu: with_shares(find_gpu(gpu), workloads, own) for gpu, own in times.items()}
