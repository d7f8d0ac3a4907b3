"""Which set a command works on, and where it writes if that is the installed one."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

import pytest

import kernelderby
from kernelderby.errors import DerbyError
from kernelderby.store import locate


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A working directory without a set, and a package that brings none."""
    folder = tmp_path / "nowhere/deeper"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(locate, "_INSTALLED", tmp_path / "site/kernelderby/set")
    return folder


def test_the_nearest_set_from_here_upward(nowhere, small_set, monkeypatch):
    assert locate.find_set() == Path()
    monkeypatch.chdir(small_set)
    assert locate.find_set() == Path()
    monkeypatch.chdir(small_set / "definitions")
    assert locate.find_set() == small_set


def test_what_is_named_goes_before_what_is_near_and_that_before_flashinfer_benchs(nowhere, small_set, monkeypatch):
    monkeypatch.setenv("FIB_DATASET_PATH", str(small_set))
    assert locate.find_set() == small_set
    (nowhere.parent / "definitions").mkdir()
    assert locate.find_set() == nowhere.parent
    monkeypatch.setenv("DERBY_ROOT", "/named")
    assert locate.find_set() == Path("/named")


def test_the_installed_set_is_copied_once_before_something_is_written(nowhere, small_set, derby):
    shutil.copytree(small_set, locate._INSTALLED)
    assert locate.find_set() == locate._INSTALLED
    assert locate.writable_set(small_set) == small_set
    code, out, err = derby("list")
    assert code == 0 and "toy" in out and not locate.own_copy().exists()
    code, out, err = derby("pack")
    assert f"writing into {locate.own_copy()}, a copy of the installed set" in err
    assert locate.find_set() == locate.own_copy() and (locate.own_copy() / "workloads").is_dir()
    (locate.own_copy() / "traces/new").mkdir(parents=True)
    assert locate.writable_set(locate._INSTALLED) == locate.own_copy()  # no second copy over the rows
    assert (locate.own_copy() / "traces/new").is_dir() and not (locate._INSTALLED / "traces/new").exists()


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/1").exists(), reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_named(nowhere, small_set, monkeypatch):
    shutil.copytree(small_set, locate._INSTALLED)
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/1/none")
    with pytest.raises(DerbyError, match=r"/proc/1/none.* cannot be copied there .*; set \$XDG_DATA_HOME or give"):
        locate.writable_set(locate._INSTALLED)


def test_the_wheel_brings_every_part_of_the_set(checkout):
    project = tomllib.loads((checkout / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {part: f"kernelderby/{locate._INSTALLED.name}/{part}" for part in locate.PARTS}
    assert all((checkout / part).is_dir() for part in included)


def test_the_notebooks_open_finds_the_same(nowhere, small_set, monkeypatch):
    monkeypatch.chdir(small_set / "solutions")
    assert kernelderby.open().definitions.keys() == kernelderby.open(small_set).definitions.keys() != set()
