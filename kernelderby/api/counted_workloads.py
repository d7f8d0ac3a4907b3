"""Which workloads count: for given words, in the importance ranking, and in each leg of a lead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kernelderby.catalog import Catalog, Solution, Workload, published
from kernelderby.catalog.selection import by_leg, by_origin, of_origin, select_in_each
from kernelderby.errors import DerbyError
from kernelderby.rank.by_importance import ImportanceRanking, rank_by_importance
from kernelderby.roofline.recorded import RecordedTimes
from kernelderby.rows.measurement import Measurement, by_definition


def ranked_by_importance(
    catalog: Catalog, rows: Callable[[], RecordedTimes], known: Mapping[str, Solution], origins: Sequence[str] = ()
) -> ImportanceRanking:
    """TraceSet.rank_by_importance() for some rows. known: the solutions that take part."""
    catalog.check_origins(origins)
    importance = published.importance(catalog.root, catalog.left_out)
    if not importance:
        raise DerbyError(f"--importance: {catalog.root}/profiles has no published_importance.csv; leave it out")
    workloads = {
        name: by_origin(of_origin(catalog.workloads(name), origins))[0]
        for name in importance
        if name in catalog.definitions
    }
    if origins:
        workloads = {name: own for name, own in workloads.items() if own}
        importance = {name: importance[name] for name in workloads}
    return rank_by_importance(rows(), workloads, known, importance)


def legs_of(
    catalog: Catalog, names: Iterable[str], rows: Sequence[Measurement], origins: Sequence[str] = ()
) -> dict[str, dict[str, list[Workload]]]:
    """Leg (selection.LEGS) -> definition -> its workloads, including the fresh shapes of these rows."""
    legs: dict[str, dict[str, list[Workload]]] = {}
    measured = by_definition(rows)
    for name in names:
        shapes = catalog.shapes(name, measured.get(name, ()))
        for leg, part in by_leg(of_origin(shapes, origins)).items():
            legs.setdefault(leg, {})[name] = part
    return legs


def chosen_of(
    catalog: Catalog, known: Mapping[str, Sequence[Workload]], words: Sequence[str], origins: Sequence[str]
) -> dict[str, list[Workload]]:
    """Definition -> its known workloads of these origins that a word names. DerbyError for an unknown origin, and for a
    word that names no workload of any definition."""
    catalog.check_origins(origins)
    found = {name: of_origin(workloads, origins) for name, workloads in known.items()}
    return select_in_each(found, words)
