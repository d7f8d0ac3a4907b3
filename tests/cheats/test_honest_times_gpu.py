"""What judge and fences cost an honest solution's time: nothing that shows. On a GPU; under two minutes on an H200.

Each solution is timed in turn by the race (fenced worker, the judge's memory over CUDA IPC, contents and poison from
the judge between any two calls) and plainly: the same file, loaded into a process of its own without fences, on
tensors of its own, by the same timer. pytest tests/cheats/test_honest_times_gpu.py -m gpu -q -s"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest
import test_cheats
from test_cheats import SOURCES, constants
from test_cheats_gpu import HONEST_GPU, made

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NAMES = ["returns_its_output", "writes_its_output", "keeps_a_workspace", *HONEST_GPU]
ROUNDS, ITERATIONS = 9, 20
ALLOWED = 0.02
ROWS = 1 << 21  # 384 MiB in and out: some 100 us
# An eager time with gaps is the host's, which has slept while the judge worked (docs/protocol.md). On an H200 of
# 2026-11-29 it took up to 38 us more for the second launch of a call. The busy time has no gaps.
HOST_US = 50.0

PLAIN = """
import importlib.util, json, sys
import torch
from kernelderby.measure.clock.timing import CuptiTimer, TimingFailed

path, rows, iterations, kinds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
spec = importlib.util.spec_from_file_location("plain", path)
module = importlib.util.module_from_spec(spec)
device = torch.device("cuda", 0)
timer = CuptiTimer(device)
spec.loader.exec_module(module)
writes = "out" in module.run.__code__.co_varnames[: module.run.__code__.co_argcount]
sets = [[torch.randn(rows, 16, device=device) for _ in range(3)] for _ in range(2)]


def call(which):
    x, y, out = sets[which]
    return module.run(x, y, 0.5, out) if writes else module.run(x, y, 0.5)


def before(iteration):
    x, _, out = sets[iteration % 2]
    x.normal_()
    out.fill_(float("nan"))
    torch.cuda.synchronize()


for _ in range(4):
    call(0), call(1)
replays = [timer.capture(lambda which=which: call(which)) for which in range(2) if "graph" in kinds]
runs = {"eager": lambda i: call(i % 2), "graph": lambda i: replays[i % 2]()}


def timed(kind):
    for _ in range(3):  # on a busy machine a record was lost now and then
        try:
            return timer.spans(runs[kind], iterations, before)
        except TimingFailed as error:
            print(error, file=sys.stderr, flush=True)
    raise TimingFailed("three times")


print("ready", flush=True)
for line in sys.stdin:
    for iteration in range(3):
        before(iteration), call(iteration % 2)
    found = {kind: timed(kind) for kind in kinds}
    print(json.dumps({"busy": found["eager"].busy_us} | {kind: found[kind].spans_us for kind in kinds}), flush=True)
"""


def kinds_of(name: str) -> list[str]:
    return ["eager", "graph"] if constants(name).get("GRAPH", True) else ["eager"]


class Plain:
    """A solution in a process without judge and fences."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PLAIN, str(SOURCES[name]), str(ROWS), str(ITERATIONS), *kinds_of(name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def wait(self) -> None:
        self._answer("ready")

    def _answer(self, begins: str) -> str:
        """The next line that begins so: solutions print too."""
        for line in self._process.stdout:
            if line.startswith(begins):
                return line
        raise AssertionError("it has ended")

    def turn(self) -> dict[str, float]:
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        return {kind: statistics.median(spans) for kind, spans in json.loads(self._answer('{"busy": ')).items()}

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Judged:
    """The same solution as a run measures it."""

    def __init__(self, table, root, solution) -> None:
        from kernelderby.measure.wire.process import WorkerProcess

        self._table, self._solution = table, solution
        self._worker = WorkerProcess(root, table.machine.device, solution_hash=solution.text_hash)
        given = {"definition": solution.definition, "solution": solution.name, "protocol": table.machine.protocol}
        self._worker.send("load", 120, **given)

    def prepare(self) -> None:
        from kernelderby.measure.wire.remote import RemoteExecutor

        assert self._worker.receive().failed is None
        self.race = self._table.race(self._solution, RemoteExecutor(self._worker, 60))
        assert self.race.check().status == "passed"
        self.race.start()
        if "graph" in kinds_of(self._solution.name):
            self.race.capture()
        self.race.turn(0, 2)

    def turn(self, number: int) -> dict[str, float]:
        turn = self.race.turn(number, ITERATIONS)
        assert turn.verdict.status == "passed", turn.verdict.message
        spans = {"busy": turn.eager.busy_us, "eager": turn.eager.spans_us}
        if turn.graph is not None:
            spans["graph"] = turn.graph.spans_us
        return {kind: statistics.median(each) for kind, each in spans.items()}

    def end(self) -> None:
        self._worker.kill()
        self.race.release()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    from kernelderby.catalog import Catalog
    from kernelderby.measure.judge.table import JudgesTable
    from kernelderby.measure.machine.probe import find_machine

    root = tmp_path_factory.mktemp("honest") / "set"
    made(root, ROWS, NAMES)
    catalog = Catalog.open(root)
    definition = catalog.definition(test_cheats.DEFINITION)
    (workload,) = catalog.workloads(definition.name)
    solutions = tuple(catalog.solution(name) for name in NAMES)
    table = JudgesTable.of(root, definition, workload, find_machine(root, "cuda"), "secret")
    yield catalog, table, dict(zip(NAMES, solutions, strict=True))
    table.release()


@pytest.fixture(scope="module")
def pairs(table):
    """name -> (judged, plain), all started side by side."""
    catalog, judges, solutions = table
    plain = {name: Plain(name) for name in NAMES}
    judged = {name: Judged(judges, catalog.root, solutions[name]) for name in NAMES}
    for name in NAMES:
        plain[name].wait()
        judged[name].prepare()
    yield {name: (judged[name], plain[name]) for name in NAMES}
    for name in NAMES:
        judged[name].end()
        plain[name].end()


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_solution_gets_the_time_that_it_takes(pairs, name):
    judged, plain = pairs[name]
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in ("busy", *kinds_of(name))}
    for number in range(1, ROUNDS + 1):
        one, other = judged.turn(number), plain.turn()
        for kind, times in found.items():
            times.append((one[kind], other[kind]))
    for kind, times in found.items():
        ratio = statistics.median(a / b for a, b in times)
        one, other = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"\n{name} {kind}: {one:.2f} us judged, {other:.2f} plain, ratio {ratio:.4f}")
        assert abs(ratio - 1) < ALLOWED + (HOST_US / other if kind == "eager" else 0), times
