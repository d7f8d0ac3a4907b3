"""Workloads that a driver has in hand: nobody else measures them, and their rows come once.

From the moment a task goes to a host until its rows stand in the file, this process holds the claim (rows.claim) that
every run takes before it measures a workload: other drivers of the set, and each `derby bench` without a cluster.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.neighbours import Neighbours
from kernelderby.measure.run.plan import Job, Plan
from kernelderby.measure.run.rows import claim, last_line, settled_by_others
from kernelderby.store.appended import append_line


class InHand:
    def __init__(self, catalog: Catalog, together: bool) -> None:
        self._catalog, self._together = catalog, together
        self._claims: dict[tuple[Path, str], ExitStack] = {}
        self._sizes: dict[Path, int] = {}  # of each file as this driver knows it, the plan's and its own rows
        self._sessions = set[str]()  # of the rows that were appended here
        self._alone = ExitStack()  # it tells other runs that these rows are no worker's
        self._alone.enter_context(Neighbours(catalog.root))

    def take(self, machine: Machine, job: Job, plan: Plan) -> Job | None:
        """What is left of the job after the rows that others have written since the plan, maybe no solution. It is in
        hand from now on. None while another run has it."""
        path = self._catalog.traces_path(machine.id, job.definition.name)
        key = path, job.workload.uuid
        if key not in self._claims:  # of a former try of it
            claims = ExitStack()
            if not claims.enter_context(claim(path, job.workload.uuid)):
                claims.close()
                return None
            self._claims[key] = claims
        planned = plan.lines[job.definition.name]
        if path not in self._sizes and last_line(path) == planned:
            self._sizes[path] = _size(path)
        if self._sizes.get(path) == _size(path):
            return job
        done = settled_by_others(path, planned, self._sessions, machine, job.workload, job.solutions)
        missing = tuple(one for one in job.solutions if one.name not in done)
        if not missing:
            self._claims.pop(key).close()
        return job if missing and self._together else replace(job, solutions=missing)

    def append(self, machine: Machine, job: Job, rows: list[dict[str, Any]]) -> None:
        """All rows of a task in one write; the workload is out of hand. DerbyError: none of them could be written."""
        path = self._catalog.traces_path(machine.id, job.definition.name)
        if rows:
            text = "\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
            text = text.encode("utf-8", "replace").decode()  # a message may hold half a surrogate pair
            size = _size(path)
            append_line(path, text)
            if self._sizes.get(path) == size:
                self._sizes[path] = size + len(text.encode()) + 1
            self._sessions |= {row["measurement"]["session"] for row in rows}
        if claims := self._claims.pop((path, job.workload.uuid), None):
            claims.close()

    def close(self) -> None:
        for claims in self._claims.values():
            claims.close()
        self._claims.clear()
        self._alone.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
