"""torch is imported once for the judge and its workers, and a worker sees no more than one that was started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch")
from kernelderby.measure.wire import early

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux alone")

SEEN = """
import gc, json, os, sys
from pathlib import Path

import torch

def run(x):
    environment = Path("/proc/self/environ").read_text() + str(dict(os.environ))
    held = {type(each).__name__ for each in gc.get_objects()}
    descriptors = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    kinds = [os.readlink(each).partition(":")[0] for each in descriptors if os.path.exists(each)]
    seen = [
        "fork_server" not in Path("/proc/self/cmdline").read_text(),
        "of-the-user" not in environment and "MY_API_KEY" not in environment,
        WHERE not in sys.path and os.getcwd() == "/",
        torch.get_num_threads() == 1,
        not held & {"JudgesTable", "_Checker", "CheckPlan"},
        sorted(each for each in kinds if each != "/memfd")  # its own case
        == ["/dev/null", "pipe", "pipe", "pipe", "socket"],
    ]
    raise RuntimeError("SEEN" + json.dumps(seen) + "SEEN")
"""


@linux
def test_workers_are_forked_from_the_command_before_it_has_read_anything(tmp_path, derby, monkeypatch):
    (tmp_path / "definitions").mkdir()
    monkeypatch.chdir(tmp_path)
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=2,4", "--size", "D=16")
    (tmp_path / "mine.py").write_text(f"WHERE = {str(tmp_path)!r}\n{SEEN}")
    environment = os.environ | {"HIDDEN": "of-the-user", "MY_API_KEY": "abc"}
    command = [sys.executable, "-m", "kernelderby", "check", "mine.py", "--for", "twice", "--device", "cpu", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    message = json.loads(done.stdout)["results"][0]["message"]
    seen = json.loads(message.split("SEEN")[1])
    assert seen == [True] * 6
    assert json.loads(done.stdout)["secret"] not in message


@linux
def test_a_misspelt_name_is_told_before_torch_is_imported(tmp_path, checkout):
    command = [sys.executable, "-X", "importtime", "-m", "kernelderby", "check", "--device", "cpu"]
    for words, said in (
        (["rms_nrom_baseline"], "'rms_nrom_baseline'; did you mean rms_norm_baseline"),
        (["--definitions", "rms_nrom"], "'rms_nrom'; did you mean rms_norm"),
    ):
        done = subprocess.run([*command, *words], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr and not done.stdout
        assert "| torch" not in done.stderr and "numpy" not in done.stderr


def test_a_signal_during_an_import_is_heard_after_it():
    """torch's import swallows what a handler raises, or ends in std::terminate."""

    class Heard(SystemExit):
        pass

    def hear(number, frame):
        raise Heard

    swallowed, before = [], signal.signal(signal.SIGTERM, hear)
    try:
        with pytest.raises(Heard), early._signals_later():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Heard:
                swallowed.append(1)
        assert not swallowed and signal.getsignal(signal.SIGTERM) is hear
    finally:
        signal.signal(signal.SIGTERM, before)
