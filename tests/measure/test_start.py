"""How a worker begins: a forked worker has the same as a started one, and nothing of its siblings or of the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from measuring import ends, measure, of_process, said_by

from kernelderby.measure.fence import folders, landlock
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.wire import start
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.worker import fork_server

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux alone")
HONEST = "solutions/tests/elementwise/scaled_add_n16/honest"

SEEN = """
import json, os, resource, sys, tempfile
from pathlib import Path

status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
mapped = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
seen = {
    "environment": dict(os.environ),
    "descriptors": sorted(
        os.readlink(f"/proc/self/fd/{each}").partition(":")[0]
        for each in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{each}")
    ),
    "shared": [each for each in mapped if each[1].endswith("s") and "w" in each[1]],
    "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE)],
    "fences": [status[each] for each in ("NoNewPrivs", "Seccomp", "Threads")],
    "own session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "parent": os.getppid(),
    "folder": os.getcwd(),
    "temporary": tempfile.gettempdir() == os.environ["TMPDIR"],
    "readable": os.access("/proc/self/fd", os.R_OK) and os.stat("/proc/self/mem").st_uid == os.getuid(),
    "path": sys.path,
    "flags": [sys.flags.safe_path, sys.flags.dont_write_bytecode],
}
tell(seen)
"""


TELL = """
def tell(what):
    import json, os
    from pathlib import Path

    Path(os.environ["TRITON_CACHE_DIR"] + ".told").write_text(json.dumps(what))
    raise RuntimeError("told")
"""


@pytest.fixture
def told(misbehaviours, tmp_path, monkeypatch):
    """told(program, times) -> the output of a solution that is this program, from each of `times` workers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(program: str, times: int = 1) -> list[dict]:
        (misbehaviours / HONEST / "main.py").write_text(TELL + program)
        said = []
        for _ in range(times):
            (row,) = measure(misbehaviours, ["honest"], workloads=("8",), again=True)
            assert "RuntimeError: told" in said_by(row), row.message
            (path,) = tmp_path.rglob("*.told")
            said.append(json.loads(path.read_text()))
            path.unlink()
        return said

    return run


@pytest.fixture(autouse=True, scope="module")
def no_server_of_former_tests():
    start._end_servers()


@pytest.fixture
def forks(monkeypatch):
    """Workers that were forked."""
    made = []

    def counted(self, *given):
        made.append(forked(self, *given))
        return made[-1]

    forked = start.ForkServer.forked
    monkeypatch.setattr(start.ForkServer, "forked", counted)
    return made


@linux
def test_a_forked_worker_is_what_a_started_one_is(told, forks, monkeypatch):
    (forked,) = told(SEEN)
    many = len(forks)
    assert many and None not in forks
    monkeypatch.setattr(start, "_fork_server", lambda device, environment: None)
    (started,) = told(SEEN)
    assert len(forks) == many
    differs = folders.PLACES & started["environment"].keys()
    assert {"TMPDIR", "TRITON_CACHE_DIR"} <= differs
    for each in (forked, started):
        each["environment"] = {name: value for name, value in each["environment"].items() if name != "TMPDIR"}
    assert forked == started
    assert forked["parent"] == os.getpid() and forked["own session"] and forked["temporary"] and not forked["shared"]
    assert forked["descriptors"] == ["/dev/null", "pipe", "pipe", "pipe", "socket"]


NUMBERS = """
import json, random, secrets

import numpy
import torch

drawn = [random.random(), float(numpy.random.random()), secrets.token_hex(4)]
tell({"drawn": drawn})
"""


@linux
@pytest.mark.gpu
def test_a_worker_for_a_gpu_is_forked_too(misbehaviours, forks):
    """From a process that has not touched the GPU; each worker then has a context of its own."""
    machine = find_machine(misbehaviours, "cuda")
    rows = measure(misbehaviours, ["honest", "cached_output"], workloads=("8",), machine=machine)
    assert {row.solution: row.status.value for row in rows} == {"honest": "passed", "cached_output": "stale_output"}
    assert len(forks) >= len(rows) and None not in forks


@linux
def test_a_server_that_has_touched_a_gpu_is_noticed(monkeypatch):
    assert not fork_server._has_a_gpu()
    monkeypatch.setattr(fork_server.os, "readlink", lambda path: "/dev/nvidiactl")
    assert fork_server._has_a_gpu()


@linux
def test_siblings_draw_other_numbers(told, forks):
    one, other = (each["drawn"] for each in told(NUMBERS, times=2))
    assert len(forks) >= 2 and None not in forks and not set(one) & set(other)


FENCED = """
tell({"status": open("/proc/self/status").read()})
"""

REACHES = """
import json, os, resource

server = SERVER
refused = {}
for name, what in {
    "signal": lambda: os.kill(server, 9),
    "its group": lambda: os.killpg(server, 9),
    "limits": lambda: resource.prlimit(server, resource.RLIMIT_NOFILE, (4, 4)),
    "processors": lambda: os.sched_setaffinity(server, {0}),
    "memory": lambda: open(f"/proc/{server}/mem", "r+b"),
    "its reading": lambda: open(f"/proc/{server}/mem", "rb"),
    "descriptors": lambda: os.readlink(f"/proc/{server}/fd/0"),
    "its socket": lambda: os.open(f"/proc/{server}/fd/3", os.O_RDWR),
}.items():
    try:
        what()
        refused[name] = False
    except OSError:
        refused[name] = True
tell(refused)
"""


@linux
@pytest.mark.skipif(not landlock.version(), reason="this kernel has no landlock")
def test_the_server_is_out_of_a_workers_reach(told, forks):
    if "Seccomp:\t2" not in told(FENCED)[0]["status"]:
        pytest.skip("this kernel has no seccomp")
    (server,) = start.servers()
    reaches = REACHES.replace("SERVER", str(server))
    (refused,) = told(reaches)
    assert len(refused) == 8 and all(refused.values()), refused
    told(reaches)
    assert start.servers() == {server}
    assert forks and None not in forks, "it works on"


JUDGE = """
import os, sys
from pathlib import Path

from kernelderby.measure.wire import start
from kernelderby.measure.wire.process import WorkerProcess

worker = WorkerProcess(Path(sys.argv[1]), "cpu", solution_hash="0" * 16)
worker.send("load", 60, definition="scaled_add_n16", solution="honest", protocol="cpu-wall")
print(worker._scratch, worker._process.pid, *start.servers(), flush=True)
sys.stdin.read()
"""


@linux
def test_worker_and_server_die_with_a_killed_judge(misbehaviours):
    (misbehaviours / HONEST / "main.py").write_text("while True:\n    pass\n")
    judge = subprocess.Popen(
        [sys.executable, "-c", JUDGE, str(misbehaviours)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with judge:
        scratch, *pids = judge.stdout.readline().split()
        Path(scratch, "what it wrote").touch()
        began = {pid: of_process(pid)[1] for pid in map(int, pids)}
        assert len(began) == 2, "a worker and a server"
        judge.send_signal(signal.SIGKILL)
    assert all(ends(*each) for each in began.items())
    until = time.monotonic() + 30
    while Path(scratch).exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(scratch).exists(), "the watcher removes it"


@linux
def test_a_worker_leads_a_group_as_soon_as_its_id_is_known(misbehaviours):
    """Or who ends it at once signals a group that is not there, and waits for ever."""
    workers, groups = [], []
    for _ in range(20):
        workers.append(WorkerProcess(misbehaviours, "cpu"))
        groups.append(os.getpgid(workers[-1].pid) == workers[-1].pid)
    for worker in workers:
        worker.kill()
    assert all(groups)


@linux
def test_another_environment_gets_another_server():
    found, began = [], []
    for value, place in (("1", "a"), ("1", "b"), ("2", "b")):
        own = {"DERBY_TESTS": value, "TRITON_INTERPRET": "1"}
        found.append(start._fork_server("cpu", {**own, "TMPDIR": place, "TRITON_CACHE_DIR": place}))
        assert found[-1].environment == own and start.servers() == {found[-1].pid}
        began.append((found[-1].pid, of_process(found[-1].pid)[1]))
    assert found[0] is found[1] and found[1] is not found[2]
    assert ends(*began[0])
    other = start._fork_server("cpu", {"DERBY_TESTS": "2"})
    assert start.servers() == {found[2].pid, other.pid}, "with Triton as a compiler and as an interpreter"
    start._end_servers()
    assert not start.servers() and ends(*began[2])


@linux
def test_without_a_server_workers_are_started(misbehaviours, forks, monkeypatch, tmp_path):
    """A torch that does not load ends the server; the worker is one that says why."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    monkeypatch.setattr(start, "_without", [])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"), prepend=os.pathsep)
    for _ in range(2):
        (row,) = measure(misbehaviours, ["honest"], workloads=("8",), again=True)
        assert "libcudart.so.12" in said_by(row)
    assert forks == [None], "asked once"


@linux
def test_the_id_of_an_ended_server_protects_nobody(misbehaviours, forks, monkeypatch):
    """It is soon another process's: a solution's, say, that left its parent."""
    servers = []
    for value in "12":
        monkeypatch.setenv("DERBY_TESTS", value)
        measure(misbehaviours, ["honest"], workloads=("8",), again=True)
        servers += start.servers()
    assert forks and None not in forks and len(servers) == 2
    assert servers[1] in WorkerProcess.known() and servers[0] not in WorkerProcess.known()
