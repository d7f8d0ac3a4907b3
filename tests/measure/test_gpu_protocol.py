"""On a GPU: protocol 2 itself. Graph, eager and busy times, calls that cannot be captured, the empty kernel, setup and
in-place calls. Under two minutes: pytest tests/measure/test_gpu_protocol.py -q -s"""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from measuring import DEFINITION, MISBEHAVIOURS, copied_set, measure
from test_race import MODULE, right

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import Case
from kernelderby.rows.measurement import Status

torch = pytest.importorskip("torch")
from kernelderby.measure.clock.graphs import NotCapturable  # noqa: E402
from kernelderby.measure.clock.timing import CUPTI, EventTimer, find_protocol, make_timer  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker  # noqa: E402
from kernelderby.measure.worker.candidate import Candidate  # noqa: E402
from kernelderby.measure.worker.executor import local_check, local_race  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def timer():
    protocol, note = find_protocol(DEVICE)
    print(f"\n{protocol} {note}")
    assert protocol == CUPTI, note
    return make_timer(protocol, DEVICE)


def parts(function, rows=4096, **calling):
    definition = Catalog.open(MISBEHAVIOURS).definition(DEFINITION)
    if "setup" in calling:
        definition = replace(
            definition, inputs={**definition.inputs, "x": replace(definition.inputs["x"], constant=True)}
        )

    class Module:
        run = staticmethod(MODULE.run)

        @staticmethod
        def generate_inputs(values, device):
            return {name: tensor.to(device) for name, tensor in MODULE.generate_inputs(values, device).items()}

    maker = InputMaker(definition, Module, Case("", {"rows": rows, "columns": 16}, {"factor": 2.0}, 5), DEVICE, None)
    return Candidate(function, True, definition, **calling), Module, maker


def test_the_empty_kernel(timer):
    from kernelderby.measure.worker.empty import empty_kernel_us

    found = empty_kernel_us(timer, DEVICE)
    events = empty_kernel_us(EventTimer(DEVICE), DEVICE)
    print(f"empty kernel: CUPTI {found}, events {events}")
    assert 0.5 < found["graph"] < 10 and 0.5 < found["eager"] < 10


def test_spans_of_launched_and_replayed_calls(timer):
    """Twenty small products: launched one by one the GPU waits for the host, in a graph it does not."""
    a, b = torch.randn(512, 512, device=DEVICE), torch.randn(512, 512, device=DEVICE)
    out = torch.empty_like(a)

    def call(_=None):
        for _ in range(20):
            torch.mm(a, b, out=out)

    for _ in range(5):
        call()
    eager = timer.spans(call, 20)
    replay = timer.capture(call)
    replay()
    graph = timer.spans(lambda _: replay(), 20)
    assert len(timer._fills) == 20, "each flush is recognised"
    events = EventTimer(DEVICE).spans(lambda _: replay(), 20)
    medians = {
        name: round(statistics.median(values), 2)
        for name, values in {
            "eager": eager.spans_us,
            "busy": eager.busy_us,
            "host": eager.host_us,
            "wall": eager.wall_us,
            "graph": graph.spans_us,
            "graph busy": graph.busy_us,
            "graph by events": events.spans_us,
        }.items()
    }
    print(f"20 products: {medians} {eager.notes} {graph.notes}")
    assert not eager.notes and not graph.notes, "every replay leaves as many records"
    assert medians["busy"] <= medians["eager"] <= medians["wall"]
    assert medians["graph"] <= 1.05 * medians["eager"]
    assert medians["graph"] == pytest.approx(medians["graph by events"], rel=0.25)


def synchronises(x, y, factor, out):
    torch.add(x, y, alpha=factor * (1.0 if float(y[0, 0]) == float(y[0, 0]) else 0.0), out=out)


def raises_in_capture(x, y, factor, out):
    right(x, y, factor, out)
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not under capture")


def allocates_and_raises(x, y, factor, out):
    spare = torch.empty(1 << 22, device=x.device)
    right(x, y, factor, out)
    if torch.cuda.is_current_stream_capturing():
        spare.sum().item()


@pytest.mark.parametrize("function", [synchronises, raises_in_capture, allocates_and_raises])
def test_a_call_that_cannot_be_captured_says_why_and_spoils_nothing(timer, function):
    race = local_race(*parts(function), timer)
    with pytest.raises(NotCapturable) as problem:
        race.capture()
    print(f"{function.__name__}: {problem.value} spoiled={problem.value.spoiled}")
    assert not problem.value.spoiled
    assert race.turn(1, 4).verdict.status is Status.PASSED
    sound = local_race(*parts(right), timer)
    sound.capture()
    turn = sound.turn(1, 4)
    assert turn.verdict.status is Status.PASSED and len(turn.graph.spans_us) == 4


def test_a_capture_that_freezes_what_it_should_read_has_no_graph(timer):
    seen = {}

    def run(x, y, factor, out):
        """Reads on the host what decides the work, outside of captures, and keeps it by address."""
        if not torch.cuda.is_current_stream_capturing():
            seen[y.data_ptr()] = float(y[0, 0])
        right(x, y, factor, out)
        out[0, 0] = x[0, 0] + factor * seen[y.data_ptr()]

    race = local_race(*parts(run), timer)
    with pytest.raises(NotCapturable, match="froze"):
        race.capture()
    assert race.turn(1, 4).verdict.status is Status.PASSED


def test_in_place_and_setup(timer):
    def adds_into(x, y, factor, out):
        out.add_(y, alpha=factor)

    def uses_prepared(x, y, factor, out, doubled=None):
        torch.add(doubled, y, alpha=2 * factor, out=out).mul_(0.5)

    known = [
        parts(adds_into, in_place={"out": "x"}),
        parts(uses_prepared, setup=lambda **constants: {"doubled": constants["x"] * 2}),
    ]
    for candidate, module, maker in known:
        assert local_check(candidate, module, maker).status is Status.PASSED
        race = local_race(candidate, module, maker, timer)
        race.capture()
        turn = race.turn(1, 6)
        assert turn.verdict.status is Status.PASSED, turn.verdict.message
        assert len(turn.graph.spans_us) == 6 and not turn.graph.notes
    assert race.setup.memory_bytes > 0


def test_a_run_writes_three_times(tmp_path):
    from kernelderby.measure.machine.probe import find_machine

    root = copied_set(tmp_path)
    machine = find_machine(root, "cuda")
    rows = measure(root, ["honest"], machine=machine, rounds=3, most_rounds=3)
    for row in rows:
        assert row.status is Status.PASSED, row.message
        medians = {kind: each.median_us for kind, each in row.times.items()}
        print(
            row.workload["axes"],
            medians,
            row.host_us,
            row.wall_us,
            row.environment["empty_kernel_us"],
            f"{row.environment['seconds']} s",
            row.graph_missing,
            row.message,
        )
        assert set(row.times) == {"graph", "eager", "busy"} and not row.graph_missing
        assert len(row.environment["clocks"]) == 3


def test_two_moe_solutions_in_turn(checkout, tmp_path):
    import shutil
    import time

    from kernelderby.measure.machine.probe import find_machine

    for part in ("definitions", "workloads", "solutions"):
        shutil.copytree(checkout / part, tmp_path / part)
    start = time.monotonic()
    rows = measure(
        tmp_path,
        ["derby_moe_sm90", "triton_compact"],
        workloads=("seq_len=7",),
        machine=find_machine(tmp_path, "cuda"),
        rounds=3,
        most_rounds=6,
        iterations=10,
        timeout_seconds=200,
    )
    for row in rows:
        assert row.status is Status.PASSED, row.message
        print(
            row.solution,
            {kind: each.median_us for kind, each in row.times.items()},
            row.host_us,
            row.graph_missing,
            f"{len(row.samples_us)} rounds, {row.environment['seconds']} s",
            row.message,
        )
    print(f"{time.monotonic() - start:.1f} s in all")
