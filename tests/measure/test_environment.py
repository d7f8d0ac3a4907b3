"""What a row says about the code that it was measured with."""

import os
import shutil
import subprocess

import pytest

from kernelderby.api.machine import _machine
from kernelderby.errors import DerbyError
from kernelderby.measure.machine import probe
from kernelderby.measure.machine.environment import git_commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one commit, its id, and a folder of copied files inside it. Nothing of the user's git."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # of a hook that runs the tests, say
        monkeypatch.delenv(name)
    monkeypatch.delenv("DERBY_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "kept").write_text("1")
    git("add", "kept")
    git("commit", "--quiet", "-m", "first")
    return tmp_path, git("rev-parse", "HEAD")


def test_the_checkouts_commit_and_whether_files_differ_from_it(checkout):
    root, commit = checkout
    assert git_commit(root) == {"commit": commit, "dirty": False}
    (root / "traces").mkdir()
    (root / "traces" / "rows.jsonl").write_text("")
    assert git_commit(root) == {"commit": commit, "dirty": False}  # what a run itself writes
    (root / "kept").write_text("2")
    assert git_commit(root) == {"commit": commit, "dirty": True}


def test_a_given_commit_wins_over_the_checkout_that_the_files_happen_to_lie_in(checkout, monkeypatch):
    root, _ = checkout
    copied = root / "copied"
    copied.mkdir()
    monkeypatch.setenv("DERBY_COMMIT", "abc")
    assert git_commit(copied) == {"commit": "abc"}


def test_no_checkout_and_no_given_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("DERBY_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) == {}


def test_a_gpu_that_cuda_cannot_use_is_not_checked_as_a_cpu__fake_machine(monkeypatch, tmp_path):
    broken = probe.Machine("cuda", gpu_missing="CUDA cannot use this machine's GPU (out of memory)", gpu_fails=True)
    plain = probe.Machine("cpu", gpu_missing="the CPU was asked for")
    monkeypatch.setattr(probe, "find_machine", lambda root, device: broken if device == "cuda" else plain)
    with pytest.raises(DerbyError, match=r"out of memory\); mend that, or .*--device cpu"):
        _machine(tmp_path, None)
    assert _machine(tmp_path, "cpu") is plain
