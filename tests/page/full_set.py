"""Sets for the page: one larger than ours (six solutions, three kinds of 60 samples), and
another run of the toy set."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace as changed_row

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.rows.measurement import FLASHINFER_BENCH_EVENTS, Correctness, Measurement, Status, Timed

SOLUTIONS = 6
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


class FullSet(Catalog):
    """The checkout's definitions and workloads with made-up solutions and rows. `names`: operator -> its solutions."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._random = random.Random(5)

    def workloads(self, definition_name: str) -> list[Workload]:
        """rms_norm's all, of the others a dozen; all with DERBY_TESTS_ALL."""
        whole = "DERBY_TESTS_ALL" in os.environ or definition_name == "rms_norm"
        return super().workloads(definition_name)[: None if whole else 14]

    @cached_property
    def solutions(self) -> dict[str, Solution]:
        pattern = next(iter(Catalog.open(self.root).solutions.values()))
        found = {}
        for name in self.definitions:
            for place in range(SOLUTIONS):
                own = f"solution_{place}_of_{name}" if place else f"{SCRIPT}{name}"
                found[own] = replace(
                    pattern, name=own, definition=name, author=f"author {place}", stages=(), description=SCRIPT
                )
        return found

    def traces(
        self, definition_name: str | None = None, *, clocks: bool = True, replaced: bool = True
    ) -> list[Measurement]:
        return [
            self._row(solution, workload, place)
            for name in self.definitions
            for workload in self.workloads(name)
            for place, solution in enumerate(self.solutions_of(name))
        ]

    def _row(self, solution: Solution, workload, place: int) -> Measurement:
        failed = place == 5 and self._random.random() < 0.1
        base = 2.0 * 10 ** self._random.uniform(0, 4) * (1 + place / 4)
        kinds = {} if failed else {"graph": 1.0, "eager": 1.3, "busy": 0.98}
        times = {kind: self._time(base * more) for kind, more in kinds.items()}
        return Measurement(
            definition=workload.definition,
            workload=workload.raw["workload"],
            solution=solution.name,
            status=self._random.choice([Status.REWARD_HACK, Status.TIMED_OUT]) if failed else Status.PASSED,
            gpu="NVIDIA H200",
            protocol="cupti-graph-eager-2",
            timestamp="2026-11-22T02:30:07+00:00",
            latency_us=None if failed else times["eager"].median_us,
            samples_us=() if failed else times["eager"].samples_us,
            correctness=None if failed else Correctness(0.01, 0.02, 0.003, {"all": 0.998}),
            solution_hash=solution.hash,
            session=f"session of {workload.definition}",
            message="claims 1.02 us where the judge saw 99.1" if failed else "",
            environment={"driver": "580.1", "commit": "0123456789", "empty_kernel_us": {"eager": 0.96, "graph": 0.9}},
            times=times,
            host_us=None if failed else 31.5,
        )

    def _time(self, base: float) -> Timed:
        """Six rounds of ten, in the steps of 32 ns in which CUPTI tells time."""
        ticks = [[round(base * self._random.gauss(1, 0.02) / 0.032) + 1 for _ in range(10)] for _ in range(6)]
        rounds = tuple(tuple(round(0.032 * tick, 3) for tick in each) for each in ticks)
        ordered = sorted(value for each in rounds for value in each)
        return Timed((ordered[29] + ordered[30]) / 2, rounds)


def slower(root: Path, other: Path, solution: str) -> Path:
    """A copy of the toy set in which one solution took twice as long."""
    shutil.copytree(root, other)
    [file] = (other / "traces").rglob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["solution"] == solution:
            own = line["measurement"]
            own["latency_us"] *= 2
            own["samples_us"] = [[2 * value for value in samples] for samples in own["samples_us"]]
            line["evaluation"]["performance"]["latency_ms"] *= 2
            line["evaluation"]["performance"]["speedup_factor"] /= 2
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


def of_two_origins(root: Path) -> Catalog:
    """The toy set with one workload of the survey and one of serving."""
    catalog = Catalog.open(root)
    first, second = catalog.workloads("scale_rows_h4")
    catalog._workloads["scale_rows_h4"] = [replace(second, origin="serving"), replace(first, origin="survey")]
    return catalog


def foreign(root: Path) -> Catalog:
    """The toy set as somebody else's: no cost was counted, the GPU is one that we know nothing of, and the rows are
    flashinfer-bench's, with one number each."""
    catalog = Catalog.open(root)
    rows = catalog.traces()
    catalog._workloads["scale_rows_h4"] = [replace(each, cost=None) for each in catalog.workloads("scale_rows_h4")]
    bare = {"protocol": FLASHINFER_BENCH_EVENTS, "solution_hash": None, "session": None, "environment": {}}
    catalog.traces = lambda definition_name=None, **_: [
        changed_row(row, gpu="NVIDIA Nobody 9000", samples_us=(), times={}, **bare) for row in rows
    ]
    return catalog
