"""A row's facts about the code that it was measured with."""

import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from kernelderby.api.machine import _machine
from kernelderby.errors import DerbyError
from kernelderby.measure.machine import commit as commit_module
from kernelderby.measure.machine import probe
from kernelderby.measure.machine.commit import git_commit


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
    assert git_commit(root) == {"commit": commit, "dirty": False}  # files that a run itself writes
    (root / "kept").write_text("2")
    assert git_commit(root) == {"commit": commit, "dirty": True}


TELLS = "#!/bin/sh\ntouch {ran}/$(basename $0).$1\ncat\n"


@pytest.mark.parametrize("place", ["checkout", "linked worktree"])
def test_a_repositorys_programs_are_not_run(checkout, tmp_path_factory, place):
    """Filters, fsmonitor, hooks, an included config, a submodule's filter: git's own `status` starts most of them."""
    root, commit = checkout
    ran = tmp_path_factory.mktemp("ran")
    program = root / ".git/program"
    program.write_text(TELLS.format(ran=ran))
    program.chmod(0o755)
    if place == "linked worktree":
        linked = tmp_path_factory.mktemp("linked") / "tree"
        subprocess.run(["git", "-C", root, "worktree", "add", "-q", linked], check=True, capture_output=True)
        root = linked
    else:
        inner = root / "inner"
        shutil.copytree(root / ".git", inner / ".git")
        shutil.copy(root / "kept", inner)
        words = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["add", "inner"], ["commit", "--quiet", "-m", "second"]):
            subprocess.run([*words, *command], check=True, capture_output=True)
        commit = subprocess.run([*words, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    own = subprocess.run(["git", "-C", root, "rev-parse", "--git-common-dir"], capture_output=True, text=True)
    git = (root / own.stdout.strip()).resolve()
    filters = f"\tclean = {program} clean\n\tsmudge = {program} smudge\n\tprocess = {program} process\n"
    config = f'[filter "f"]\n{filters}[core]\n\tfsmonitor = {program}\n\thooksPath = {git}\n[diff "f"]\n'
    config += f"\ttextconv = {program} textconv\n\tcommand = {program} command\n[include]\n\tpath = {git}/more\n"
    (git / "more").write_text(f'[filter "g"]\n{filters}')
    for each in (git, root / "inner/.git"):
        if each.is_dir():
            (each / "config").write_text((each / "config").read_text() + config)
            (each / "info").mkdir(exist_ok=True)
            (each / "info/attributes").write_text("* filter=f diff=f\n")
            shutil.copy(program, each / "post-index-change")
    if place == "checkout":
        (root / "inner/kept").write_text("3")
    assert git_commit(root) == {"commit": commit, "dirty": False}
    os.utime(root / "kept", (1, 1))  # git looks into the file
    git_commit(root)
    (root / "kept").write_text("2")
    assert git_commit(root) == {"commit": commit, "dirty": True}
    assert os.listdir(ran) == []
    subprocess.run(["git", "-C", root, "status"], capture_output=True)
    assert os.listdir(ran) != [], "git itself runs them"


@pytest.mark.parametrize("name", ["commondir", "config", "index", "HEAD"])
def test_a_broken_repository_is_none(checkout, monkeypatch, name):
    """Bytes that are no text, a file that is missing, one that git waits for."""
    root, _ = checkout
    monkeypatch.setattr(commit_module, "_SECONDS", 0.5)
    path = root / ".git" / name
    path.unlink(missing_ok=True)
    if name == "commondir":
        path.write_bytes(b"\xff\0")
    elif name == "index":
        os.mkfifo(path)
    assert git_commit(root) == {}
    if name == "index":
        return
    assert not commit_module.has_revision(root, "HEAD")
    with pytest.raises(DerbyError, match="git|repository|config"), commit_module.at_revision(root, "HEAD"):
        pass


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


def test_the_reasons_for_a_slow_gpu_are_asked_for_once(monkeypatch):
    """Each question to the driver takes time, after every turn."""
    from kernelderby.measure.machine.environment import _throttled_by

    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        asked = []
        nvml = SimpleNamespace(**{name: lambda handle, asked=asked: asked.append(handle) or 0x4 | 0x40 | 0x1000})
        assert _throttled_by(nvml, "handle") == ["power cap", "hardware thermal"] and asked == ["handle"]
