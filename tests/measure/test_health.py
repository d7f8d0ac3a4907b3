"""A broken machine ends the run with a line and says nothing of a solution; a solution that claims one ends alone."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from measuring import CPU, copied_set, measure

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.definition import DefinitionFailed
from kernelderby.measure.machine import health
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.health import Health, MachineFailed
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.rows import TRIES
from kernelderby.measure.run.verify import verify
from kernelderby.measure.wire.replies import Failed, GpuSeen
from kernelderby.rows.measurement import Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY
from kernelderby.statistics.bootstrap import ResampledRows

pytest.importorskip("torch")
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Nvml:
    """The part of pynvml in use. xids: the driver's reports; errors: uncorrected ones; lost: an error's name."""

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(str(value))
            self.value = value

    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_TIMEOUT, NVML_ERROR_NOT_SUPPORTED = 15, 10, 3
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = nvmlEventTypeXidCriticalError = 1

    def __init__(self):
        self.xids, self.errors, self.lost = [], 0, None

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        if self.errors is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return self.errors

    def nvmlDeviceGetMemoryInfo(self, handle):
        if self.lost:
            raise self.NVMLError(self.lost)

    def nvmlSystemGetDriverVersion(self):
        return "580"

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        assert events == "events"

    def nvmlEventSetWait_v2(self, events, milliseconds):
        if not self.xids:
            raise self.NVMLError(self.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xids.pop(0))


@pytest.fixture
def nvml():
    return Nvml()


@pytest.fixture
def watched(nvml, tmp_path, monkeypatch):
    """The health of an H200 with a fake driver, where a fresh process can use the GPU."""
    sensors = GpuSensors.__new__(GpuSensors)
    sensors._nvml, sensors._handle, sensors._events, sensors.problem = nvml, "gpu", None, ""
    machine = Machine("cuda", GpuSeen("NVIDIA H200", "9.0"))
    monkeypatch.setattr(health, "find_machine", lambda root, device: machine)
    return Health(tmp_path, machine, sensors)


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (lambda nvml: nvml.xids.extend([13, 79]), "Xid 79, the GPU has fallen off the bus"),
        (lambda nvml: nvml.xids.append(94), "Xid 94"),
        (lambda nvml: setattr(nvml, "errors", 2), "2 uncorrectable ECC errors since the run began"),
        (lambda nvml: setattr(nvml, "lost", Nvml.NVML_ERROR_GPU_IS_LOST), "the driver says"),
    ],
)
def test_the_driver_says_that_the_machine_is_broken(nvml, watched, breaks, told):
    watched.expect_sound("RuntimeError: whatever")
    breaks(nvml)
    with pytest.raises(MachineFailed, match=told) as failed:
        watched.expect_sound("no answer within 3 s")
    assert str(failed.value).startswith("machine_failed: NVIDIA H200: ") and "\n" not in str(failed.value)


def test_what_a_solution_claims_is_not_enough(nvml, watched, monkeypatch):
    """Nor its effects: an illegal access is Xid 31, a shader exception 13."""
    nvml.xids += [31, 13, 43, 45]
    watched.expect_sound(ECC)
    watched.expect_sound("CUDA error: an illegal memory access was encountered")
    gone = Machine("cuda", gpu_missing="CUDA cannot use this machine's GPU")
    monkeypatch.setattr(health, "find_machine", lambda root, device: gone)
    watched.expect_sound("ValueError: a solution's own mistake")
    with pytest.raises(MachineFailed, match="a process without any solution cannot use it"):
        watched.expect_sound(ECC)


def test_a_driver_that_counts_no_errors(nvml, watched):
    nvml.errors = None
    watched.expect_sound("anything")


def claims_ecc(root, name="raises"):
    main = root / f"solutions/tests/elementwise/scaled_add_n16/{name}/main.py"
    main.write_text(f"def run(*given):\n    raise RuntimeError({ECC!r})\n")


def test_a_run_stops_and_nothing_stands_against_the_solution(tmp_path, monkeypatch):
    root = copied_set(tmp_path)
    claims_ecc(root)
    (row,) = measure(root, ["raises"], workloads=("8",))
    assert row.status is Status.RAISED and "uncorrectable ECC error encountered" in row.message, "the machine is sound"
    root = copied_set(tmp_path / "again")
    claims_ecc(root)
    monkeypatch.setattr(Health, "_from_the_driver", lambda self: "Xid 79, the GPU has fallen off the bus")
    with pytest.raises(MachineFailed, match="Xid 79"):
        measure(root, ["raises", "honest"], workloads=("8",))
    rows = Catalog.open(root).traces("scaled_add_n16")
    assert not [row for row in rows if row.solution == "raises"]
    monkeypatch.undo()
    found = measure(root, ["raises", "honest"])
    assert {(row.solution, row.uuid) for row in found} >= {("raises", row.uuid) for row in found}


def test_the_judges_own_context(watched, nvml):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert "the judge lost its GPU context" in str(watched.judge_failed(error))
    nvml.xids.append(79)
    assert "Xid 79" in str(watched.judge_failed(error))


def test_a_definition_that_breaks_beside_one_solution_is_not_named(tmp_path, monkeypatch):
    """In whatever way it breaks: the solution beside it gets the row, its rivals theirs."""
    from kernelderby.measure.run import runner

    hold = runner.Contest.hold

    def held(self):
        if any(each.name == "raises" for each in self._job.solutions):
            raise DefinitionFailed("the definition: run raises IndexError; mend the definition")
        hold(self)

    root = copied_set(tmp_path)
    monkeypatch.setattr(runner.Contest, "hold", held)
    found = {row.solution: row for row in measure(root, ["raises", "honest", "not_a_number"], workloads=("8",))}
    assert {name: row.status for name, row in found.items()} == {
        "raises": Status.INPUT_CHANGED,
        "honest": Status.PASSED,
        "not_a_number": Status.NOT_A_NUMBER,
    }
    assert "works without it" in found["raises"].message


def test_who_has_no_memory_beside_the_others_runs_by_itself(tmp_path, monkeypatch):
    """A GPU that is too full for all of a workload's inputs at once says nothing of a solution. Its rounds pair with
    nobody's. The lack of memory is made up: this machine has no GPU."""
    from kernelderby.measure.run.contest import Contest

    prepared = Contest._prepared

    def with_little_memory(self, racer):
        alone = len(self._run.workers.by_name) == 1
        if racer.solution.name == "honest" and not alone:
            racer.judged = None
            return Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: 47 GiB")
        return prepared(self, racer)

    monkeypatch.setattr(Contest, "_prepared", with_little_memory)
    root, others = copied_set(tmp_path), ["honest", "honest_too", "not_a_number"]
    [own] = root.glob("solutions/**/honest")
    too = Path(shutil.copytree(own, own.parent / "honest_too")) / "solution.toml"
    too.write_text(too.read_text().replace('"honest"', '"honest_too"'))
    rows = measure(root, others, workloads=("8",), sealed=True)
    found = {row.solution: row for row in rows}
    assert len(rows) == 3 and all(found[name].status is Status.PASSED for name in others[:2]), rows
    assert "by itself: beside the others was no memory" in found["honest"].message  # a busy machine adds to it
    assert [name for name in others if "apart" in found[name].environment] == ["honest"]
    pair = ResampledRows([found["honest"], found["honest_too"]]).differences(np.array([0]), np.array([1]))
    assert not pair.paired[0]
    # The others' rows are there by then, for everybody to read.
    secrets = {name: found[name].environment["secret"] for name in others}
    assert secrets["honest"] != secrets["honest_too"] == secrets["not_a_number"]
    assert [each.problems for each in verify(root / "traces")] == [[]]


@pytest.mark.parametrize(
    ("message", "times", "crowded"),
    [
        ("CUDA out of memory", {}, True),
        ("CUDA out of memory", {"eager": [(1.0,)]}, False),
        (f"{JUDGE_WITHOUT_MEMORY}: 1 GiB", {"eager": [(1.0,)]}, True),
    ],
)
def test_whoever_knows_its_times_is_not_measured_once_more(message, times, crowded):
    """By its own word that it has no memory."""
    from kernelderby.measure.run.contest import Contest

    table, job = SimpleNamespace(device=SimpleNamespace(type="cuda")), SimpleNamespace(solutions=(1, 2))
    contest = Contest(SimpleNamespace(), job, table)
    assert contest._is_crowded_out(SimpleNamespace(times=times), Failed(Status.OUT_OF_MEMORY, message)) is crowded


@pytest.mark.parametrize("part", ["_prepared", "_doubt"])
def test_who_takes_the_judges_memory_is_not_tried_without_end(tmp_path, monkeypatch, part):
    """It may know its times: by the judge's turns, or by a clock of its own before them."""
    from kernelderby.measure.run.contest import Contest

    monkeypatch.setattr(
        Contest, part, lambda self, racer: Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: 1 GiB")
    )
    root = copied_set(tmp_path)
    found = [measure(root, ["honest"], workloads=("8",)) for _ in range(TRIES + 1)]
    assert [[row.environment["tries"] for row in rows] for rows in found] == [[1], [2], [3], []]
    assert all(row.is_unjudged for rows in found for row in rows)


def test_a_definition_that_breaks_alone_is_named(tmp_path):
    root, notes = copied_set(tmp_path), []
    source = Catalog.open(root).definition("scaled_add_n16").source_path
    source.write_text(
        source.read_text().replace("def run(", "def run(*given):\n    raise IndexError('0')\n\n\ndef ran(")
    )
    from kernelderby.measure.run import runner

    class Told(runner.Observer):
        def note(self, line):
            notes.append(line)

    from kernelderby.measure.run.plan import Settings, make_plan

    catalog, settings = Catalog.open(root), Settings(rounds=1, most_rounds=1, iterations=2, timeout_seconds=30)
    plan = make_plan(catalog, CPU, settings, ["honest"], workloads=("8",))
    assert runner.Runner(catalog, CPU, settings, Told()).run(plan) == []
    assert any("run raises IndexError: 0; mend the definition" in note for note in notes), notes
