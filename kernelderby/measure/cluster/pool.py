"""Tasks over the hosts of a Ray cluster: each on one GPU that nobody else has, until it is answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernelderby.catalog.parts import code_digest
from kernelderby.errors import DerbyError
from kernelderby.measure.cluster.host import Host
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.machine.probe import Machine

TRIES = 3  # of a task
_HELLO_SECONDS = 600.0  # torch from a cold disk, and every library that a solution needs
_LOOK_SECONDS = 5.0  # for hosts that have come
_ALONE_SECONDS = 60.0  # without any host, until the run is given up
_LATE_SECONDS = 30.0  # after a deadline that the host itself keeps


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """address: of a Ray cluster; "auto": the one that runs here or that $RAY_ADDRESS names, else one of this machine
    alone, for as long as the command."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    try:
        try:
            ray.init(address=address, **{key: options[key] for key in ("log_to_driver", "logging_level")})
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(address="local", **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        told = str(error).partition("\n")[0]
        raise DerbyError(f"--ray {address}: no Ray cluster answers ({told:.200}); start one with `ray start`") from None
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(eq=False, slots=True)
class Task:
    """What is asked of a host. seconds: its deadline. pairs: solutions that it measures."""

    asked: TaskAsked
    seconds: float
    tries: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Held:
    """One GPU or core. waits: what Ray answers next. until: time.monotonic() when it has to have."""

    node: str
    actor: Any
    waits: Any
    until: float
    hello: Hello | None = None
    task: Task | None = None
    last: str = ""


class Pool:
    """device: "cuda" or "cpu". kinds: hardware ids of the GPUs that take part; all without any. tasks_of: called once a
    kind with its first host's greeting. told: a line worth saying."""

    def __init__(
        self,
        data: bytes,
        device: str,
        kinds: tuple[str, ...],
        tasks_of: Callable[[Hello], Iterable[Task]],
        told: Callable[[str], None],
    ) -> None:
        self.device, self.kinds, self._tasks_of, self._told = device, kinds, tasks_of, told
        self._data, self._held = ray.put(data), list[_Held]()
        self._waiting: dict[str, deque[Task]] = {}
        self._on_nodes: dict[str, int] = {}
        self._broken: dict[str, int] = {}  # node -> hosts that failed in a row
        self._looked = 0.0
        self._refused = set[str]()
        self.left: list[Task] = []

    def greet(self) -> dict[str, tuple[Hello, int]]:
        """Kind -> a greeting, and how many hosts of it the cluster has; when each of them has answered or failed."""
        self._look()
        while any(each.hello is None for each in self._held):
            self._step(start=False)
        found: dict[str, tuple[Hello, int]] = {}
        for each in self._held:
            if each.hello is not None:
                kind = each.hello.machine.id
                found[kind] = each.hello, found.get(kind, (each.hello, 0))[1] + 1
        return found

    def run(self, answered: Callable[[Machine, Task, TaskAnswered], None]) -> None:
        """Every task of every kind; what fails TRIES times or finds no host is left. answered: called as they end."""
        alone_since: float | None = None
        while any(self._waiting.values()) or any(each.task for each in self._held):
            if time.monotonic() > self._looked + _LOOK_SECONDS:
                self._look()
            able = {each.hello.machine.id for each in self._held if each.hello}
            starting = any(each.hello is None for each in self._held)
            stuck = [kind for kind, tasks in self._waiting.items() if tasks and kind not in able]
            if stuck and not starting and not any(each.task for each in self._held):
                alone_since = alone_since or time.monotonic()
                if time.monotonic() > alone_since + _ALONE_SECONDS:
                    break
            else:
                alone_since = None
            if self._held:
                self._step(start=True, answered=answered)
            else:
                time.sleep(0.2)
        self.left += [task for tasks in self._waiting.values() for task in tasks]

    def close(self) -> None:
        """Every host gives its GPU back."""
        ending = []
        for each in self._held:
            with suppress(RayError):
                if each.task is None:
                    ending.append(each.actor.close.remote())
        with suppress(RayError):
            ray.wait(ending, num_returns=len(ending), timeout=_LATE_SECONDS) if ending else None
        for each in self._held:
            with suppress(RayError, ValueError):
                ray.kill(each.actor)
        self._held.clear()

    # ------------------------------------------------------------------------------------------------ hosts

    def _look(self) -> None:
        """A host on every GPU (core) of every node that has none yet."""
        self._looked = time.monotonic()
        resource = "GPU" if self.device == "cuda" else "CPU"
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            name = node["NodeID"]
            if not node["Alive"] or self._broken.get(name, 0) >= TRIES:
                continue
            here = sum(each.node == name for each in self._held) + (name in self._refused) * 1_000_000
            for _ in range(int(node["Resources"].get(resource, 0)) - here):
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
        waits = actor.ask.remote(b"", _HELLO_SECONDS)  # type: ignore[attr-defined]
        self._held.append(_Held(node, actor, waits, time.monotonic() + _HELLO_SECONDS + _LATE_SECONDS))

    def _step(self, start: bool, answered: Callable[[Machine, Task, TaskAnswered], None] | None = None) -> None:
        """Gives free hosts work and takes what comes within a moment."""
        for each in self._held if start else ():
            if each.hello is not None and each.task is None:
                self._give(each)
        waiting = {each.waits: each for each in self._held if each.waits is not None}
        if not waiting:
            time.sleep(0.1)
            return
        ready, _ = ray.wait([*waiting], num_returns=1, timeout=1.0)
        for reference in ready:
            self._take(waiting[reference], answered)
        for each in [each for each in self._held if each.waits is not None and time.monotonic() > each.until]:
            self._lose(each, "it has not answered by its deadline")

    def _give(self, held: _Held) -> None:
        """The next task of its kind, of the operator that it has loaded if there is one."""
        assert held.hello is not None
        tasks = self._waiting.get(held.hello.machine.id)
        if not tasks:
            return
        busy = {each.last for each in self._held if each is not held and each.task}
        task = next((each for each in tasks if each.asked.definition == held.last), None)
        task = task or next((each for each in tasks if each.asked.definition not in busy), None) or tasks[0]
        tasks.remove(task)
        task.tries += 1
        held.task, held.last = task, task.asked.definition
        held.until = time.monotonic() + task.seconds + _LATE_SECONDS
        held.waits = held.actor.ask.remote(msgspec.json.encode(task.asked), task.seconds)

    def _take(self, held: _Held, answered: Callable[[Machine, Task, TaskAnswered], None] | None) -> None:
        try:
            data = ray.get(held.waits)
        except (RayError, RuntimeError) as error:
            self._lose(held, str(getattr(error, "cause", None) or error).strip().splitlines()[-1][:200])
            return
        held.waits = None
        if held.hello is None:
            self._welcome(held, msgspec.json.decode(data, type=Hello))
            return
        found, task = msgspec.json.decode(data, type=TaskAnswered), held.task
        assert task is not None
        if found.error:
            self._lose(held, found.error)
            return
        held.task = None
        self._broken[held.node] = 0
        if answered is not None:
            answered(held.hello.machine, task, found)

    def _welcome(self, held: _Held, hello: Hello) -> None:
        kind = hello.machine.id
        problem = ""
        if hello.code != code_digest():
            problem = "has another version of kernelderby; install the same one there"
        elif self.device == "cuda" and hello.machine.gpu is None:
            problem = f"{hello.machine.gpu_missing}, so nothing can be measured there"
        elif self.kinds and kind not in self.kinds:
            problem = f"is a {hello.machine.name}, which --gpu does not name"
        if problem:
            if held.node not in self._refused:
                self._told(f"host {held.node[:8]}: {problem}; left out")
            self._refused.add(held.node)
            self._end(held)
            return
        held.hello = hello
        if kind not in self._waiting:
            self._waiting[kind] = deque(self._tasks_of(hello))

    def _lose(self, held: _Held, problem: str) -> None:
        """The host is gone, or nobody knows what is left in it; its task is tried elsewhere."""
        task, kind = held.task, held.hello.machine.id if held.hello else ""
        self._end(held)
        self._broken[held.node] = self._broken.get(held.node, 0) + 1
        if task is None:
            self._told(f"host {held.node[:8]}: {problem}")
            return
        task.problems.append(problem)
        what = f"{task.asked.definition} ({', '.join(task.asked.solutions)})"
        if task.tries < TRIES:
            self._told(f"{what}: try {task.tries} of {TRIES} failed ({problem}); tried again")
            self._waiting[kind].append(task)
        else:
            self._told(f"{what}: failed {TRIES} times ({problem}); left out")
            self.left.append(task)

    def _end(self, held: _Held) -> None:
        with suppress(RayError, ValueError):
            ray.kill(held.actor)
        self._held.remove(held)
