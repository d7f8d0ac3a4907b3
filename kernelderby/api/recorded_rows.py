"""The rows of a set, definition by definition, and results computed from them. For a set of many rows each result is
computed only once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kernelderby.catalog import Catalog, Workload
from kernelderby.catalog.selection import by_origin
from kernelderby.catalog.workloads import FRESH
from kernelderby.errors import DerbyError
from kernelderby.rank.model import Ranking
from kernelderby.rank.ranking import rank
from kernelderby.report.ranking.notes import notes
from kernelderby.roofline.recorded import RecordedTime, recorded
from kernelderby.roofline.selection import GroupKey, RowCount, choose_group, group_rows, tallies
from kernelderby.rows.measurement import FileLine, Measurement, Status
from kernelderby.store.bounds import bound_text, bounds

_Fresh = tuple[dict[str, Any], dict[str, Any], str, int]  # workload, shape, where


class RankingAsked(NamedTuple):
    """The arguments of a ranking; see rank()."""

    gpu: str | None = None
    protocol: str | None = None
    baseline: str | None = None
    only: tuple[str, ...] | None = None
    time: str | None = None


class RecordedRows:
    """Loads rows when a computation needs them. Of a large set it keeps the rows of one definition at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._rows: dict[str, list[Measurement]] = {}

    def of(self, definition: str) -> list[Measurement]:
        if definition not in self._rows:
            if self.catalog.is_large:
                self._rows.clear()
            self._rows[definition] = self.catalog.rows_of_files(definition)
        return self._rows[definition]

    def names(self) -> list[str]:
        """The definitions for which there are files of rows. The set may lack some of these definitions."""
        names = {path.stem for path in self.catalog.traces_files()}
        strange, most = sorted(names - self.catalog.definitions.keys()), bounds().names
        if len(strange) > most:
            self.catalog.left_out(
                f"{self.catalog.root / 'traces'}: files of no definition, such as {strange[0]!r:.60}: {len(strange):,} "
                f"are more than {bound_text('names', most)}"
            )
            names -= {*strange}
        return sorted(names)

    def tallies(self, definition: str | None = None) -> list[RowCount]:
        """The counts for one definition, or for all."""
        found = []
        for name in [definition] if definition else self.names():

            def counted(name: str = name) -> list[RowCount]:
                return tallies(self.of(name))

            found += self.catalog.remembered(("tallies",), name, list[RowCount], counted)
        return found

    def shapes(self, definition: str) -> list[Workload]:
        """Catalog.shapes() for the definition's rows."""

        def fresh() -> list[_Fresh]:
            first = {row.uuid: row for row in reversed(self.of(definition)) if row.shape.get("origin") == FRESH}
            return [
                (row.workload, row.shape, row.place.path, row.place.line)
                for row in reversed(first.values())
                if row.place
            ]

        found = self.catalog.remembered(("fresh",), definition, list[_Fresh], fresh)
        rows = [
            Measurement(definition, ran, "", Status.PASSED, "", "", "", shape=shape, place=FileLine(path, line))
            for ran, shape, path, line in found
        ]
        return self.catalog.shapes(definition, rows)

    def ranking(
        self, definition: str, known: Sequence[Workload], part: Sequence[Workload], asked: RankingAsked
    ) -> Ranking | None:
        """The ranking over these workloads; None if none of them has a row."""
        others = {workload.uuid for workload in known} - {workload.uuid for workload in part}
        origins = {workload.origin for workload in part}
        alike = [workload for workload in known if workload.origin in origins]

        def ranked() -> Ranking | None:
            rows, elsewhere = list[Measurement](), list[Measurement]()
            for row in self.of(definition):
                (elsewhere if row.uuid in others else rows).append(row)
            if not rows:
                return None
            solutions = {solution.name: solution for solution in self.catalog.solutions_of(definition)}
            gpu, protocol, baseline, only, time = asked
            return rank(
                *(rows, definition, part, solutions),
                gpu=gpu,
                protocol=protocol,
                baseline=baseline,
                only=None if only is None else set(only),
                time=time,
                noted=notes,
                told_apart=alike if len(alike) > len(part) else (),
                elsewhere=elsewhere,
            )

        uuids = hashlib.sha256(" ".join(workload.uuid for workload in part).encode()).hexdigest()
        return self.catalog.remembered(("rank", repr(asked), uuids), definition, Ranking | None, ranked)  # type: ignore[arg-type]

    def fastest(self, definition: str, key: GroupKey) -> dict[str, RecordedTime]:
        """uuid -> the shortest time of any solution, from the rows that count on one GPU under one protocol."""

        def found() -> dict[str, RecordedTime]:
            rows = group_rows(self.of(definition)).get(key)
            return recorded(rows, self.catalog.solutions).fastest(definition) if rows else {}

        return self.catalog.remembered(("fastest", *key), definition, dict[str, RecordedTime], found)

    def prepare(self) -> None:
        """For a large set: computes on all cores the rankings that `derby rank` shows without names, except remembered
        ones."""
        if not self.catalog.is_large:
            return
        missing = [
            name
            for name in self.names()
            if name in self.catalog.definitions and not self.catalog.is_remembered(("tallies",), name)
        ]
        cores = min(len(missing), len(os.sched_getaffinity(0)))
        if cores < 2:
            return
        words = [sys.executable, "-c", _PREPARE, str(self.catalog.root)]
        helpers: list[subprocess.Popen[bytes]] = []
        try:
            for place in range(cores):  # without a word, see prepare()
                each = [*words, *missing[place::cores]]
                helpers.append(subprocess.Popen(each, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))
            for helper in helpers:
                helper.wait()
        finally:
            for helper in helpers:
                helper.kill()
                if helper.stdin:
                    helper.stdin.close()
                helper.wait()

    def prepare_one(self, definition: str) -> None:
        known, groups = self.shapes(definition), group_rows(self.tallies(definition))
        for gpu in dict.fromkeys(key.gpu for key in groups):
            self.fastest(definition, choose_group(groups, gpu, None))
        for part in by_origin(known):
            self.ranking(definition, known, part, RankingAsked())


_PREPARE = """
import gc, os, sys, threading
gc.set_threshold(5_000_000, 50, 50)  # as in the command
from kernelderby.api.recorded_rows import prepare
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()  # nobody waits any more
for name in sys.argv[2:]:
    prepare(sys.argv[1], name)
"""


def prepare(root: str, definition: str) -> None:
    """Ignores failures: the same computation fails again, with its reason, when its result is needed."""
    with suppress(DerbyError, OSError, MemoryError):
        RecordedRows(Catalog.open(Path(root))).prepare_one(definition)
