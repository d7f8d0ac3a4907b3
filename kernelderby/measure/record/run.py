"""Profiles solutions on workloads: a separate process and one SQLite file for each pair."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.errors import DerbyError
from kernelderby.measure.fence import marks, watcher
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.record.records import ProfileRequest
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.wire.process import worker_environment
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import Failed, ProfileDone, Reply
from kernelderby.rows.measurement import Status

_MODULE = "kernelderby.measure.record.worker"
SUFFIX = ".sqlite"
_POLL_SECONDS = 0.2
_LOG_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class ProfileJob:
    definition: Definition
    solution: Solution
    workload: Workload

    @property
    def stem(self) -> str:
        """The stem of the profile's file name: "triton_compact_seq_len901_cd5fd1a5"."""
        axes = "_".join(f"{name}{size}" for name, size in self.workload.axes.items())
        return "_".join(filter(None, [self.solution.name, axes, self.workload.uuid[:8]]))


@dataclass(slots=True)
class Profiled:
    """The result for one pair. path is None without a profile; then message has the reason."""

    solution: str
    workload: str
    path: Path | None = None
    bytes: int = 0
    kernels: int = 0
    iterations: int = 0
    status: Status = Status.PASSED
    message: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OuterProfiler:
    """A profiler around a worker's process. record: runs a command line under it and writes the file, called with
    (words, environment, seconds, path). suffix: of the file. count: counts the kernels in a file. call_by_call: see
    ProfileRequest."""

    record: Callable[[list[str], dict[str, str], float, Path], None]
    suffix: str
    count: Callable[[Path], int]
    call_by_call: bool = False


def plan_profiles(
    catalog: Catalog, machine: Machine, solutions: Iterable[str], definitions: Iterable[str], workloads: Iterable[str]
) -> tuple[list[ProfileJob], dict[str, str]]:
    """The pairs, and the solutions that cannot run here with the reason."""
    plan = make_plan(catalog, machine, Settings(again=True), solutions, definitions, workloads)
    pairs = [ProfileJob(job.definition, solution, job.workload) for job in plan.jobs for solution in job.solutions]
    return sorted(pairs, key=lambda pair: pair.solution.name), plan.skipped


def run_profiles(
    catalog: Catalog,
    machine: Machine,
    pairs: list[ProfileJob],
    out: Path,
    iterations: int,
    timeout: float,
    around: OuterProfiler | None = None,
) -> Iterator[Profiled]:
    """Profiles the pairs one by one. around: the profiler that records from outside (nsys, ncu); without one CUPTI
    records."""
    suffix, count = (around.suffix, around.count) if around else (SUFFIX, count_kernels)
    with exclusive(machine, catalog.root):
        for pair in pairs:
            path = out / f"{pair.stem}{suffix}"
            reply = _one(catalog, pair, path, iterations, timeout, around)
            yield _profiled(pair, path, reply, count)


def _one(
    catalog: Catalog, pair: ProfileJob, path: Path, iterations: int, timeout: float, around: OuterProfiler | None
) -> Reply:
    with tempfile.TemporaryDirectory(prefix="kernelderby-profile-") as folder:
        reply = Path(folder) / "reply.json"
        asked = ProfileRequest(
            root=str(catalog.root.resolve()),
            definition=pair.definition.name,
            solution=pair.solution.name,
            case=case_of_workload(pair.definition, pair.workload).to_json(),
            iterations=iterations,
            output=None if around else str(path.resolve()),
            reply=str(reply),
            call_by_call=around is not None and around.call_by_call,
        )
        words, environment = worker_command(asked, Path(folder)), worker_environment()
        try:
            if around:
                around.record(words, environment, timeout, path)
            else:
                run_bounded(words, environment, timeout)
        except ProcessFailed as ended:
            if not reply.is_file():
                return _no_answer(str(ended), ended.status)
            if around:  # the solution ran, the profiler around it failed
                raise DerbyError(f"{pair.stem}: {ended}") from ended
        try:
            content = json.loads(reply.read_bytes())
        except (OSError, ValueError, RecursionError):
            content = None
        return Reply(content) if isinstance(content, dict) else _no_answer("the process ended without an answer")


def _no_answer(message: str, status: Status = Status.CRASHED) -> Reply:
    return Reply({"ok": False, "status": status, "message": message}, gone=True)


def _profiled(pair: ProfileJob, path: Path, reply: Reply, count: Callable[[Path], int]) -> Profiled:
    if reply.fault_of_the_set is not None:
        raise DerbyError(reply.fault_of_the_set)
    result = Profiled(pair.solution.name, case_of_workload(pair.definition, pair.workload).label)
    try:
        found = reply.of(ProfileDone)
    except Failed as failed:
        result.status, result.message = failed.status, shown(failed.message)
        return result
    result.status, result.message, result.warnings = found.status, found.message, list(found.warnings)
    if found.status is Status.PASSED:
        result.path, result.bytes, result.iterations = path, path.stat().st_size, found.iterations
        result.kernels = found.kernels or count(path)
    return result


def count_kernels(path: Path) -> int:
    """The number of rows in the kernel table. DerbyError if the file has none."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0])
    except sqlite3.Error as error:
        raise DerbyError(f"{path}: holds no kernels ({error}); profile again with more iterations") from error


class ProcessFailed(Exception):
    """A process failed; the message says how, with the end of its output."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def worker_command(request: ProfileRequest, folder: Path) -> list[str]:
    """The command words for a process with the request, which is in the folder."""
    path = folder / "request.json"
    path.write_text(json.dumps(msgspec.to_builtins(request)), encoding="utf-8")
    return [sys.executable, "-P", "-m", _MODULE, str(path)]


def run_bounded(
    words: list[str], environment: dict[str, str], timeout: float, watch: Callable[[], str | None] = lambda: None
) -> str:
    """Runs a command in its own session and gives its output. Ended if it fails, exceeds the timeout, or watch() gives
    a reason to stop it. Its children end with it, and everything that it has started ends with this process, however
    that ends."""
    with tempfile.TemporaryFile() as log:
        number = watcher.next_mark()
        process = subprocess.Popen(
            marks.marked(number, words),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline, reason = time.monotonic() + timeout, None
        try:
            while process.poll() is None and reason is None:
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    reason = watch() or (f"no end within {timeout:g} s" if time.monotonic() > deadline else None)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            marks.end(number)  # processes that have left the group
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
        output = log.read().decode(errors="replace")
    if reason:
        raise ProcessFailed(Status.TIMED_OUT, f"{reason}\n{_tail(output)}".strip())
    if process.returncode:
        raise ProcessFailed(
            Status.CRASHED, f"{Path(words[0]).name} ended with code {process.returncode}\n{_tail(output)}"
        )
    return output


def _tail(output: str, lines: int = 8) -> str:
    return "\n".join(output.splitlines()[-lines:])
