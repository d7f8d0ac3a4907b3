"""The record of ptxas's reports: only sources that it lacks are compiled."""

import json

import nvcc
import pytest

NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "Build 13.0"; exit; }
echo . >> {log}
for given; do [ "$last" = -o ] && echo > "$given"; last=$given; done
echo "ptxas info : Compiling entry function 'k' for 'sm_90a'" >&2
echo "    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads" >&2
echo "ptxas info : Used 96 registers" >&2
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A stand-in for nvcc, an empty record and a source with a header; .runs() counts the compilations."""
    path, log = tmp_path / "nvcc", tmp_path / "log"
    path.write_text(NVCC.replace("{log}", str(log)))
    path.chmod(0o700)
    (tmp_path / "record.json").write_text("{}")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/kernel.cu").write_text('#include "header.cuh"\n')
    (tmp_path / "sources/header.cuh").write_text("int two = 2;\n")
    monkeypatch.setattr(nvcc, "RECORDED", tmp_path / "record.json")
    monkeypatch.setattr(nvcc, "OUTDATED", [])
    monkeypatch.setattr(nvcc, "kept_folder", lambda: tmp_path)
    monkeypatch.delenv("DERBY_TESTS_ALL", raising=False)
    monkeypatch.setenv("DERBY_TESTS_RECORD", "1")

    def kernels():
        return nvcc.kernels_of(str(path), tmp_path / "sources/kernel.cu")

    kernels.runs = lambda: len(log.read_text().splitlines()) if log.exists() else 0
    assert kernels() == [nvcc.Kernel("k", 96, 4)] and kernels.runs() == 1
    monkeypatch.delenv("DERBY_TESTS_RECORD")
    for made in tmp_path.glob("*/said.json"):  # as in a fresh clone
        made.unlink()
    return kernels


def test_recorded_sources_are_not_compiled(compiler, tmp_path):
    (tmp_path / "sources/header.cuh").write_text("int two = 2;  // a comment\n")
    assert compiler() == [nvcc.Kernel("k", 96, 4)] and compiler.runs() == 1
    assert not nvcc.OUTDATED


def test_a_changed_header_is(compiler, tmp_path):
    (tmp_path / "sources/header.cuh").write_text("int two = 3;\n")
    assert compiler() and compiler.runs() == 2
    assert len(nvcc.OUTDATED) == 1


def test_only_what_the_record_lacks_is_recorded(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("DERBY_TESTS_RECORD", "1")
    assert compiler() and compiler.runs() == 1
    (tmp_path / "sources/header.cuh").write_text("int two = 3;\n")
    assert compiler() and compiler() and compiler.runs() == 2


def test_all_are_compared_with_the_record(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("DERBY_TESTS_ALL", "1")
    assert compiler() and compiler.runs() == 2
    record = tmp_path / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text())).replace("96", "95"))
    with pytest.raises(AssertionError):
        compiler()
