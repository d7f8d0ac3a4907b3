"""Builds all contents of the page from a set on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelderby import __version__
from kernelderby.catalog import Catalog, published
from kernelderby.catalog.groups import groups_of
from kernelderby.catalog.templates import not_raced
from kernelderby.errors import DerbyError, LeftOut
from kernelderby.page.changes import changes, rows_before
from kernelderby.page.environments import Environments
from kernelderby.page.model.page import FIELDS, KINDS, PageModel
from kernelderby.page.model.races import ShownRace
from kernelderby.page.operators import ordered_workloads, shown_gpus, shown_operator, shown_solution
from kernelderby.page.races import Samples, races_of
from kernelderby.page.recordings import recordings
from kernelderby.page.scores import leads, protocols, scores
from kernelderby.page.sources import DOCS, Sources, repository_of, sources_of
from kernelderby.page.trust import trust
from kernelderby.rows.measurement import by_definition, moment_of
from kernelderby.store.bounds import reading


@dataclass(frozen=True, slots=True)
class BuiltPage:
    """samples: the samples of each race, workload by workload and solution by solution, if model.has_samples. left_out:
    a line for each broken part of the set."""

    model: PageModel
    samples: tuple[list[list[Samples]], ...]
    sources: Sources
    left_out: tuple[str, ...] = ()


def build_page(root: Path | str = ".", against: Path | None = None) -> BuiltPage:
    """DerbyError if root is not a trace set, or `against` holds no rows."""
    return page_of(Catalog.open(root), against)


def page_of(catalog: Catalog, against: Path | None = None) -> BuiltPage:
    every = catalog.traces(replaced=False)
    rows = [row for row in every if row.definition in catalog.definitions]
    groups = catalog.row_groups() if catalog.is_large else groups_of(rows)
    has_samples = not catalog.is_large
    measured = by_definition(rows)
    workloads = {name: ordered_workloads(catalog.shapes(name, measured.get(name, ()))) for name in catalog.definitions}
    solutions = {name: {each.name: each for each in catalog.solutions_of(name)} for name in catalog.definitions}
    environments, warnings = Environments(), list[LeftOut]()
    races: list[tuple[ShownRace, list[list[Samples]]]] = []
    for name, own in measured.items():
        try:
            with reading(f"races of {name}"):
                races += races_of(name, own, workloads[name], solutions[name], environments, has_samples)
        except DerbyError as error:
            warnings.append(LeftOut(f"{name}: {error}; left out"))
    shown_races = tuple(race for race, _ in races)
    gpus = shown_gpus(groups)
    importance = published.importance(catalog.root, catalog.left_out)
    operators = tuple(
        shown_operator(catalog, definition, workloads[name], importance.get(name), gpus, _places(shown_races, name))
        for name, definition in catalog.definitions.items()
    )
    found_scores = scores(catalog, rows)
    changed = None
    if against is not None:
        before = by_definition(rows_before(against, catalog))
        changed = changes(str(against), measured, before, workloads, solutions)
    profiles = recordings(catalog, every, lambda problem: warnings.append(LeftOut(problem)))
    libraries = not_raced(catalog.root, catalog.definitions, catalog.left_out)
    labels = {operator.name: [shape.label for shape in operator.shapes] for operator in operators}
    newest = max((group.last for group in groups), key=moment_of, default="")
    model = PageModel(
        version=__version__,
        repository=repository_of(catalog.root),
        docs=DOCS,
        newest=newest,
        rows=sum(group.rows for group in groups),
        has_samples=has_samples,
        kinds=KINDS,
        fields=FIELDS,
        gpus=gpus,
        protocols=protocols(groups),
        leads=leads(catalog, rows),
        operators=tuple(sorted(operators, key=lambda each: (-(each.importance or 0), each.name))),
        solutions={
            each.name: each for each in (shown_solution(each, catalog.root) for each in catalog.solutions.values())
        },
        races=shown_races,
        scores=found_scores,
        changes=changed,
        pipelines=tuple(profiles.pipelines),
        layers=tuple(profiles.layers),
        kernels=tuple(profiles.kernels),
        timelines=tuple(profiles.timelines),
        studies=tuple(profiles.studies),
        trust=trust(catalog, groups, shown_races, labels, libraries, [*catalog.warnings, *warnings]),
        environments=tuple(environments.all),
    )
    left_out = tuple(each for each in (*catalog.warnings, *warnings) if isinstance(each, LeftOut))
    sources = sources_of(catalog, against)
    samples = tuple(samples for _, samples in races) if has_samples else ()
    return BuiltPage(model, samples, sources, left_out)


def _places(races: Sequence[ShownRace], definition: str) -> dict[str, tuple[int, ...]]:
    """GPU -> places of the definition's races in order, the default race first."""
    found: dict[str, list[int]] = {}
    for place, race in enumerate(races):
        if race.definition == definition:
            found.setdefault(race.gpu, []).append(place)
    return {gpu: tuple(places) for gpu, places in found.items()}
