"""Distributes tasks over the hosts of a Ray cluster. Each task has one GPU to itself until it is answered."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from types import FrameType
from typing import Any, Generic, TypeVar

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns.parts import code_digest
from kernelderby.errors import DerbyError
from kernelderby.measure.cluster.host import Host, packed
from kernelderby.measure.cluster.messages import CodeVersion, Hello, TaskAnswered, TaskAsked
from kernelderby.measure.machine.probe import Machine

TRIES = 3  # of a task
START_SECONDS = 600.0  # added to a task's deadline for the first compilation of its solutions
_HELLO_SECONDS = 600.0  # torch from a cold disk, and every library that a solution needs
_LOOK_SECONDS = 5.0  # for hosts that have come
_ALONE_SECONDS = 60.0  # without any host, then the run is given up
_LATE_SECONDS = 30.0  # after the deadline, which the host itself enforces
_ANSWER_SECONDS = 10.0  # of a cluster's first host to a connection
_PAUSE_SECONDS = 60.0  # then a GPU that another program holds is tried again

Kind = tuple[str, str]  # as in rows: the GPU's name, and the protocol of its host


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """address: of a Ray cluster. "auto": the cluster that runs here or that $RAY_ADDRESS names; otherwise a cluster of
    this machine alone, for the duration of the command."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # an error if it does not answer
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    _expect_listener(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        try:
            ray.init(address=address, **options)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(address="local", include_dashboard=False, **options)
    except Exception as error:  # of many classes; a bare Exception if a raylet starts too slowly  # noqa: BLE001
        told = str(error).strip().partition("\n")[0]
        token = "" if "RAY_AUTH_MODE" in os.environ else ", or where it asks for a token: export RAY_AUTH_MODE=token"
        raise DerbyError(
            f"--ray {address}: no Ray cluster answers ({told:.200}); start one with `ray start`{token}"
        ) from None
    caught: list[BaseException] = []
    try:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():  # Ray's own handlers abort
                if handler is not None:
                    signal.signal(number, _remembering(handler, caught))
        yield
    except BaseException:  # Ray replaces an exception that a handler raises during its wait
        if caught:
            raise caught[0] from None
        raise
    finally:
        ray.shutdown()


def _expect_listener(address: str) -> None:
    """DerbyError if nothing listens at HOST:PORT, since Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        told = getattr(error, "strerror", None) or error
        raise DerbyError(
            f"--ray {address}: no Ray cluster answers ({told}); start one with `ray start --head`, or give the address "
            "that it printed"
        ) from None


def _remembering(handler: Any, caught: list[BaseException]) -> Any:
    """The handler, if it is a function, so that its exception is also in `caught`."""
    if not callable(handler):
        return handler

    def called(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            caught.append(error)
            raise

    return called


@dataclass(eq=False, slots=True)
class Task:
    """A task for a host. seconds: its deadline. pairs: number of solutions that it measures."""

    asked: TaskAsked
    seconds: float
    tries: int = 0
    problems: list[str] = field(default_factory=list)


T = TypeVar("T", bound=Task)


@dataclass(eq=False, slots=True)
class _Held(Generic[T]):
    """One GPU or core. waits: Ray's pending answer. until: its deadline in time.monotonic()."""

    node: str
    actor: Any
    waits: Any
    until: float
    hello: Hello | None = None
    task: T | None = None
    last: str = ""


class TaskSource(Generic[T]):
    """The source of a pool's tasks."""

    def tasks(self, hello: Hello) -> Iterable[T]:
        """The tasks for a kind of host. Called once, with the greeting of the first host."""
        raise NotImplementedError

    def begun(self, machine: Machine, task: T) -> bool:
        """Called before a task goes to a host. If it returns False, the pool drops the task."""
        return True

    def answered(self, machine: Machine, task: T, found: TaskAnswered) -> None:
        """Called at most once per task."""
        raise NotImplementedError


class Pool(Generic[T]):
    """kinds: hardware ids of the GPUs that take part, or only "cpu"; empty for all GPUs. told: gets lines for the user.
    left: tasks that failed TRIES times or found no host."""

    def __init__(
        self,
        catalog: Catalog,
        solutions: Collection[str],
        kinds: Sequence[str],
        owner: TaskSource[T],
        told: Callable[[str], None],
    ) -> None:
        """solutions: names of the solutions in tasks."""
        self.kinds, self._owner, self._told = kinds, owner, told
        self.device = "cpu" if [*kinds] == ["cpu"] else "cuda"
        self._data, self._held = ray.put(packed(catalog, solutions)), list[_Held[T]]()
        self._waiting: dict[Kind, deque[T]] = {}
        self._broken: dict[str, int] = {}  # node -> number of hosts that failed in a row
        self._away: list[tuple[str, float]] = []  # node; not tried until this time.monotonic()
        self._looked = 0.0
        self._said = set[str]()
        self.left: list[T] = []

    def greet(self) -> dict[Kind, tuple[Hello, int]]:
        """For each kind a greeting and the number of hosts, after all hosts have answered or failed. DerbyError if the
        cluster lacks a requested kind."""
        self._look()
        while any(each.hello is None for each in self._held):
            self._step(start=False)
        found: dict[Kind, tuple[Hello, int]] = {}
        for each in self._held:
            if each.hello is not None:
                kind = kind_of(each.hello.machine)
                found[kind] = each.hello, found.get(kind, (each.hello, 0))[1] + 1
        there = {hello.machine.id for hello, _ in found.values()}
        if found and (missing := [kind for kind in self.kinds if kind not in there]):
            here = ", ".join(sorted(there))
            raise DerbyError(f"--gpu {','.join(missing)}: no host that can measure has one; there is {here}")
        return found

    def run(self) -> None:
        """Runs every task of every kind. Tasks that fail TRIES times or find no host go to `left`."""
        alone_since: float | None = None
        while any(self._waiting.values()) or any(each.task for each in self._held):
            if time.monotonic() > self._looked + _LOOK_SECONDS:
                self._look()
            able = {kind_of(each.hello.machine) for each in self._held if each.hello}
            starting = any(each.hello is None for each in self._held)
            stuck = [kind for kind, tasks in self._waiting.items() if tasks and kind not in able]
            if stuck and not starting and not any(each.task for each in self._held):
                alone_since = alone_since or time.monotonic()
                if time.monotonic() > alone_since + _ALONE_SECONDS:
                    break
            else:
                alone_since = None
            if self._held:
                self._step(start=True)
            else:
                time.sleep(0.2)
        self.left += [task for tasks in self._waiting.values() for task in tasks]
        self._waiting = {kind: deque() for kind in self._waiting}

    def again(self, machine: Machine, tasks: Sequence[T]) -> None:
        """Prepares another run()."""
        self._waiting[kind_of(machine)].extend(tasks)

    def close(self) -> None:
        """Every host gives its GPU back."""
        ending = []
        for each in self._held:
            with suppress(RayError):
                if each.task is None:
                    ending.append(each.actor.close.remote())
        with suppress(RayError):
            ray.wait(ending, num_returns=len(ending), timeout=_LATE_SECONDS) if ending else None
        while self._held:
            self._end(self._held[0])

    def _look(self) -> None:
        """Starts a host on every GPU (core) that has none yet."""
        self._looked = now = time.monotonic()
        self._away = [(node, until) for node, until in self._away if until > now]
        resource = "GPU" if self.device == "cuda" else "CPU"
        for node in ray.nodes():
            name = node["NodeID"]
            if not node["Alive"] or self._broken.get(name, 0) >= TRIES:
                continue
            away = sum(each == name for each, _ in self._away)
            here = sum(each.node == name for each in self._held)
            for _ in range(int(node["Resources"].get(resource, 0)) - here - away):
                self._start(name)

    def _start(self, node: str) -> None:
        wanted = {"num_gpus": 1, "num_cpus": 0} if self.device == "cuda" else {"num_cpus": 1}
        actor = (
            ray.remote(Host)
            .options(
                **wanted,
                max_restarts=0,
                runtime_env={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(self._data, self.device)
        )
        waits = actor.ask.remote(b"", _HELLO_SECONDS)
        self._held.append(_Held(node, actor, waits, time.monotonic() + _HELLO_SECONDS + _LATE_SECONDS))

    def _step(self, start: bool) -> None:
        """Gives free hosts work, and takes the answers of the next moment."""
        for each in self._held if start else ():
            if each.hello is not None and each.task is None:
                self._give(each)
        waiting = {each.waits: each for each in self._held if each.waits is not None}
        if not waiting:
            time.sleep(0.1)
            return
        ready, _ = ray.wait([*waiting], num_returns=1, timeout=1.0)
        for reference in ready:
            self._take(waiting[reference])
        for each in [each for each in self._held if each.waits is not None and time.monotonic() > each.until]:
            self._lose(each, "it has not answered by its deadline")

    def _give(self, held: _Held[T]) -> None:
        """The next task of the host's kind, preferably of the operator that it has loaded."""
        assert held.hello is not None
        machine = held.hello.machine
        tasks = self._waiting[kind_of(machine)]
        while tasks:
            busy = {each.last for each in self._held if each is not held and each.task}
            task = next((each for each in tasks if each.asked.definition == held.last), None)
            task = task or next((each for each in tasks if each.asked.definition not in busy), None) or tasks[0]
            tasks.remove(task)
            if not self._owner.begun(machine, task):
                continue
            task.tries += 1
            held.task, held.last = task, task.asked.definition
            held.until = time.monotonic() + task.seconds + _LATE_SECONDS
            held.waits = held.actor.ask.remote(msgspec.json.encode(task.asked), task.seconds)
            return

    def _take(self, held: _Held[T]) -> None:
        try:
            data = ray.get(held.waits)
        except (RayError, RuntimeError) as error:
            self._lose(held, str(getattr(error, "cause", None) or error).strip().splitlines()[-1][:200])
            return
        held.waits = None
        if held.hello is None:
            self._welcome(held, data)
            return
        found, task = msgspec.json.decode(data, type=TaskAnswered), held.task
        assert task is not None
        if found.error:
            self._lose(held, found.error)
            return
        held.task = None
        self._broken[held.node] = 0
        self._owner.answered(held.hello.machine, task, found)

    def _welcome(self, held: _Held[T], data: bytes) -> None:
        if msgspec.json.decode(data, type=CodeVersion).code != code_digest():
            self._send_away(held, "has another version of kernelderby; install the same one there")
            return
        hello = msgspec.json.decode(data, type=Hello)
        if self.device == "cuda" and hello.machine.gpu is None:
            self._send_away(held, f"{hello.machine.gpu_missing}, so nothing can be measured there")
        elif self.kinds and hello.machine.id not in self.kinds:
            self._send_away(held, f"is a {hello.machine.name}, which --gpu does not name")
        elif hello.busy:
            self._send_away(held, f"{hello.busy}; asked again in {_PAUSE_SECONDS:.0f} s", _PAUSE_SECONDS)
        else:
            held.hello = hello
            kind = kind_of(hello.machine)
            if kind not in self._waiting:
                self._waiting[kind] = deque(self._owner.tasks(hello))

    def _send_away(self, held: _Held[T], problem: str, seconds: float = inf) -> None:
        """Sends a host away that cannot take part, for this time."""
        line = f"host {held.node[:8]}: {problem}; left out"
        if line not in self._said:
            self._told(line)
        self._said.add(line)
        self._away.append((held.node, time.monotonic() + seconds))
        self._end(held)

    def _lose(self, held: _Held[T], problem: str) -> None:
        """Gives up a host that is gone or in an unknown state; its task is tried elsewhere."""
        task = held.task
        self._end(held)
        self._broken[held.node] = self._broken.get(held.node, 0) + 1
        if task is None or held.hello is None:
            self._told(f"host {held.node[:8]}: {problem}")
            return
        task.problems.append(problem)
        what = f"{task.asked.definition} ({', '.join(task.asked.solutions)})"
        if task.tries < TRIES:
            self._told(f"{what}: try {task.tries} of {TRIES} failed ({problem}); tried again")
            self._waiting[kind_of(held.hello.machine)].append(task)
        else:
            self._told(f"{what}: failed {TRIES} times ({problem}); left out")
            self.left.append(task)

    def _end(self, held: _Held[T]) -> None:
        with suppress(RayError, ValueError):
            ray.kill(held.actor)
        self._held.remove(held)


def kind_of(machine: Machine) -> Kind:
    return machine.name, machine.protocol
