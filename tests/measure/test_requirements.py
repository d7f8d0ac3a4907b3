"""Why a solution cannot run somewhere."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from measuring import CPU, MISBEHAVIOURS

from kernelderby.catalog import Catalog, Requires
from kernelderby.measure.fence import landlock
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.requirements import missing_module, module_problem, try_modules, why_not
from kernelderby.measure.machine.tools import find_tools
from kernelderby.measure.wire.replies import GpuSeen

H200 = Machine("cuda", GpuSeen("NVIDIA H200", "9.0", "GPU-0"))


def reason(machine, language="python", **requires):
    pytest.importorskip("torch")
    honest = Catalog.open(MISBEHAVIOURS).solution("honest")
    return why_not(replace(honest, language=language, requires=Requires(**requires)), machine)


def test_a_solution_for_gpus_only():
    assert reason(CPU) == "needs a GPU: the tests run on the CPU"
    assert reason(CPU, cpu=True) is None
    assert reason(H200) is None
    assert reason(Machine("cuda", gpu_missing="no driver"), cpu=True) == "needs a GPU: no driver"


def test_compute_capabilities_are_inclusive_numbers():
    assert reason(H200, minimum_compute_capability="9.0", maximum_compute_capability="9.0") is None
    assert reason(H200, minimum_compute_capability="10.0") == "needs compute capability 10.0 or newer; this GPU has 9.0"
    assert reason(H200, maximum_compute_capability="8.9") == "needs compute capability 8.9 or older; this GPU has 9.0"


def test_a_missing_module_is_the_reason():
    assert reason(CPU, cpu=True, modules=("json", "no_such_library")) == "module no_such_library is not installed"


def test_a_part_of_a_folder_without_init_is_found(tmp_path, monkeypatch):
    """Libraries alone, without the package's Python files."""
    (tmp_path / "libraries_alone/inner").mkdir(parents=True)
    (tmp_path / "libraries_alone/inner/part.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing_module("libraries_alone.inner.part") is None
    assert missing_module("libraries_alone.inner.other") == "module libraries_alone.inner.other is not installed"


def test_a_module_that_is_there_but_does_not_load(tmp_path, monkeypatch):
    (tmp_path / "built_for_another.py").write_text("raise OSError('libcudart.so.11 is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "libcudart.so.11" in module_problem("built_for_another")


def test_modules_are_tried_several_at_a_time(tmp_path, monkeypatch):
    """Each waits for the other's start, which one after the other would never see."""
    pytest.importorskip("torch")
    meeting = Path(tempfile.mkdtemp(dir="/dev/shm"))  # where a module behind the fences may write
    for own, other in (("one_library", "two_library"), ("two_library", "one_library")):
        (tmp_path / f"{own}.py").write_text(
            f"import pathlib, time\npathlib.Path({str(meeting / own)!r}).touch()\nend = time.monotonic() + 60\n"
            f"while not pathlib.Path({str(meeting / other)!r}).exists():\n"
            "    assert time.monotonic() < end\n    time.sleep(0.05)\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    honest = Catalog.open(MISBEHAVIOURS).solution("honest")
    try_modules([replace(honest, requires=Requires(modules=("one_library", "two_library")))])
    assert module_problem("one_library") is None and module_problem("two_library") is None
    shutil.rmtree(meeting)


def test_a_module_is_looked_up_without_running_it(tmp_path, monkeypatch):
    """derby doctor: a set may name any module of the machine. A part of a package is found without its parent."""
    pytest.importorskip("torch")
    for name in ("tells", "package/__init__", "package/part/__init__", "package/part/last"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    honest = Catalog.open(MISBEHAVIOURS).solution("honest")
    for name, is_there in {
        "tells": 1,
        "package.part.last": 1,
        "package.part.no": 0,
        "tells.no": 0,
        "no.part": 0,
    }.items():
        needs = replace(honest, requires=Requires(cpu=True, modules=(name,)))
        found = why_not(needs, CPU, imports=False)
        assert found == (None if is_there else f"module {name} is not installed")
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if landlock.version():
        assert "PermissionError" in module_problem("tells"), "where it runs, it is behind the fences"
    assert not (tmp_path / "ran").exists()


def test_the_folder_of_a_machine():
    assert H200.id == "h200"
    assert CPU.id == "cpu"


def test_executables_may_lie_in_the_cuda_toolkit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert (
        reason(H200, executables=("no_such_tool",))
        == "no_such_tool is neither on the PATH nor in the CUDA toolkit; install the CUDA toolkit"
    )
    tool = tmp_path / "bin" / "no_such_tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert reason(H200, executables=("no_such_tool",)) is None


def test_a_tool_by_two_names_comes_once_and_what_cannot_run_not_at_all(tmp_path, monkeypatch):
    tool, text = tmp_path / "toolkit" / "bin" / "no_such_tool", tmp_path / "text" / "no_such_tool"
    for file, mode in ((tool, 0o755), (text, 0o644)):
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "toolkit")
    monkeypatch.setenv("PATH", f"{text.parent}:{tmp_path}/link/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert list(find_tools("no_such_tool")) == [tmp_path / "link" / "bin" / "no_such_tool"]
