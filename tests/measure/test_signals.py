"""SIGTERM, SIGHUP, SIGINT, SIGKILL of bench, check, tune and profile run: what a solution started ends with them.

Once each verb and each signal here. All pairs, N times: python tests/measure/test_signals.py N (two minutes a time).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")

HERE = Path(__file__).resolve().parent
VERBS = ("bench", "check", "tune", "profile run")
CLUSTER = "bench --ray local --gpu cpu"  # by hand alone: Ray takes its time to start
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

# The command as on a machine with a GPU, without one. Signals are as in a terminal: under nohup SIGHUP is ignored, in
# a script's background SIGINT, also by the processes that these tests start, and an ignored signal ends no command.
RUN = """
import os, signal, sys

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
from kernelderby import cli
from kernelderby.measure.machine import probe
from kernelderby.measure.wire.replies import GpuSeen

machine = probe.Machine("cpu", gpu=GpuSeen("NVIDIA H200", "9.0", uuid=str(os.getpid())), protocol="cpu-wall")
if sys.argv[1] != "check":
    probe.find_machine = lambda root, device: machine
cli.main()
"""
# Beside an ordinary child one in a session of its own, and one that left its parent and its environment as well. {0}
# tells them from all others of this machine.
STARTS = """
import subprocess, sys, time

plain = subprocess.Popen(["sleep", "{0}1"])
apart = subprocess.Popen(["sleep", "{0}2"], start_new_session=True)
left = "import subprocess; subprocess.Popen(['/bin/sleep', '{0}3'], start_new_session=True, env={{}})"
subprocess.run([sys.executable, "-S", "-c", left])
time.sleep(600)


def tuning_key(*given):
    return "all"


def candidates(*given):
    return [{{"a": 1}}]


def run_with(config, *given):
    return run(*given)
"""


def started(number: int) -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[1][:-1] == str(number).encode():
            found.add(words[1].decode()[-1])
    return found


def wait_for(number: int, wanted: set[str], seconds: float) -> set[str]:
    until = time.monotonic() + seconds
    while (found := started(number)) != wanted and time.monotonic() < until:
        time.sleep(0.02)
    return found


def ended_by(verb: str, sent: signal.Signals, folder: Path) -> tuple[int, set[str], str]:
    """Exit code, remaining processes, and output."""
    sys.path.insert(0, str(HERE))
    from measuring import copied_set

    root, number = copied_set(folder), random.randrange(10**8, 10**9)
    main = root / "solutions/tests/elementwise/scaled_add_n16/honest/main.py"
    main.write_text(STARTS.format(number) + main.read_text())
    ncu = folder / "ncu"  # runs the program to count, and waits for its end as the real one does
    ncu.write_text('#!/bin/sh\nwhile [ "$1" != --metrics ]; do shift; done\nshift 2\n"$@"\n')
    ncu.chmod(0o755)
    name = {"tune": ["honest"], "profile run": ["--with", "ncu", "--solutions", "honest"]}
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "DERBY_ROOT": str(root)}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    words = [sys.executable, "-c", RUN, *verb.split(), *name.get(verb, ["--solutions", "honest"])]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        if wait_for(number, {"1", "2", "3"}, 240) != {"1", "2", "3"}:
            process.terminate()
            said = process.communicate(timeout=240)[0]
            raise AssertionError(f"derby {verb} never came to the solution: {said}")
        process.send_signal(sent)
        said = process.communicate(timeout=240)[0]
    finally:
        process.kill()
    return process.returncode, wait_for(number, set(), 30), said


def is_right(verb: str, sent: signal.Signals, folder: Path) -> None:
    code, left, said = ended_by(verb, sent, folder)
    assert not left, f"derby {verb} after {sent.name}: {len(left)} processes live on"
    assert code == (-sent if sent == signal.SIGKILL else 128 + sent), said
    if sent != signal.SIGKILL:
        assert said.rstrip().endswith(f"derby: ended by {sent.name}; what is written stays"), said
        assert "Traceback" not in said, said


def test_what_a_solution_started_ends_with_the_command(tmp_path):
    pairs = [*zip(VERBS, SIGNALS, strict=True)]
    folders = [tmp_path / verb for verb, _ in pairs]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(is_right, *zip(*pairs, strict=True), folders))


# Main's part of the command, with a verb that does not unwind.
STAYS = """
import atexit, signal, sys, time
from kernelderby.cli import signals

signal.signal(signal.{0}, signal.{1})
signals._GRACE_SECONDS = 1.0
signals.unwind_on_signals()


def sleep(seconds):
    print("begun", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:  # a signal just before a sleep does not interrupt it: Python looks after it
        time.sleep(0.01)


try:
    {2}
    sleep(600)
except signals.Signalled as ended:
    ended.tell()
    raise
"""


def stays(sent: signal.Signals, how: str, verb: str, seconds: float = 60) -> tuple[int, str]:
    words = [sys.executable, "-c", STAYS.format(sent.name, how, verb)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(sent)
            said = process.communicate(timeout=seconds)[0]
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.parametrize("sent", SIGNALS[1:], ids=lambda sent: sent.name)
@pytest.mark.parametrize(
    "verb",
    [
        "type('', (), {'__del__': lambda _: sleep(600)})()",  # a destructor swallows it, and the verb goes on
        "atexit.register(time.sleep, 600), sleep(600)",  # it waits at its end, with the line told
    ],
    ids=["swallowed", "waits"],
)
def test_a_command_that_does_not_unwind_ends_all_the_same(sent, verb):
    line = f"derby: ended by {sent.name}; what is written stays\n"
    code, said = stays(sent, "SIG_DFL", verb)
    assert code == 128 + sent
    assert said.endswith(line)
    assert said.count(line) == 1


@pytest.mark.parametrize("sent", SIGNALS[1:], ids=lambda sent: sent.name)
def test_a_signal_while_the_process_ends_waits_for_that(sent):
    verb = "signals.finish(), atexit.register(print, 'cleaned'), atexit.register(sleep, 0.5), sys.exit(0)"
    assert stays(sent, "SIG_DFL", verb) == (0, "cleaned\n")
    code, said = stays(sent, "SIG_DFL", verb.replace("0.5", "600"))
    assert code == 128 + sent and said == f"derby: ended by {sent.name}; what is written stays\n"


def test_what_is_ignored_ends_nothing():
    assert stays(signal.SIGHUP, "SIG_IGN", "sleep(2), sys.exit('through')") == (1, "through\n")


def all_pairs(times: int) -> int:
    failed = 0
    for _ in range(times):
        for verb in (*VERBS, CLUSTER):
            for sent in SIGNALS:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        is_right(verb, sent, Path(folder))
                    except (AssertionError, subprocess.TimeoutExpired) as error:
                        failed += 1
                        print(error, flush=True)
    print(f"{times * (len(VERBS) + 1) * len(SIGNALS)} runs, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(all_pairs(int(sys.argv[1]) if len(sys.argv) > 1 else 1)))
