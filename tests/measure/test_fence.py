"""A worker's environment, caches and signals, and what remains after it."""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns import parts
from kernelderby.errors import DerbyError
from kernelderby.measure.fence import caches, folders, landlock, marks, notices, processes, seccomp
from kernelderby.measure.run import ledger
from kernelderby.measure.run.rows import set_aside_foreign
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.rows.measurement import Status


def test_an_environment_keeps_what_libraries_need_and_no_secret():
    given = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "TRITON_CACHE_DIR": "/t",
        "LC_ALL": "C",
        "HF_TOKEN": "x",
        "AWS_ACCESS_KEY_ID": "x",
        "CUDA_API_KEY": "x",
        "MY_NOTES": "x",
        "DERBY_COMMIT": "abc",
        "FLASHINFER_PASSWORD": "x",
    }
    assert set(folders.allowed_environment(given)) == {
        "PATH",
        "CUDA_VISIBLE_DEVICES",
        "TRITON_CACHE_DIR",
        "LC_ALL",
        "DERBY_COMMIT",
    }


def test_every_solution_has_caches_of_its_own(tmp_path):
    one, other = (folders.own_caches(caches.of_run(tmp_path, letter * 16)) for letter in "ab")
    assert one.keys() == other.keys() >= {"TRITON_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "FLASHINFER_WORKSPACE_BASE"}
    assert set(one.values()) & set(other.values()) == {one["PYTHONUSERBASE"]}
    caches.end_run(())


def test_a_run_begins_with_what_the_latest_one_left_that_passed(tmp_path):
    """A solution that crashes cannot count its tries: its files do not stay."""
    seen = []
    for passed in ((), (), ("a",), (), ("a",), ()):
        folder = caches.of_run(tmp_path, "a")
        assert caches.of_run(tmp_path, "a") == folder, "one for all workers of a run"
        seen.append(sorted(path.name for path in folder.iterdir()))
        (folder / f"run{len(seen)}").write_text("")
        caches.end_run(passed)
    assert seen == [[], [], [], ["run3"], ["run3"], ["run3", "run5"]]
    assert not list(tmp_path.rglob("*.former"))
    (tmp_path / "kept/a/to").symlink_to("/")
    os.mkfifo(tmp_path / "kept/a/pipe")
    assert list(caches.of_run(tmp_path, "a").iterdir()) == [], "what cannot be copied is dropped"
    caches.end_run(())


@pytest.mark.parametrize("mode", [0o4755, 0o666, 0o777])
def test_what_other_users_could_use_is_not_kept(tmp_path, mode):
    folder = caches.of_run(tmp_path, "a")
    (folder / "program").write_text("")
    (folder if mode == 0o777 else folder / "program").chmod(mode)
    caches.end_run(("a",))
    assert not (tmp_path / "kept/a").exists()


@pytest.mark.parametrize("fills", ["a hole", "many names", "many files", "deep"])
def test_what_grows_when_it_is_copied_is_not_kept(tmp_path, monkeypatch, fills):
    """A file that is one hole takes no room, nor does a second name of a file. Many files take long."""
    monkeypatch.setattr(caches, "_MOST_BYTES", 8 << 20)
    monkeypatch.setattr(caches, "_MOST_ENTRIES", 500)
    folder = caches.of_run(tmp_path, "a")
    if fills == "a hole":
        with open(folder / "file", "wb") as file:
            file.truncate(1 << 40)
    elif fills == "many names":
        (folder / "file").write_bytes(bytes(1 << 20))
        for number in range(8):
            os.link(folder / "file", folder / f"{number}")
    elif fills == "many files":
        for number in range(501):
            (folder / f"{number}").touch()
    else:
        monkeypatch.chdir(folder)
        for _ in range(1000):
            os.mkdir("deeper" * 10)
            os.chdir("deeper" * 10)
        monkeypatch.undo()
    caches.end_run(("a",))
    assert not (tmp_path / "kept/a").exists()
    folders.remove_tree(folder)


CLOSED = """
import os, tempfile
from pathlib import Path
from kernelderby.measure.fence import folders

if os.geteuid() == 0:  # root reads every folder
    os.setuid(65534)
folder = Path(tempfile.mkdtemp(dir="/tmp"))
for mode in (0o300, 0o100):
    os.makedirs(folder / f"{mode}/inner")
    (folder / f"{mode}/inner/known").write_text("what it found out")
    (folder / f"{mode}/inner").chmod(mode)
    (folder / f"{mode}").chmod(mode)
folders.remove_tree(folder)
print(folder.exists())
"""


def test_a_folder_that_cannot_be_read_is_removed():
    """A solution can make one, and find in a later run what it put there."""
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_two_runs_at_a_time_have_two_folders(tmp_path):
    folder = caches.of_run(tmp_path, "a")
    code = "import sys; from pathlib import Path; from kernelderby.measure.fence import caches; "
    code += "print(caches.of_run(Path(sys.argv[1]), 'a').name)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (folder.name, done.stdout) == ("0", "1\n"), done.stderr
    caches.end_run(())


@pytest.mark.parametrize("place", ["a file", "no home", "relative, no home", "no room"])
def test_where_nothing_can_be_cached_is_one_line(misbehaviours, tmp_path, monkeypatch, place):
    from measuring import measure

    (tmp_path / "file").touch()
    if place == "a file":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    elif place == "no room":
        full = SimpleNamespace(TemporaryFile=lambda dir: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", 0))
        monkeypatch.setattr(caches, "tempfile", full)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if place.startswith("relative"):
            monkeypatch.setenv("XDG_CACHE_HOME", "beside/here")  # no cache: a worker has another working directory
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # its message about an unknown user
    with pytest.raises(DerbyError, match=r"set \$XDG_CACHE_HOME") as error:
        measure(misbehaviours, ["honest"], workloads=("8",))
    assert "\n" not in str(error.value)


PROTECTED = """
import errno, os, signal, subprocess, sys, threading
from kernelderby.measure.fence import folders, processes, seccomp

parent, rival = os.getppid(), int(sys.argv[1])
assert seccomp.protect([parent, rival])
for target in (parent, rival, -1, -parent):
    try:
        os.kill(target, 0)
    except PermissionError:
        continue
    raise SystemExit(f"signalled {target}")
child = subprocess.Popen(["sleep", "60"])
child.kill()
assert child.wait() == -signal.SIGKILL
done = subprocess.run([sys.executable, "-c", f"import os; os.kill({rival}, 9)"], capture_output=True, text=True)
assert "PermissionError" in done.stderr, "its children are held back too"
print("held")
"""


@pytest.mark.skipif(not seccomp.has_seccomp(), reason="this kernel has no seccomp")
def test_a_worker_can_signal_its_children_and_nobody_of_the_run():
    rival = subprocess.Popen(["sleep", "60"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROTECTED, str(rival.pid)], capture_output=True, text=True, timeout=60
        )
        assert done.stdout == "held\n", done.stderr
        assert rival.poll() is None
    finally:
        rival.kill()
        rival.wait()


OTHERS = """
import os, sys
from kernelderby.measure.fence import folders, processes, seccomp

other = int(sys.argv[1])
assert seccomp.protect([other])
import resource

resource.getrlimit(resource.RLIMIT_NOFILE)
os.sched_setaffinity(0, os.sched_getaffinity(0))
for itself in (0, os.getpid()):
    os.setpriority(os.PRIO_PROCESS, itself, os.getpriority(os.PRIO_PROCESS, 0))
    resource.prlimit(itself, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
for what in (
    lambda: resource.prlimit(os.getpid(), resource.RLIMIT_RTTIME, (4, 4)),
    lambda: os.setpriority(os.PRIO_USER, os.getpid(), 19),
    lambda: resource.prlimit(other, resource.RLIMIT_NOFILE, (4, 4)),
    lambda: os.sched_setaffinity(other, {0}),
    lambda: os.sched_setscheduler(other, os.SCHED_BATCH, os.sched_param(0)),
    lambda: os.setpriority(os.PRIO_PROCESS, other, 19),
):
    try:
        what()
    except PermissionError:
        continue
    raise SystemExit("not refused")
print("held")
"""


@pytest.mark.skipif(not seccomp.has_seccomp(), reason="this kernel has no seccomp")
def test_a_worker_changes_limits_and_priority_of_itself_alone():
    other = subprocess.Popen(["sleep", "60"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", OTHERS, str(other.pid)], capture_output=True, text=True, timeout=60
        )
        assert done.stdout == "held\n", done.stderr
    finally:
        other.kill()
        other.wait()


REFUSED = """
import ctypes, errno, fcntl, os, resource, signal, socket, struct, sys
from pathlib import Path
from kernelderby.measure.fence import powers, seccomp

file = Path(sys.argv[1])
file.write_text("mine")
file.chmod(0o640)
assert powers.give_up() and seccomp.protect([])
libc = ctypes.CDLL(None, use_errno=True)
opened = file.open()
for what in (
    lambda: fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    lambda: fcntl.fcntl(opened, fcntl.F_SETOWN, os.getppid()),
    *(lambda number=number: fcntl.ioctl(opened, number, bytes(128)) for number in (0x40086602, 0x40806685, 0x50009418)),
    lambda: os.setxattr(file, "user.mine", b"1"),
    lambda: os.setpriority(os.PRIO_USER, 0, 5),
    lambda: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20),
    lambda: socket.socketpair()[0].sendmsg([b"1"]),
    *(lambda family=family: socket.socket(family, socket.SOCK_STREAM) for family in (2, 10, 17, 31, 38, 40)),
    *(lambda kind=kind: socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW)),
):
    try:
        what()
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EOPNOTSUPP), error
        continue
    raise SystemExit("not refused")
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):  # CUDA's driver opens one of them, and goes on where nobody is
    with socket.socket(socket.AF_UNIX, kind) as listener, socket.socket(socket.AF_UNIX, kind) as caller:
        listener.bind(f"{chr(0)}derby-{os.getpid()}-{int(kind)}")
        listener.listen()
        assert caller.connect_ex(listener.getsockname()) == errno.ECONNREFUSED
most = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
try:
    resource.setrlimit(resource.RLIMIT_RTTIME, (5, 5))
except ValueError:  # EPERM, as Python tells it
    assert resource.getrlimit(resource.RLIMIT_RTTIME)[1] == most
limits = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
assert resource.getrlimit(resource.RLIMIT_CORE) == limits, "no effect, and no error"
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
if os.uname().machine == "x86_64":
    assert libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) == -1, "a user namespace by clone"
    assert libc.syscall(56, int(signal.SIGCONT), 0, 0, 0, 0) == -1, "a child whose end wakes its parent"
    assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
assert libc.prctl(1, int(signal.SIGCONT)) == -1 and ctypes.get_errno() == errno.EPERM, "woken by a parent's end"
assert libc.prctl(1, int(signal.SIGTERM)) == 0 and libc.prctl(4, 1) == 0 and libc.prctl(4, 0) == -1
x86 = os.uname().machine == "x86_64"
for number in (298, 272, 304, 165, 29, 248, 240) if x86 else (241, 97, 265, 40, 194, 217, 180):
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM, number
assert libc.syscall(469, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
assert len(fcntl.ioctl(opened, 0x541B, bytes(4))) == 4, "how many bytes can be read"
fcntl.lockf(opened, fcntl.LOCK_SH)
fcntl.fcntl(opened, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
for mode in (0, 0o400, 0o600, 0o4755, 0o2755):
    file.chmod(mode)
os.chown(file, 12345, 12345)
assert file.stat().st_mode & 0o7777 == 0o640 and file.stat().st_uid == os.getuid()
file.chmod(0o755)
assert file.stat().st_mode & 0o777 == 0o755
(held,) = [int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line]
assert not held & (1 << 21 | 1 << 27 | 1 << 24), "the powers of an administrator, to make devices, to raise limits"
print("held")
"""


@pytest.mark.skipif(not seccomp.has_seccomp(), reason="this kernel has no seccomp")
def test_a_worker_has_no_leases_no_permissions_to_take_and_no_powers(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, str(tmp_path / "file")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "held\n", done.stderr


def test_nothing_of_other_runs_can_be_read():
    """Words of solutions, caches, the rows that derby rank keeps as columns, and what other commands have kept."""
    (copy := cache_folder() / "cluster/1-of-a-killed-one").mkdir(parents=True)
    every = set(caches.of_other_runs(base := cache_folder()))
    copy.rmdir()
    assert copy / "traces" in every, "the rows of another GPU of this machine"
    hidden = {each for each in every if each.parent == base}
    words, rows = ledger.Logs("2026").folder.parent, parts.cache_folder() / "rows"
    others = {base / name for name in ("tuned", "machine_code", "resources")}
    assert {words, rows, caches._kept(base, "a").parent, base / "built"} | others == hidden


def test_a_worker_reads_all_but_what_is_hidden(tmp_path, monkeypatch):
    for name in ("set/traces", "set/definitions", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "set/link").symlink_to(tmp_path / "set/traces")
    found = set(folders.readable([tmp_path / "set/traces"]))
    assert {tmp_path / "set/definitions", tmp_path / "other", Path("/usr")} <= found
    assert not found & {Path("/dev"), tmp_path, tmp_path / "set", tmp_path / "set/traces", tmp_path / "set/link"}
    scandir = os.scandir

    def listed(folder):
        if folder == tmp_path:
            raise PermissionError
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", listed)
    assert tmp_path in folders.readable([tmp_path / "set/traces"]), "nothing there would be in reach else"


def test_a_worker_writes_to_no_disk_and_to_its_own_part_of_proc(tmp_path):
    places = list(map(str, folders.writable(tmp_path / "own", tmp_path / "scratch")))
    assert "/dev/null" in places and "/dev/shm" in places and "/proc/self" in places
    assert not {"/dev", "/proc", "/", "/dev/mem", "/dev/kmsg", "/dev/tty", "/dev/pts", "/dev/ptmx"} & set(places)
    assert {place for place in places if place.startswith("/dev/nvidia")} == set(map(str, Path("/dev").glob("nvidia*")))


CONFINED = """
import os, signal, socket, subprocess, sys
from pathlib import Path
from kernelderby.measure.fence import folders, processes, landlock, seccomp

mine, other, rival = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
assert seccomp.protect([])
assert landlock.writes_only_beneath([mine, Path("/dev"), Path("/there/is/none")])
(mine / "folder").mkdir()
(mine / "folder/file").write_text("mine")
(mine / "folder/file").replace(mine / "renamed")
Path("/dev/null").write_text("gone")
assert (other / "kept").read_text() == "kept"

def refused(what):
    try:
        what()
    except PermissionError:
        return
    raise SystemExit(f"not refused: {what}")

for what in (
    lambda: (other / "kept").write_text("changed"),
    lambda: (other / "kept").open("a"),
    lambda: (other / "kept").unlink(),
    lambda: (other / "new").write_text("new"),
    lambda: (other / "new").mkdir(),
    lambda: (other / "link").symlink_to("/"),
    lambda: (mine / "renamed").rename(other / "renamed"),
    lambda: os.truncate(other / "kept", 0),
    lambda: socket.socket(socket.AF_INET),
    lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
):
    refused(what)
if landlock.version() >= 6:
    refused(lambda: os.kill(rival, 0))
socket.socketpair()[0].close()
child = subprocess.run([sys.executable, "-c", f"open({str(other / 'kept')!r}, 'w')"], capture_output=True, text=True)
assert "PermissionError" in child.stderr, "its children are held back too"
print("confined")
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no landlock")
@pytest.mark.skipif(not seccomp.has_seccomp(), reason="this kernel has no seccomp")
def test_a_worker_writes_only_beneath_its_folders_and_has_no_network(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    (other / "kept").write_text("kept")
    rival = subprocess.Popen(["sleep", "60"])
    try:
        command = [sys.executable, "-c", CONFINED, str(mine), str(other), str(rival.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == "confined\n", done.stderr
        assert [path.name for path in other.iterdir()] == ["kept"] and (other / "kept").read_text() == "kept"
    finally:
        rival.kill()
        rival.wait()


class Disk:
    """A small disk that only the worker under test uses: its folder finds what it has written."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, place):
        written = (
            sum(path.stat().st_blocks * 512 for path in Path(place).rglob("*")) if "kernelderby" in str(place) else 0
        )
        return SimpleNamespace(free=2 * self.room - written)


@pytest.mark.parametrize(
    ("body", "most", "status", "told"),
    [
        ("held = bytearray(b'1' * (600 << 20))", {"memory": 300 << 20}, "out_of_memory", "GiB of the machine's memory"),
        ("held = [subprocess.Popen(['sleep', '60']) for _ in range(12)]", {"processes": 8}, "crashed", "more than 8"),
        (  # processes that are no longer the worker's children
            "subprocess.run(['sh', '-c', 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done'])",
            {"processes": 8},
            "crashed",
            "more than 8",
        ),
        (
            "from threading import Thread\n"
            "for _ in range(60): Thread(target=time.sleep, args=(60,), daemon=True).start()",
            {"threads": 50},
            "crashed",
            "more than 50 threads",
        ),
        ("held = [os.pipe() for _ in range(200)]", {"files": 300}, "crashed", "more than 300 files open"),
        (
            "held = os.memfd_create('a')\nfor _ in range(600): os.write(held, b'1' * (1 << 20))",
            {"memory": 300 << 20},
            "out_of_memory",
            "GiB of the machine's memory",
        ),
        (
            "open(tempfile.mkdtemp() + '/file', 'wb').write(b'1' * (64 << 20))",
            {"room": 32 << 20},
            "crashed",
            "it filled /",
        ),
        (  # memory that no list of its processes shows
            "open('/dev/shm/MARK', 'w').close()",
            {"free": 32 << 20},
            "out_of_memory",
            "GiB of memory left",
        ),
        (  # its caches may lie on another disk
            "open(os.path.expanduser('~/file'), 'wb').write(b'1' * (64 << 20))",
            {"room": 32 << 20},
            "crashed",
            "it filled /",
        ),
    ],
)
def test_a_worker_that_takes_too_much_is_ended(misbehaviours, monkeypatch, body, most, status, told):
    """With limits that are smaller than those of a run: nothing beside a test should feel it."""
    from measuring import measure

    from kernelderby.measure.wire import process

    folder = misbehaviours / "solutions/tests/elementwise/scaled_add_n16/honest"
    text = (folder / "main.py").read_text()
    mark = Path(f"/dev/shm/kernelderby-tests-{os.getpid()}")
    body = body.replace("MARK", mark.name)
    (folder / "main.py").write_text(f"import os, subprocess, tempfile, time\n{body}\ntime.sleep(60)\n{text}")
    bare = 300 << 20  # the memory of a worker with torch
    monkeypatch.setattr(processes, "memory_limit", lambda: most.get("memory", 1 << 40) + bare)
    monkeypatch.setattr(process, "_MOST_PROCESSES", most.get("processes", 1000))
    monkeypatch.setattr(process, "_MOST_THREADS", most.get("threads", 20_000))
    monkeypatch.setattr(process, "_MOST_FILES", most.get("files", 50_000))
    if "room" in most:  # as on a disk that had so much more than what must stay
        monkeypatch.setattr(folders, "LEAST_ROOM", most["room"])
        monkeypatch.setattr(shutil, "disk_usage", Disk(most["room"]))
    if "free" in most:  # as of a machine that had twice what must stay, until a file is there
        monkeypatch.setattr(folders, "LEAST_ROOM", most["free"])
        monkeypatch.setattr(process.allowed, "free_bytes", lambda: 0 if mark.exists() else 2 * most["free"] + 1)
    measure(misbehaviours, ["honest"], workloads=("8",))
    mark.unlink(missing_ok=True)
    (path,) = (misbehaviours / "traces").rglob("*.jsonl")
    row = json.loads(path.read_text())
    assert row["measurement"]["status"] == status and told in row["evaluation"]["log"]


def test_a_disk_that_a_solution_has_filled_takes_no_row(misbehaviours, monkeypatch):
    """It allocates the rest of the disk between two looks. The rows of all who raced would be lost."""
    from measuring import measure

    from kernelderby.measure.run import ledger as of_run
    from kernelderby.measure.wire import process

    main = misbehaviours / "solutions/tests/elementwise/scaled_add_n16/honest/main.py"
    taken = "open(os.path.expanduser('~/large'), 'wb').write(bytes(64 << 20))"
    main.write_text(f"import os\n{taken}\n{main.read_text()}")
    monkeypatch.setattr(process, "_LOOK_SECONDS", 1e9)
    monkeypatch.setattr(folders, "LEAST_ROOM", 32 << 20)
    monkeypatch.setattr(shutil, "disk_usage", Disk(32 << 20))
    append = of_run.append_row

    def appended(path, row):
        if list(cache_folder().glob("built/*/*/home/large")):
            raise DerbyError("no space left")
        return append(path, row)

    monkeypatch.setattr(of_run, "append_row", appended)
    [row] = measure(misbehaviours, ["honest"], workloads=("8",))
    assert row.status is Status.PASSED


def test_what_a_rival_has_filled_is_not_laid_to_the_charge_of_who_stood_still(misbehaviours, monkeypatch):
    """Its files in shared memory stay there, and the next who works would be ended for them."""
    from kernelderby.measure.wire import process, still

    free = {"room": 4 << 30, "memory": 8 << 30}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free["room"]))
    monkeypatch.setattr(process.allowed, "free_bytes", lambda: free["memory"])
    worker = process.WorkerProcess(misbehaviours, "cpu", solution_hash="a" * 16)
    try:
        for filled, ends in (("room", "it filled"), ("memory", "GiB of memory left")):
            with still.standing_still([worker]):
                free[filled] = 1 << 20
            worker._looked_at = 0
            assert worker._takes_too_much() is None
            with still.standing_still([worker]):
                free[filled] = 8 << 30
            free[filled] = 1 << 20
            worker._looked_at = 0
            assert ends in worker._takes_too_much()[1]
            free[filled] = 8 << 30
    finally:
        worker.kill()


LATER = """
import os, sys
from kernelderby.measure.fence import seccomp

one, other = map(int, sys.argv[1:])
assert seccomp.protect([one])
os.kill(other, 0)
assert seccomp.has_seccomp(), "a filter that holds already, as a container's, is no lack of filters"
assert seccomp.protect([other])
for pid in (one, other):
    for call in (lambda: os.kill(pid, 0), lambda: os.sched_setaffinity(pid, {0})):
        try:
            call()
        except PermissionError:
            continue
        raise SystemExit("not refused")
print("held")
"""


@pytest.mark.skipif(not seccomp.has_seccomp(), reason="this kernel has no seccomp")
def test_rivals_that_start_later_are_guarded_by_a_second_filter():
    rivals = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        command = [sys.executable, "-c", LATER, *(str(each.pid) for each in rivals)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        for each in rivals:
            each.kill()
            each.wait()
    assert done.stdout == "held\n", done.stderr


ORPHANS = """
import os, subprocess, sys, time
from kernelderby.measure.fence import folders, processes, seccomp

assert processes.adopt_orphans()
kept = subprocess.Popen(["sleep", "60"], start_new_session=True)
worker = subprocess.Popen([sys.executable, "-c",
    "import os, subprocess\\n"
    "print(subprocess.Popen(['sleep', '300'], start_new_session=True, stdout=subprocess.DEVNULL).pid)"],
    stdout=subprocess.PIPE, text=True, start_new_session=True)
daemon = int(worker.communicate()[0])
ended = processes.end_orphans({kept.pid})
assert ended == [daemon], (ended, daemon)
assert kept.poll() is None
kept.kill()
print("ended")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreapers are Linux's")
def test_what_left_its_session_is_ended_and_what_was_there_is_not():
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_a_container_has_less_than_the_machine(tmp_path, monkeypatch):
    """The tightest of a process's control groups counts, of either version."""
    from kernelderby.store import allowed

    own = tmp_path / "own"
    monkeypatch.setattr(allowed, "_OWN", str(own))
    monkeypatch.setattr(allowed, "_GROUPS", str(tmp_path))
    monkeypatch.setattr(allowed, "_KERNEL", str(tmp_path))
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    own.write_text("0::/\n")
    assert processes.memory_limit() == int(0.8 * whole) and processes.fitting(20_000) == 20_000
    (tmp_path / "pids.max").write_text("max\n")
    (tmp_path / "one/two").mkdir(parents=True)
    (tmp_path / "one/memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "one/two/pids.max").write_text("2048\n")
    assert processes.memory_limit() == int(0.8 * whole), "it is another group's"
    own.write_text("12:cpu,memory:/slice\n0::/one/two\n")
    assert processes.memory_limit() == int(0.8 * (1 << 20)) and processes.fitting(20_000) == 1024
    (tmp_path / "memory/slice").mkdir(parents=True)
    (tmp_path / "memory/slice/memory.limit_in_bytes").write_text(f"{1 << 19}\n")
    assert processes.memory_limit() == int(0.8 * (1 << 19)) and processes.fitting(1000) == 1000
    assert allowed.free_bytes() < whole, "who tells no use is not asked"
    (tmp_path / "memory/slice/memory.usage_in_bytes").write_text(f"{1 << 19}\n")
    (tmp_path / "memory/slice/memory.stat").write_text("inactive_file 1\ntotal_inactive_file 4096\ntotal_rss 9\n")
    assert allowed.free_bytes() == 4096
    own.unlink()
    assert processes.memory_limit() == int(0.8 * whole)
    (tmp_path / "pid_max").write_text("1000\n")
    (tmp_path / "threads-max").write_text("5000\n")
    assert processes.fitting(20_000) == 500, "with all of the kernel's numbers, nobody could start a process"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (300, 400))
    assert processes.fitting(20_000) == 150


def test_memory_behind_pipes_and_nameless_files_is_counted_once():
    file, pair, sockets = os.memfd_create("a"), os.pipe(), socket.socketpair()
    before = processes.held_by_files([os.getpid()], 10**6)
    os.write(file, b"1" * (3 << 20))
    more = os.pipe()
    copies = [os.dup(file), os.dup(more[0])]
    after = processes.held_by_files([os.getpid()], 10**6)
    assert (after[0] - before[0], after[1] - before[1]) == (4, (3 << 20) + (1 << 16))
    assert processes.held_by_files([os.getpid()], 3) == (after[0], 0)
    for each in (file, *pair, *more, *copies):
        os.close(each)
    for each in sockets:
        each.close()


HIDDEN = """
import os, shutil, subprocess, tempfile, time
from kernelderby.measure.fence import processes

if os.geteuid() == 0:  # root reads every program
    os.setuid(65534)
found = []
for mode in (0o711, 0o311):
    folder = tempfile.mkdtemp(dir="/tmp")
    with open(os.open(f"{folder}/sleep", os.O_CREAT | os.O_WRONLY, mode), "wb") as program:
        program.write(open(shutil.which("sleep"), "rb").read())
    with subprocess.Popen([f"{folder}/sleep", "60"]) as started:
        time.sleep(0.5)
        found.append(processes.hide_files([started.pid]))
        started.kill()
        time.sleep(0.5)
        assert not processes.hide_files([started.pid]), "it has ended, and nobody has waited for it"
    shutil.rmtree(folder)
print(found)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_who_runs_a_program_that_cannot_be_read_hides_its_files():
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[False, True]\n", done.stderr


def test_no_file_is_listed_to_see_that_none_is_hidden(monkeypatch):
    """A thousand processes with a million files each would take a quarter of an hour, and are not ended before."""
    monkeypatch.setattr(os, "listdir", lambda place: pytest.fail(f"it lists {place}"))
    assert not processes.hide_files([os.getpid()])


DEAD_LEADER = """
import ctypes, os, platform, sys, threading, time

def holds():
    memory, file = bytearray(64 << 20), open(sys.argv[1])
    print("ready", flush=True)
    time.sleep(60)

threading.Thread(target=holds).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)  # ends this thread alone
"""


def test_a_disk_without_room_for_further_files_is_full(tmp_path, monkeypatch):
    disk = SimpleNamespace(f_files=1 << 20, f_favail=10, f_bavail=1 << 20, f_blocks=1 << 20, f_bfree=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda place: disk)
    now = folders.room(tmp_path)
    assert now[tmp_path] == 10 * folders.OF_A_FILE
    disk.f_files = 0
    assert folders.room(tmp_path)[tmp_path] == 1 << 32 and folders.filled(folders.room(tmp_path), now) == tmp_path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_what_a_process_holds_is_seen_when_its_first_thread_has_ended(tmp_path):
    (tmp_path / "file").write_text("")
    words = marks.marked(number := marks.new_run() + 1, [sys.executable, "-c", DEAD_LEADER, str(tmp_path / "file")])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        until = time.monotonic() + 10
        while b") Z" not in Path(f"/proc/{process.pid}/stat").read_bytes() and time.monotonic() < until:
            time.sleep(0.01)
        assert processes.held([process.pid]) > 64 << 20
        assert processes.held_by_files([process.pid], 1000)[0] > 2
        assert processes.has_open(process.pid, (tmp_path / "file").stat())
        assert not marks.is_dead(process.pid) and marks.carrying(number) == [process.pid]
        assert marks.end(number) and process.wait(10) < 0
    assert marks.is_dead(process.pid) and not processes.held([process.pid])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_threads_of_a_process_whose_name_is_no_text_are_counted():
    named = "ctypes.CDLL(None).prctl(15, b'\\xff) \\xfe', 0, 0, 0)"
    program = f"import ctypes, sys; {named}; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert processes.threads([process.pid]) == 1
        process.stdin.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_tables_of_pages_that_nobody_wrote_are_counted():
    """A page that was only read is the kernel's page of zeros and costs nothing; its entry in a table does."""
    before = processes.held([os.getpid()])
    no_reserve = 0x4000
    with mmap.mmap(-1, 4 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for place in range(0, 4 << 30, 2 << 20):
            memory[place]
        assert processes.held([os.getpid()]) - before >= (2047 * mmap.PAGESIZE)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_shared_memory_whose_pages_are_given_back_is_counted(monkeypatch):
    """They stay where they are, as long as somebody has the memory mapped."""
    monkeypatch.setattr(processes, "_LEAST_SHARED", 8 << 20)
    before = processes.shared_memory()
    with mmap.mmap(-1, 256 << 20) as memory:
        memory[:] = bytes(256 << 20)
        assert processes.forgotten([os.getpid()], before) < 64 << 20, "they are resident"
        memory.madvise(mmap.MADV_DONTNEED)
        assert processes.forgotten([os.getpid()], before) > 128 << 20
        assert processes.forgotten([os.getpid()], processes.shared_memory()) == 0


LONG_NAMES = """
import ctypes, os, sys

os.chdir(sys.argv[1])
while len(os.getcwd()) < 3700:
    os.mkdir("f" * 200)
    os.chdir("f" * 200)
file = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.truncate(file, 4096)
mmap = ctypes.CDLL(None).mmap
mmap.restype, mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_size_t] * 5]
for each in range(30_000):
    mmap(None, 4096, each % 2, 2, file, 0)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_look_at_what_processes_have_mapped_ends(monkeypatch, tmp_path):
    """A thousand of them, each with tens of thousands of long names, took three quarters of an hour."""
    monkeypatch.setattr(processes, "_LEAST_SHARED", 8 << 20)
    before, own = processes.shared_memory(), [os.getpid()]
    with mmap.mmap(-1, 256 << 20) as memory:
        memory[:] = bytes(256 << 20)
        memory.madvise(mmap.MADV_DONTNEED)
        words = [sys.executable, "-c", LONG_NAMES, str(tmp_path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"mapped\n"
            start = time.monotonic()
            assert processes.forgotten([process.pid] * 50, before) > 128 << 20, "more than can be looked at: all of it"
            assert processes.has_gpu(process.pid) and time.monotonic() - start < 20
            process.stdin.close()
        assert not processes.has_gpu(os.getpid()) and processes.forgotten(own, before) > 128 << 20


def test_foreign_lines_are_set_aside(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("ours\n")
    assert set_aside_foreign(path, 5) is None
    path.write_text("ours\nforged\n")
    assert "rows.jsonl.foreign" in set_aside_foreign(path, 5)
    assert path.read_text() == "ours\n" and (tmp_path / "rows.jsonl.foreign").read_text() == "forged\n"
    assert set_aside_foreign(tmp_path / "none.jsonl", 0) is None


@pytest.mark.parametrize("name", ["os; print(1)", "os\nimport this", "a-b", "", "a..b"])
def test_a_required_module_is_a_name(misbehaviours, name):
    toml = misbehaviours / "solutions/tests/elementwise/scaled_add_n16/honest/solution.toml"
    toml.write_text(toml.read_text().replace("modules = []", f"modules = [{json.dumps(name)}]"))
    with pytest.raises(DerbyError, match="must be the name of a Python module"):
        Catalog.open(misbehaviours).solution("honest")


def test_bytecode_beside_the_sources_is_not_run(misbehaviours, tmp_path, monkeypatch):
    """A forged .pyc that fits the source's time and size, as a rival could leave it in the cache."""
    import importlib.util
    import marshal
    import struct

    from kernelderby.measure.worker.build import load_solution

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    catalog = Catalog.open(misbehaviours)
    definition, solution = catalog.definition("scaled_add_n16"), catalog.solution("honest")
    load_solution(definition, solution)
    (main,) = (tmp_path / "kernelderby").glob(f"honest-{solution.text_hash}/main.py")
    stat = main.stat()
    forged = main.parent / "__pycache__" / f"main.{sys.implementation.cache_tag}.pyc"
    forged.parent.mkdir(exist_ok=True)
    code = compile("def run(*given):\n    raise SystemExit('forged')\n", str(main), "exec")
    forged.write_bytes(
        importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(stat.st_mtime), stat.st_size) + marshal.dumps(code)
    )
    assert load_solution(definition, solution).__code__.co_names != ("SystemExit",)


def test_a_solution_imports_its_own_files_relatively(misbehaviours, tmp_path, monkeypatch):
    """As where flashinfer-bench runs it."""
    from kernelderby.measure.worker.build import load_solution

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = misbehaviours / "solutions/tests/elementwise/scaled_add_n16/honest"
    (folder / "kernels").mkdir()
    (folder / "kernels/__init__.py").write_text("from ..numbers import ONE\n\n\ndef add(*given):\n    return ONE\n")
    (folder / "numbers.py").write_text("ONE = 1\n")
    (folder / "main.py").write_text("from . import numbers\nfrom .kernels import add as run\n")
    catalog = Catalog.open(misbehaviours)
    assert load_solution(catalog.definition("scaled_add_n16"), catalog.solution("honest"))() == 1


def test_a_worker_sees_no_secret_of_the_user(misbehaviours, monkeypatch):
    from measuring import measure

    monkeypatch.setenv("MY_TOKEN", "of-the-user")
    main = misbehaviours / "solutions/tests/elementwise/scaled_add_n16/honest/main.py"
    main.write_text(
        "import os\n\nimport torch\n\nfound = 'MY_TOKEN' in os.environ\n\n\n"
        "def run(x, y, factor, out):\n    torch.add(x, y, alpha=factor + found, out=out)\n"
    )
    assert [row.status for row in measure(misbehaviours, ["honest"], workloads=("8",), rounds=1)] == ["passed"]
    assert os.environ["MY_TOKEN"] == "of-the-user"


ASKED = """
import ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
from kernelderby.measure.fence import marks, seccomp, watcher

other = int(sys.argv[1])
number, channel = watcher.next_mark(), watcher.channel()
worker = os.fork()
if worker:
    assert marks.mark(number, worker)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
while not marks.of(os.getpid()):
    time.sleep(0.01)
assert seccomp.watched(channel) and seccomp.protect([])
libc = ctypes.CDLL(None, use_errno=True)
threads = [int(each) for each in os.listdir(f"/proc/{other}/task")]
assert len(threads) > 1
tkill = 200 if os.uname().machine == "x86_64" else 130
for thread in threads:
    for call in (lambda: os.kill(thread, 0), lambda: os.sched_setaffinity(thread, {0}), lambda: os.killpg(thread, 0)):
        try:
            call()
        except PermissionError:
            continue
        except ProcessLookupError:  # no thread leads a group
            assert thread != other
            continue
        raise SystemExit("not refused")
    assert libc.syscall(tkill, thread, 0) == -1 and ctypes.get_errno() == 1
child = subprocess.Popen(["sleep", "60"])
os.sched_setaffinity(child.pid, {0})
os.kill(child.pid, signal.SIGTERM)
assert child.wait() == -signal.SIGTERM
own = threading.Thread(target=time.sleep, args=(1,))
own.start()
os.sched_setaffinity(own.native_id, {0})
signal.pthread_kill(own.ident, 0)
own.join()
print("held", flush=True)
os._exit(0)
"""
THREADS = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(1, flush=True)"


@pytest.mark.skipif(not seccomp.can_ask(), reason="this kernel's seccomp asks nobody")
def test_threads_of_others_are_out_of_reach_without_landlock():
    """A kernel before 6.12: its landlock lets signals through. A filter alone cannot know threads that start later."""
    other = subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert other.stdout.read(1)
        command = [sys.executable, "-c", ASKED, str(other.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == "held\n", done.stderr
    finally:
        other.kill()
        other.communicate()


def test_an_id_that_nobody_has_is_refused_as_such(monkeypatch):
    """By the time the call goes on, a rival's new process could have it."""
    monkeypatch.setattr(marks, "of", lambda pid: {1: 7, 2: 7, 3: 8}.get(pid, 0))
    monkeypatch.setattr(marks, "is_dead", lambda pid: pid > 9)
    monkeypatch.setattr(notices, "_group", {2: [1, 2], 3: [2, 3], 12: []}.get)
    for target, is_group, error in (
        (2, False, 0),
        (3, False, errno.EPERM),
        (4, False, errno.EPERM),
        (12, False, errno.ESRCH),
    ):
        assert notices.refusal(1, target, is_group) == error
    for group, error in ((2, 0), (3, errno.EPERM), (12, errno.ESRCH)):
        assert notices.refusal(1, -group, is_group=True) == error
    assert notices.refusal(4, 4, is_group=False) == notices.refusal(1, -1, is_group=True) == errno.EPERM


def test_descendants_however_deep(monkeypatch):
    monkeypatch.setattr(processes, "children", lambda pid: [pid + 1, -pid] if 0 < pid < 5000 else [])
    found = processes.descendants(1)
    assert set(found) == {*range(2, 5001), *range(-4999, 0)} and found.index(5000) < found.index(2)


def test_a_link_is_removed_and_what_it_leads_to_stays_as_it_was(tmp_path):
    (tmp_path / "own").mkdir(mode=0o500)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    folders.remove_tree(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "own").stat().st_mode & 0o777 == 0o500


def test_a_tree_is_removed_however_deep(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    folders.remove_tree(tree)
    assert not tree.exists()
    folders.remove_tree(tree)


@pytest.mark.parametrize(("given", "seen"), [(None, "0"), ("1", "1"), ("GPU-5,GPU-6", "GPU-5"), ("", "")])
def test_a_worker_sees_one_gpu(tmp_path, monkeypatch, given, seen):
    """Work on another GPU of the machine would not be measured."""
    from kernelderby.measure.wire import process

    class Begun(Exception):
        pass

    def begin(beginning, environment, *ends):
        for each in ends:
            if isinstance(each, int):
                os.close(each)
        raise Begun(environment["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setattr(process, "begin", begin)
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with pytest.raises(Begun) as begun:
        process.WorkerProcess(tmp_path, "cuda")
    assert str(begun.value) == seen
