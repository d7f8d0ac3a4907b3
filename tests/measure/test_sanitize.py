"""compute-sanitizer's logs, and the runner around a stand-in for it: no GPU has run the real one here yet."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.machine import tools
from kernelderby.measure.record import sanitize

pytest.importorskip("torch")

# In the form of the tools' own logs: NVIDIA's manual of compute-sanitizer, and logs that people show.
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale(float *, int)+0x70 in /tmp/scale.cu:34
=========     by thread (63,0,0) in block (0,0,0)
=========     Access at 0x7f2a9800013c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a98000040 of size 252 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale(float *, int)+0x70 in /tmp/scale.cu:34
=========     by thread (64,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (
            MEMCHECK,
            [
                "scale scale.cu:34: Invalid __global__ write of size 4 bytes (2 times), by thread (63,0,0) in block "
                "(0,0,0) Access at 0x7f2a9800013c is out of bounds and is 1 bytes after the nearest allocation at "
                "0x7f2a98000040 of size 252 bytes"
            ],
        ),
        (CLEAN, []),
        (
            "========= Invalid __global__ read of size 4 bytes\n"
            "=========     at 0x30 in /home/me/demo.cu:6:unaligned(void)\n",
            ["unaligned demo.cu:6: Invalid __global__ read of size 4 bytes"],
        ),
        (
            "========= Error: Race reported between Write access at sum<(int)256>(const int *, int *)+0x90 in k.cu:3\n"
            "=========     and Read access at sum<(int)256>(const int *, int *)+0x100 in k.cu:5 [7168 hazards]\n"
            "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n",
            [
                "sum<(int)256> k.cu:3 and sum<(int)256> k.cu:5: Error: Race reported between Write access, "
                "and Read access"
            ],
        ),
        (
            "========= Uninitialized __global__ memory read of size 4 bytes\n"
            "=========     at _scale_kernel+0x2a0 in main.py:17\n",
            ["_scale_kernel main.py:17: Uninitialized __global__ memory read of size 4 bytes"],
        ),
        (
            "========= Barrier error detected. Divergent thread(s) in warp.\n"
            "=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110\n"
            "=========         Device Frame: broken(float *)+0xb0 in /in/kernel.cu:12\n",
            [
                "__syncwarp sm_30_intrinsics.hpp:110, called in broken kernel.cu:12: Barrier error detected. Divergent "
                "thread(s) in warp"
            ],
        ),
    ],
    ids=["memcheck", "clean", "older form", "racecheck", "initcheck", "synccheck"],
)
def test_a_line_a_place(log, lines):
    assert [str(each) for each in sanitize.findings(log)] == lines


STAND_IN = """#!{python}
# A stand-in for compute-sanitizer: runs the command, and writes what it was told to write as the tool's log.
import os, subprocess, sys

words = sys.argv[1:]
tool, log = words[words.index("--tool") + 1], words[words.index("--log-file") + 1]
command = words[words.index("no") + 1:]
assert "-lineinfo" in os.environ["NVCC_APPEND_FLAGS"] and os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
ended = subprocess.run(command).returncode if tool == "memcheck" else 0  # one start of torch is enough
texts = {texts!r}
if tool in texts:
    open(log, "w").write(texts[tool])
sys.exit(ended)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(log of each tool) puts one on PATH, the only compute-sanitizer there is."""
    monkeypatch.setattr(tools, "PLACES", {})
    monkeypatch.setattr(tools, "TOOLKIT", "/nonexistent")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)

    def make(**texts: str):
        file = tmp_path / "bin/compute-sanitizer"
        file.parent.mkdir()
        file.write_text(STAND_IN.format(python=sys.executable, texts=texts))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
        return sanitize.find_sanitizer()

    return make


def run(root, sanitizer, monkeypatch, only=sanitize.TOOLS):
    from kernelderby.measure.judge.cases import case_of_workload

    monkeypatch.setattr(sanitize, "TOOLS", only)
    catalog = Catalog.open(root)
    definition, solution = catalog.definition("scale_rows_h4"), catalog.solution("toy_baseline")
    cases = tuple(case_of_workload(definition, each) for each in catalog.workloads(definition.name))
    pairs = sanitize.chosen_cases([(definition, (solution,), cases)], ())
    return list(sanitize.sanitized(sanitizer, root, pairs, "cpu", 60))


def test_a_solution_runs_once_under_each_tool(small_set, stand_in, monkeypatch):
    """On the CPU, in the process that the tool would look at."""
    clean, found = run(small_set, stand_in(synccheck=CLEAN, memcheck=MEMCHECK), monkeypatch, ("synccheck", "memcheck"))
    assert (clean.status, clean.why, clean.case.endswith("under synccheck")) == ("passed", (), True)
    assert (found.status, found.message) == ("memcheck", "1 place")
    assert found.why[0].startswith("scale scale.cu:34: Invalid")


def test_what_wrote_no_summary_has_not_looked(small_set, stand_in, monkeypatch):
    (small_set / "solutions/baseline/toy/scale_rows_h4/toy_baseline/main.py").write_text("raise ValueError('mine')\n")
    (found,) = run(small_set, stand_in(), monkeypatch, ("memcheck",))
    assert found.status == "crashed" and "ValueError: mine" in found.message
    monkeypatch.setattr(sanitize, "run_bounded", lambda *_: "")  # the tool ends well, and has said nothing
    (found,) = run(small_set, sanitize.find_sanitizer(), monkeypatch, ("memcheck",))
    assert found.status == "crashed" and "wrote no summary" in found.message


def test_the_failing_case_comes_first(small_set):
    from kernelderby.measure.judge.cases import case_of_workload

    catalog = Catalog.open(small_set)
    definition, solution = catalog.definition("scale_rows_h4"), catalog.solution("toy_fast")
    cases = tuple(case_of_workload(definition, each) for each in catalog.workloads(definition.name))
    large = max(cases, key=lambda each: each.sizes["rows"])
    (_, _, chosen), *_ = sanitize.chosen_cases([(definition, (solution,), cases)], {("toy_fast", large.label)})
    assert chosen is large


def test_what_is_missing_is_a_line(stand_in, monkeypatch, derby, small_set):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DerbyError, match="pip install nvidia-cuda-sanitizer-api"):
        sanitize.find_sanitizer()
    code, _, err = derby("check", "toy_fast", "--sanitize", "--device", "cpu", "--root", small_set)
    assert code == 1 and "--sanitize: " in err and "on a GPU" in err
