"""A trace set as an object: its contents, and the answers from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from kernelderby.api.arguments import Names, Shape, check_time, known_gpu, names_of, question, typed
from kernelderby.api.counted_workloads import chosen_of, legs_of, ranked_by_importance
from kernelderby.api.nearest import Nearest, nearest
from kernelderby.api.recorded_rows import RankingAsked, RecordedRows
from kernelderby.catalog import Catalog, Definition, Solution, Workload, published
from kernelderby.catalog.libraries import library_versions, pinned_versions
from kernelderby.catalog.selection import LEGS, by_origin
from kernelderby.catalog.templates import not_raced
from kernelderby.catalog.workloads import FRESH
from kernelderby.errors import DerbyError, LeftOut
from kernelderby.hardware import find_gpu
from kernelderby.rank.bounds import Explanation
from kernelderby.rank.by_importance import ImportanceRanking
from kernelderby.rank.field import Field, field
from kernelderby.rank.for_model import ModelKernels
from kernelderby.rank.leads import KINDS, Leads, leads_on_legs
from kernelderby.rank.model import Ranking
from kernelderby.report.answer import Answer
from kernelderby.report.capture import Captured
from kernelderby.report.field import field_answer
from kernelderby.report.importance import importance_answer
from kernelderby.report.leads import leads_answer
from kernelderby.report.listing import contract_answer, listing_answer
from kernelderby.report.prompt import operator_prompt
from kernelderby.report.ranking.notes import with_other_leads
from kernelderby.report.ranking.races import rankings_answer
from kernelderby.report.roofline.answer import survey_answer
from kernelderby.roofline.listing import Contract, Listing, contract, listing
from kernelderby.roofline.operators import Survey, survey
from kernelderby.roofline.recorded import RecordedTimes, recorded
from kernelderby.roofline.selection import RowCount, definitions_with_rows
from kernelderby.rows.checked import CheckResult
from kernelderby.rows.measurement import Measurement
from kernelderby.store.counts import counted
from kernelderby.store.locate import find_set

Given = ParamSpec("Given")
T = TypeVar("T")
_FEW = 3  # rankings: without names, more than this many are shown in one table, not with all their shapes


def _telling(method: Callable[Concatenate[TraceSet, Given], T]) -> Callable[Concatenate[TraceSet, Given], T]:
    """See Catalog.telling, and asked.question."""
    answered = question(method.__name__)(method)

    @wraps(method)
    def telling(trace_set: TraceSet, /, *given: Given.args, **named: Given.kwargs) -> T:
        with trace_set.catalog.telling():
            return answered(trace_set, *given, **named)

    return telling


@dataclass(frozen=True, slots=True)
class TraceSet:
    """One set on disk, read on demand. Wherever names are expected, give one name or several."""

    catalog: Catalog

    def __repr__(self) -> str:
        return f"TraceSet({str(self.root)!r})"

    @property
    def root(self) -> Path:
        return self.catalog.root

    @property
    def definitions(self) -> dict[str, Definition]:
        return self.catalog.definitions

    @property
    def solutions(self) -> dict[str, Solution]:
        return self.catalog.solutions

    @property
    def workloads(self) -> dict[str, tuple[Workload, ...]]:
        """Definition -> its workloads, in the file's order."""
        return {name: tuple(self.catalog.workloads(name)) for name in self.catalog.definitions}

    @property
    def rows(self) -> tuple[Measurement, ...]:
        """Every recorded row."""
        return tuple(self.catalog.traces())

    @_telling
    def rank(
        self,
        definitions: Names = (),
        solutions: Names = (),
        workloads: Names = (),
        *,
        origin: Names = (),
        gpu: str | None = None,
        protocol: str | None = None,
        time: str | None = None,
        baseline: str | None = None,
        by_shape: bool | None = None,
    ) -> Answer[tuple[Ranking, ...]]:
        """One ranking for each definition: solutions compared on one GPU, timed in one way. If a definition's workloads
        have several origins, each origin has a ranking, the survey's first.

        Without names: every definition with rows of two solutions. origin: only workloads of these origins. gpu,
        protocol: default the newest protocol, then the GPU with most rows. time: graph, eager or busy; default: see
        roofline.selection.time_kind. by_shape: the text has tables of every ranking, otherwise one table with a row for
        each ranking. Default: tables of every ranking if names are given or there are at most three rankings.
        DerbyError: no rows, an unknown name, or a baseline that passed no workload.
        """
        catalog = self.catalog
        check_time(time)
        chosen = catalog.solutions_named(names_of(solutions))
        base = catalog.solution(baseline) if baseline else None
        named = chosen + ([base] if base else [])
        wanted = [catalog.definition(name).name for name in names_of(definitions)]
        for solution in named if wanted else ():
            if solution.definition not in wanted:
                raise DerbyError(
                    f"{solution.name} is a solution of {solution.definition}, not of {', '.join(wanted)}; leave one out"
                )
        wanted = wanted or sorted({solution.definition for solution in named})
        recorded_rows = RecordedRows(catalog)
        if len(wanted) != 1:
            recorded_rows.prepare()
        tallies = recorded_rows.tallies(wanted[0] if len(wanted) == 1 else None)
        names, warnings = self._with_rows(tallies, wanted, gpu, protocol)
        known = {name: recorded_rows.shapes(name) for name in names}
        shapes = chosen_of(self.catalog, known, names_of(workloads), names_of(origin))
        only = tuple(sorted(solution.name for solution in named)) if chosen else None
        rankings: list[Ranking] = []
        for name in names:
            own_baseline = base.name if base and base.definition == name else None
            asked = RankingAsked(gpu, protocol, own_baseline, only, time)
            chosen_any = shapes[name] or not (workloads or origin)
            before, nothing = len(rankings), DerbyError(f"traces/: no row of {name}; measure it with `derby bench`")
            for place, part in enumerate(by_origin(shapes[name]) if chosen_any else ()):
                try:
                    one = recorded_rows.ranking(name, known[name], part, asked)
                    if one is None and origin:
                        raise nothing
                    if one is None and definitions:  # else nobody asked for them
                        warnings.append(_unmeasured(name, part))
                except DerbyError as error:
                    if place == 0:
                        raise
                    warnings.append(f"{name}, origin {part[0].origin or 'none'}: {error}; left out")
                else:
                    rankings += [one] if one else []
            if chosen_any and len(rankings) == before:
                raise nothing
        if by_shape is None:
            by_shape = bool(definitions or named or workloads) or len(rankings) <= _FEW
        return rankings_answer(with_other_leads(rankings), (*catalog.warnings, *warnings), by_shape)

    @_telling
    def rank_by_importance(
        self,
        solutions: Names = (),
        *,
        origin: Names = (),
        gpu: str | None = None,
        protocol: str | None = None,
        time: str | None = None,
    ) -> Answer[ImportanceRanking]:
        """Authors over all operators, each operator weighted by its share of the GPU time in production. An operator's
        S counts its survey workloads, if it has any. origin: only workloads of these origins, and only operators that
        have some."""
        check_time(time)
        named = self.catalog.solutions_named(names_of(solutions)) or self.catalog.solutions.values()
        known = {solution.name: solution for solution in named}

        def rows() -> RecordedTimes:
            return recorded(self.catalog.traces(), known, gpu, protocol, time)

        found = ranked_by_importance(self.catalog, rows, known, names_of(origin))
        return importance_answer(found, self.catalog.warnings)

    @_telling
    def rank_for_model(
        self,
        config: Path | str,
        definitions: Names = (),
        *,
        sharing: int = 1,
        tokens: Names = (),
        gpu: str | None = None,
        protocol: str | None = None,
        time: str = "graph",
    ) -> Answer[ModelKernels]:
        """For every shape that a model implies: the nearest measured shape, the fastest solution there, and the best
        library. config, sharing, tokens: a config.json or the name of a committed one, the number of GPUs that share
        each layer, and the tokens of a step, as for `derby shapes`. definitions: only these operators. DerbyError: no
        model, no shape, or no rows."""
        from kernelderby.api.for_model import kernels_for

        check_time(time)
        if sharing < 1:
            raise DerbyError(f"sharing={sharing} is no number of GPUs; give 1 or more")
        words = names_of(tokens), names_of(definitions)
        return kernels_for(self.catalog, Path(config), sharing, *words, gpu, protocol, time)

    @_telling
    def leads(
        self,
        definitions: Names = (),
        *,
        author: str | None = None,
        origin: Names = (),
        gpu: str | None = None,
        protocol: str | None = None,
        time: str | None = None,
        by_operator: bool = True,
    ) -> Answer[tuple[Leads, ...]]:
        """An author against the best library on every shape, for every GPU that has rows (or the named one).

        One record each for the shapes that count in scores (an operator's survey workloads, if it has any), for those
        of servers, of models, and for fresh shapes, if any were measured. origin: only workloads of these origins.
        author: default the author who is fastest on the most shapes. time: graph or eager (default: both). by_operator:
        add a table of operators, the most important one first.
        """
        catalog, origins = self.catalog, names_of(origin)
        catalog.check_origins(origins)
        names = [catalog.definition(name).name for name in names_of(definitions)] or list(catalog.definitions)
        rows = [row for row in catalog.traces() if row.definition in names]
        legs = legs_of(catalog, names, rows, origins)
        asked = [leg for leg in LEGS if leg in legs]
        has_space = any("AXES_SPACE" in catalog.definition(name).reference for name in names)
        asked += [FRESH] if has_space and FRESH not in legs and not origins else []
        found = leads_on_legs(rows, legs, catalog.solutions, author, gpu, protocol, (time,) if time else KINDS)
        weights = published.importance(catalog.root, catalog.left_out)
        return leads_answer(found, by_operator, catalog.warnings, asked, weights)

    @_telling
    def field(
        self,
        definitions: Names = (),
        *,
        constraints: Path | str | None = None,
        gpu: str | None = None,
        only_not_raced: bool = False,
    ) -> Answer[Field]:
        """For each operator the libraries that were raced, their versions and dates, and the newest version, from a
        constraints file (lines `library==version`) or as installed here. Also the libraries that were not raced."""
        catalog = self.catalog
        names = [catalog.definition(name).name for name in names_of(definitions)] or list(catalog.definitions)
        counted = {name: [each.uuid for each in by_origin(catalog.workloads(name))[0]] for name in names}
        here = library_versions() if constraints is None else pinned_versions(Path(constraints))
        importance = published.importance(catalog.root, catalog.left_out)
        without = not_raced(catalog.root, catalog.definitions, catalog.left_out)
        found = field(catalog.traces(), counted, catalog.solutions, importance, here, gpu, without)
        where = "the version installed here" if constraints is None else f"the version in {Path(constraints).name}"
        return field_answer(found, where, catalog.warnings, only_not_raced)

    @_telling
    def roofline(
        self,
        definitions: Names = (),
        *,
        gpu: Names = "h200",
        origin: Names = (),
        protocol: str | None = None,
        traces: bool = False,
        by_shape: bool | None = None,
    ) -> Answer[Survey]:
        """The floors of operators on GPUs. With `traces` also how close the recorded times on the first GPU come to
        them. An operator's S counts its survey workloads, if it has any. origin: only workloads of these origins.
        by_shape: tables of every shape; default if definitions are named.
        """
        names = names_of(definitions)
        gpus = [known_gpu(name) for name in names_of(gpu)]
        found = survey(self.catalog, gpus, names, with_traces=traces, origins=names_of(origin), protocol=protocol)
        return survey_answer(found, bool(names) if by_shape is None else by_shape)

    @_telling
    def operators(self, words: Names = (), *, sort: str = "importance", origin: Names = ()) -> Answer[Listing]:
        """The operators that match every word. A word is a part of the name, of the op_type or of a dtype. sort:
        importance, name, shapes or s."""
        recorded_rows = RecordedRows(self.catalog)
        recorded_rows.prepare()
        found = listing(self.catalog, recorded_rows, names_of(words), sort, names_of(origin))
        return listing_answer(found, self.catalog.warnings)

    @_telling
    def show(self, operator: str, *, origin: Names = ()) -> Answer[Contract]:
        """One operator's contract, solutions and workloads. DerbyError for a name that the set does not have."""
        found = contract(self.catalog, operator, names_of(origin))
        return contract_answer(found, self.catalog.root, self.catalog.warnings)

    @_telling
    def prompt(self, operator: str, *, gpu: str | None = None, origin: Names = ()) -> str:
        """The task of writing a kernel for an operator, in Markdown. gpu: the GPU of the floors and best times; default
        the GPU with the most rows, H200 without rows. DerbyError for an unknown operator, origin or GPU."""
        found = contract(self.catalog, operator, names_of(origin))
        return operator_prompt(found, known_gpu(gpu or next(filter(find_gpu, found.gpus), "h200")))

    @_telling
    def capture(self, /, *files: Path | str, gain: bool = True, **options: Any) -> Answer[Captured]:
        """The operators of profiles by shape, and the time that the fastest recorded solutions would save (gain).
        options, as for `derby capture`: out (a folder, written as a trace set), gpu, origin, model and sharing (a
        config.json, and the number of GPUs that share it), context (tokens of a decoding request), tokens,
        selection."""
        from kernelderby.api.capture import captured

        return captured(self.catalog, [Path(file) for file in files], with_gain=gain, **options)

    @_telling
    def explain(
        self, solution: str, workload: str | None = None, *, gpu: str | None = None, compiles: bool = True
    ) -> Answer[Explanation]:
        """The limits of a solution on a workload (default: the one with the most time to save), and the next
        experiments. compiles: compile its kernels for sm_90, which runs its code in a separate process."""
        from kernelderby.api.explain import explain

        return explain(self.catalog, solution, workload, gpu, compiles=compiles)

    @_telling
    def nearest(self, operator: str, shape: str | Shape) -> Nearest:
        """The measured shapes nearest to a shape such as "num_tokens=64,hidden_size=4096"."""
        return nearest(self.catalog, operator, *names_of(shape))

    @typed
    def check(
        self,
        solutions: Names = (),
        definitions: Names = (),
        *,
        operator: str | None = None,
        shapes: Names = (),
        **options: Any,
    ) -> Answer[Sequence[CheckResult]]:
        """Checks solutions on this machine, as `derby check` does. A solution may be a FILE.py for the operator. Shapes
        such as "num_tokens=64,hidden_size=4096" need not be listed. options: seeds, device, timeout, fresh, secret,
        quick, sanitize."""
        from kernelderby.api import fenced_verbs

        names, of, asked = names_of(solutions), names_of(definitions), names_of(shapes)
        return fenced_verbs.check(self.catalog, fenced_verbs.words_of_check(names, of, operator, asked), **options)

    @typed
    def bench(
        self,
        solutions: Names = (),
        definitions: Names = (),
        workloads: Names = (),
        *,
        operator: str | None = None,
        shapes: Names = (),
        record: bool = False,
        device: str | None = None,
        **settings: Any,
    ) -> Answer[tuple[Ranking, ...]]:
        """Measures on this machine whatever has no row yet, as `derby bench` does, and ranks it. Rows go into the set.
        With a FILE.py or shapes they go into reports/bench/, unless `record` is given. settings: rounds, iterations,
        timeout_seconds, again, together, most_rounds. DerbyError: no GPU here, and device is not "cpu"."""
        from kernelderby.api.adhoc import adhoc_of, expect_timed
        from kernelderby.api.fenced_verbs import bench

        names = names_of(solutions), names_of(definitions)
        with adhoc_of(self.catalog, *names, operator, names_of(shapes), with_rivals=True) as adhoc:
            catalog = adhoc.catalog if adhoc else self.catalog
            expect_timed(adhoc.solution if adhoc else None, device)
            chosen = ((), (adhoc.definition.name,)) if adhoc else names
            measured = bench(catalog, *chosen, names_of(workloads), {"device": device, **settings}) or [
                *chosen[1],
                *dict.fromkeys(each.definition for each in catalog.solutions_named(chosen[0])),
            ]
            if adhoc:
                adhoc.keep_rows(record)
            return TraceSet(Catalog.open(catalog.root)).rank(measured, workloads=workloads)

    @typed
    def gate(self, base: str, candidate: str, workloads: Names = (), **options: Any) -> Answer[Sequence[Any]]:
        """Whether a candidate is slower than a base, measured here. options: base_python, candidate_python, least,
        most, iterations, timeout_seconds, secret, device, as of `derby gate`."""
        from kernelderby.api.fenced_verbs import gate

        return gate(self.catalog, base, candidate, names_of(workloads), **options)

    def _with_rows(
        self, rows: Sequence[RowCount], wanted: Sequence[str], gpu: str | None, protocol: str | None
    ) -> tuple[list[str], list[str]]:
        """The wanted definitions that have rows to compare, and a warning about the definitions left out. Without
        wanted names: the definitions with rows of two solutions, or all definitions if there are none."""
        catalog, warnings, place = self.catalog, list[str](), self.root / "traces"
        with_any = {row.definition for row in rows}
        chosen = list(wanted) or sorted(with_any & set(catalog.definitions))
        if not rows or not chosen:
            raise DerbyError(f"{place}: no recorded rows; measure with `derby bench`")
        strangers = sorted(with_any - set(catalog.definitions))
        warnings += [LeftOut(f"{place}: rows of {each}, no definition of the set; left out") for each in strangers]
        if len(chosen) == 1:
            return chosen, warnings
        competed = set() if wanted else definitions_with_rows(rows, gpu, protocol, solutions=2).intersection(chosen)
        if competed:
            if alone := len(chosen) - len(competed):
                warnings.append(
                    f"{counted(alone, 'operator has', 'operators have')} no rows of two solutions, left out; see "
                    "`derby roofline --traces`, or name one with --definitions"
                )
            return sorted(competed), warnings
        available = definitions_with_rows(rows, gpu, protocol)
        warnings += [f"{name}: has no rows to compare, left out" for name in chosen if name not in available]
        return [name for name in chosen if name in available], warnings


def _unmeasured(definition: str, part: Sequence[Workload]) -> str:
    shapes, origin = counted(len(part), "shape has", "shapes have"), part[0].origin
    told, option = (f" (origin {origin})", f" --origin {origin}") if origin else ("", "")
    return f"{definition}: {shapes} no row{told}; `derby bench --definitions {definition}{option}` measures them"


@typed
def open_set(path: Path | str | None = None) -> TraceSet:
    """Opens the trace set in a folder, by default the set that the command `derby` would use (docs/api.md). DerbyError
    if the folder has no definitions/."""
    return TraceSet(Catalog.open(find_set() if path is None else path))
