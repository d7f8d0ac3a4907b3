"""A definition runs in the judge's process, and the judge is fenced: what a hostile one can do with `derby check`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kernelderby.measure.fence import landlock, marks, seccomp

pytest.importorskip("torch")
fenced = pytest.mark.skipif(not (landlock.version() and seccomp.has_seccomp()), reason="this kernel has no such fences")

HOSTILE = """
import json, os, resource, socket, subprocess, sys, tempfile
from pathlib import Path

HOME = Path(os.environ["HOME"])
SET = HOME.parent / "set"


def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"


def connect(address):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(address)


def limit(process):
    resource.prlimit(process, resource.RLIMIT_CORE, resource.prlimit(process, resource.RLIMIT_CORE))


tries = {
    "write the home": lambda: (HOME / "new").write_text("x"),
    "write a file of the set": lambda: (SET / "mine.py").open("a"),
    "add a solution": lambda: (SET / "definitions" / "mine.json").write_text("{}"),
    "write /tmp": lambda: Path("/tmp/of-a-hostile-definition").write_text("x"),
    "read a key": lambda: (HOME / ".ssh" / "id").read_text(),
    "open what is readable to all": lambda: os.chmod(HOME / ".ssh" / "id", 0o644),
    "network": lambda: socket.socket(socket.AF_INET),
    "talk to a service": lambda: connect(str(HOME / "service")),
    "environment of the shell": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "signal the shell": lambda: os.kill(os.getppid(), 0),
    "limit the shell": lambda: limit(os.getppid()),
    "read the set": lambda: (SET / "mine.py").read_text(),
    "read the home": lambda: (HOME / "notes").read_text(),
    "temporary": lambda: tempfile.mkdtemp(),
}


found = {name: tried(what) for name, what in tries.items()}
found["secrets"] = [name for name in os.environ if "TOKEN" in name] + (
    ["environ"] if b"TOKEN" in Path("/proc/self/environ").read_bytes() else []
)
left = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
found["left"] = left.pid
if (place := Path(os.environ["XDG_CACHE_HOME"]) / "kernelderby" / "found.json") and not place.exists():
    place.write_text(json.dumps(found))
"""
# Permissions: without an effect, as asserted below.
MAY = {"open what is readable to all": "done", "read the set": "done", "read the home": "done", "temporary": "done"}


@fenced
@pytest.mark.parametrize(
    ("verb", "writes_set"),
    [(["check", "mine.py", "--for", "twice", "--device", "cpu", "--bounds", "time=300"], False), (["pack"], True)],
    ids=["check", "pack"],
)
def test_a_hostile_definition_is_held_by_the_fence_of_the_judge(verb, writes_set, tmp_path, derby, monkeypatch):
    """pack has an end in time by default, check has one if it is asked for."""
    import socket

    home, own = tmp_path / "home", tmp_path / "set"
    for folder in (home / ".ssh", own / "definitions"):
        folder.mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    (home / ".ssh" / "id").chmod(0o600)
    (home / "notes").write_text("notes")
    monkeypatch.chdir(own)
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=2,4", "--size", "D=16")
    (own / "mine.py").write_text("def run(x):\n    return x * 2\n")
    (source,) = (own / "definitions").rglob("twice.py")
    source.write_text(source.read_text() + HOSTILE)
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(home / "service"))
        service.listen()
        command = [sys.executable, "-m", "kernelderby", *verb]
        environment = os.environ | {"HOME": str(home), "MY_TOKEN": "x", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "cache/kernelderby/found.json").read_text())
    left, secrets = found.pop("left"), found.pop("secrets")
    may = MAY | dict.fromkeys(["write a file of the set", "add a solution"] if writes_set else [], "done")
    assert {name: end for name, end in found.items() if end == "done"} == may
    assert found["read a key"] == found["write the home"] == "PermissionError"
    assert found["talk to a service"] == "ConnectionRefusedError"
    assert secrets == []
    assert writes_set or {path: path.read_bytes() for path in before} == before
    assert (home / ".ssh" / "id").stat().st_mode & 0o777 == 0o600
    for _ in range(50):
        if marks.is_dead(left):
            break
        subprocess.run(["sleep", "0.1"])
    assert marks.is_dead(left), "the watcher ends what the definition has left"


TOOL = """
import socket, sys, tempfile
from pathlib import Path
from kernelderby.measure.fence import enclosed

home = Path.home()
locks, out = home.parent / "tmp", home.parent / "out"
scratch = Path(tempfile.mkdtemp(dir=locks))
enclosed.enclose([out], [], locks, scratch, has_tool=True)
socket.socket(socket.AF_INET).close()
(locks / "of_the_tool").write_text("x")
(out / "report").write_text("x")
for what in (lambda: (home / "new").write_text("x"), lambda: (home / ".ssh/id").read_text()):
    try:
        what()
    except PermissionError:
        continue
    raise SystemExit("not refused")
print("held")
"""


@fenced
def test_a_profiler_has_sockets_and_its_own_files_and_the_home_is_closed(tmp_path):
    """nsys 2023.4 talks to its daemon and keeps its injected libraries in /tmp."""
    for name in ("home/.ssh", "tmp", "out"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("key")
    environment = os.environ | {"HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", TOOL], env=environment, capture_output=True, text=True)
    assert done.stdout == "held\n", done.stderr


OF_A_GPU = """
import subprocess, sys, tempfile
from pathlib import Path
from kernelderby.measure.fence import enclosed, procfs

names_a_thread = '''
import threading
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
try:
    with open(f"/proc/self/task/{thread.native_id}/comm", "r+") as file:
        file.write("cuda")
finally:
    over.set()
'''
locks = Path.home().parent / "tmp"
enclosed.enclose([], [], locks, Path(tempfile.mkdtemp(dir=locks)), on_gpu=sys.argv[1] == "gpu")
done = subprocess.run([sys.executable, "-c", names_a_thread], stderr=subprocess.DEVNULL)
for what in (Path.home() / "new", Path("/proc/sys/kernel/printk_ratelimit"), Path("/proc/sys/kernel/core_pattern")):
    try:
        what.open("r+" if what.exists() else "w").close()
    except OSError:
        continue
    raise SystemExit(f"{what}: not refused" if procfs.close_machine() else "no fence")
print("named" if done.returncode == 0 else "not named")
"""


@fenced
@pytest.mark.parametrize(("device", "end"), [("gpu", "named"), ("cpu", "not named")])
def test_what_uses_a_gpu_behind_the_fence_names_its_threads_and_sets_nothing_of_the_machine(tmp_path, device, end):
    """CUDA ends with error 304 where it cannot: seen on an H200, driver 580."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    environment = os.environ | {"HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", OF_A_GPU, device], env=environment, capture_output=True, text=True)
    if done.stderr == "no fence\n":
        pytest.skip("root without CAP_SYS_ADMIN")
    assert done.stdout == f"{end}\n", done.stderr


EMPTY = """
import os, sys
from pathlib import Path
from kernelderby.measure.fence import landlock

mine, locks, hidden = map(Path, sys.argv[1:])
assert landlock.writes_only_beneath([mine], [Path("/usr"), locks], [locks])
os.close(os.open(locks / "new", os.O_RDONLY | os.O_CREAT | os.O_EXCL))
(locks / "folder").rmdir()
for what in (
    lambda: (locks / "new").write_text("x"),
    lambda: (locks / "kept").unlink(),
    lambda: (locks / "kept").write_text(""),
    lambda: (hidden / "key").read_text(),
):
    try:
        what()
    except PermissionError:
        continue
    raise SystemExit("not refused")
(mine / "new").write_text((locks / "kept").read_text())
print((mine / "new").read_text())
"""


@fenced
def test_locks_are_made_where_nothing_is_written_and_what_is_not_named_is_not_read(tmp_path):
    places = [tmp_path / name for name in ("mine", "locks", "hidden")]
    for each in places:
        each.mkdir()
    (tmp_path / "locks/folder").mkdir()
    (tmp_path / "locks/kept").write_text("kept")
    (tmp_path / "hidden/key").write_text("key")
    done = subprocess.run([sys.executable, "-c", EMPTY, *map(str, places)], capture_output=True, text=True)
    assert done.stdout == "kept\n", done.stderr
