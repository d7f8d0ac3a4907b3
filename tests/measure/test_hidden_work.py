"""Work on the GPU out of turn: processes of the CPU, and a stand-in for a GPU that is busy with them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from measuring import of_process

from kernelderby.measure.fence import processes

torch = pytest.importorskip("torch")
from kernelderby.measure.run import hidden_work  # noqa: E402
from kernelderby.measure.wire.still import standing_still  # noqa: E402


class Process:
    """The part of a WorkerProcess that helpers use. busy: whether it keeps the GPU busy while it runs."""

    def __init__(self, busy: bool = False, starts: str = "") -> None:
        self.busy, self.stopped = busy, False
        code = f"import subprocess, time\n{starts}\nprint(1, flush=True)\ntime.sleep(60)"
        self._process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        self._process.stdout.readline()
        self.pid = self._process.pid

    def stop(self) -> None:
        self.stopped = True

    def tell_to_stop(self) -> None:
        self.stop()

    def wait_until_stopped(self) -> None:
        """At once: nothing here stops."""

    def has_worked(self, seconds: float) -> None:
        """Until the signal came."""

    def room(self) -> dict[Path, int]:
        """It has no folder."""
        return {}

    def excuse(self, memory: float, room: dict[Path, int]) -> None:
        """Nothing here is charged."""

    def go_on(self) -> None:
        self.stopped = False

    def end(self) -> None:
        for pid in processes.descendants(self.pid):
            processes.end(pid)
        self._process.kill()
        self._process.communicate()


def living(worker: Process) -> list[int]:
    """The processes that it has started and that still run; their parent does not wait for them."""
    return [pid for pid in processes.descendants(worker.pid) if (found := of_process(pid)) and found[0] != "Z"]


@pytest.fixture
def racing():
    made = {
        "honest": Process(),
        "has_a_compiler": Process(starts="subprocess.Popen(['sleep', '60'])"),
        "has_a_helper": Process(starts="subprocess.Popen(['sleep', '61'])"),
        "busy": Process(busy=True),
    }
    yield made
    for each in made.values():
        each.end()


class Sensors:
    """A driver that lists this process, the workers, strangers, and what `helped` has started."""

    def __init__(self, workers, helped=(), strangers=0) -> None:
        self.workers, self.helped, self.strangers = workers, helped, strangers

    def processes(self):
        helping = [pid for name in self.helped for pid in living(self.workers[name])]
        return list(range(1 + len(self.workers) + self.strangers + len(helping)))


def test_the_helper_of_a_solution_is_ended_and_its_name_told(racing, monkeypatch):
    workers = {name: racing[name] for name in ("honest", "has_a_compiler", "has_a_helper")}
    monkeypatch.setattr(processes, "has_gpu", lambda pid: pid not in living(racing["has_a_compiler"]))
    assert hidden_work.helper_of(workers, Sensors(workers)) is None
    assert len(living(workers["has_a_helper"])) == 1, "nothing is ended without need"
    assert hidden_work.helper_of(workers, Sensors(workers, ["has_a_helper"])) == "has_a_helper"
    assert living(workers["has_a_helper"]) == []
    assert len(living(workers["has_a_compiler"])) == 1, "it has no device of a GPU"


def test_a_stranger_on_the_gpu_is_nobodys_helper(racing, monkeypatch):
    monkeypatch.setattr(hidden_work, "_GONE_SECONDS", 0.1)
    workers = {name: racing[name] for name in ("honest", "has_a_compiler")}
    assert hidden_work.helper_of(workers, Sensors(workers, strangers=1)) is None


def test_who_keeps_the_gpu_busy_is_found_by_stopping_one_after_the_other(racing, monkeypatch):
    monkeypatch.setattr(hidden_work, "_RUNS_OUT_SECONDS", 0.1)
    monkeypatch.setattr(hidden_work, "_QUIET_SECONDS", 0.1)
    monkeypatch.setattr(
        hidden_work, "is_busy", lambda device: any(each.busy and not each.stopped for each in racing.values())
    )
    device, watch = torch.device("cuda", 0), hidden_work.Watch()
    assert watch.out_of_turn(racing, device) == "busy"
    assert [name for name, each in racing.items() if each.stopped] == ["busy"], "the others go on"
    assert watch.out_of_turn(racing, device) is None
    monkeypatch.setattr(hidden_work, "is_busy", lambda device: True)
    assert watch.out_of_turn(racing, device) is None, "somebody else's work"
    assert not any(each.stopped for each in racing.values())


def test_nobody_is_accused_by_one_who_rests_when_a_rival_is_stopped(racing, monkeypatch):
    monkeypatch.setattr(hidden_work, "_RUNS_OUT_SECONDS", 0.1)
    monkeypatch.setattr(hidden_work, "_QUIET_SECONDS", 0.1)
    busy, honest = racing["busy"], racing["honest"]
    monkeypatch.setattr(hidden_work, "is_busy", lambda device: not busy.stopped and not honest.stopped)
    assert hidden_work.Watch().out_of_turn(racing, torch.device("cuda", 0)) != "honest"


def test_a_gpu_that_came_to_rest_by_itself_was_nobodys(racing, monkeypatch):
    monkeypatch.setattr(hidden_work, "_RUNS_OUT_SECONDS", 0.1)
    monkeypatch.setattr(hidden_work, "_QUIET_SECONDS", 0.1)
    looks = iter([True])
    monkeypatch.setattr(hidden_work, "is_busy", lambda device: next(looks, False))
    assert hidden_work.Watch().out_of_turn(racing, torch.device("cuda", 0)) is None


def test_the_others_stand_still_with_all_that_they_have_started(racing):
    started = {name: [each.pid, *processes.descendants(each.pid)] for name, each in racing.items()}
    assert sum(map(len, started.values())) == len(racing) + 2

    def states(*names):
        return {of_process(pid)[0] for name in names for pid in started[name]}

    def soon(is_so):
        """A signal takes effect when the process that gets it has a processor."""
        until = time.monotonic() + 60
        while not is_so() and time.monotonic() < until:
            time.sleep(0.01)
        return is_so()

    others = [each for name, each in racing.items() if name != "honest"]
    for each in others:
        each.stop = partial(processes.signalled, each.pid, signal.SIGSTOP)
        each.go_on = partial(processes.signalled, each.pid, signal.SIGCONT)
    with pytest.raises(KeyError), standing_still(others):
        assert soon(lambda: states(*racing.keys() - {"honest"}) == {"T"})
        assert states("honest") <= {"S", "R", "D"}
        raise KeyError
    assert soon(lambda: states(*racing) <= {"S", "R", "D"})
