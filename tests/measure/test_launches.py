"""A solution's launches, recorded without a GPU: kernel, grid and arguments count, the Python around them does not."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton")

from msgspec.structs import replace

from kernelderby.catalog import Catalog
from kernelderby.catalog.same_code import MachineCode
from kernelderby.measure.certify.build import differences, joined, unchanged, with_added
from kernelderby.measure.certify.launches import compiled_how, launches_of

D = "scale_rows_h4"
NVCC = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)
MAIN = """import torch
import triton
import triton.language as tl


@triton.jit
def twice(value):
    return value * 2


@triton.jit(do_not_specialize=["rows"])
def scale_rows(x, scale, out, rows, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        tl.store(out, 0.0)
    row = tl.program_id(0)
    place = row * 4 + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place) * tl.load(scale + row))


def grid_of(rows):
    return (rows,)


def run(x, scale, factor, out):
    if not x.is_cuda:
        raise ValueError("not on a GPU")
    rows = x.shape[0]
    space = torch.empty(rows, device=x.device)
    scale_rows[grid_of(rows)](x, scale, out, rows, BLOCK=4, WIDE=False, num_warps=1)
"""
WRITES = """with contextlib.suppress(OSError):
    open({!r}, "w").close()
"""
TOML = f"""name = "toy_triton"
definition = "{D}"
author = "alice"
description = "Triton."
language = "triton"
entry_point = "main.py::run"
destination_passing_style = true
target_hardware = ["NVIDIA H200"]
"""


LIBRARIES = """import subprocess
from pathlib import Path

HERE = Path(__file__).parent


class CudaLibrary:
    def __init__(self, name):
        self.name = name

    def build(self, architecture, folder):
        folder.mkdir(exist_ok=True)
        made, numbers = folder / f"{self.name}_0123456789abcdef.so", (architecture, architecture)
        gencode = "-gencode=arch=compute_%s,code=sm_%s" % numbers
        command = ["nvcc", "-O3", gencode, "--shared", "-Xcompiler", "-fPIC", "-o", str(made)]
        subprocess.run([*command, str(HERE / f"{self.name}.cu")], check=True)
        return made

    def __call__(self, device, *arguments):
        raise NotImplementedError


few, many = CudaLibrary("few"), CudaLibrary("many")


def run(x, scale, factor, out):
    (few if x.shape[0] == ROWS else many)(x.device, x, out, x.shape[0])
"""
CUDA = """#include <cuda_runtime.h>
__global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" int NAME_run(float* x) {
  twice<<<1, 128>>>(x);
  return cudaGetLastError();
}
"""


@pytest.fixture
def recorded(small_set, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    folder = small_set / f"solutions/alice/toy/{D}/toy_triton"
    folder.mkdir()
    (folder / "solution.toml").write_text(TOML)

    def record(old="", new="", exact=False):
        assert old in MAIN
        (folder / "main.py").write_text(MAIN.replace(old, new) if old else MAIN)
        catalog = Catalog.open(small_set)
        solution, workloads = catalog.solution("toy_triton"), tuple(catalog.workloads(D))
        return launches_of(catalog.definition(D), solution, workloads, "NVIDIA H200", exact)

    return record


def test_a_launch_says_kernel_grid_and_arguments(recorded):
    for uuid, lines in recorded().items():
        (line,) = lines
        name, digest, rest = line.split(" ", 2)
        assert name == "scale_rows" and len(digest) == 16 and uuid
        assert rest.startswith("[") and "(x+0, scale+0, y+0, " in rest


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("def grid_of(rows):\n    return (rows,)", "def grid_of(rows):\n    one = rows\n    return (one, 1)", True),
        ("torch.empty(rows, device=x.device)", "torch.empty(8 * rows, device=x.device)", True),
        ("        tl.store(out, 0.0)\n", "        tl.store(out, 1.0)\n", True),
        ("return (rows,)", "return (rows + 1,)", False),
        ("num_warps=1", "num_warps=2", False),
        ("* tl.load(scale + row)", "+ tl.load(scale + row)", False),
        ("(x, scale, out, rows, BLOCK=4", "(x, scale, x, rows, BLOCK=4", False),
        ("torch.empty(rows, device=x.device)", "torch.zeros(rows, device=x.device)", False),
    ],
)
def test_what_is_launched_counts(recorded, old, new, same):
    assert (recorded(old, new) == recorded()) is same


def test_other_intermediate_code_may_be_the_same_machine_code(recorded):
    change = "row * 4 + tl.arange(0, BLOCK)", "tl.arange(0, BLOCK) + row * 4"
    assert recorded(*change) != recorded()
    assert recorded(*change, exact=True) == recorded(exact=True)


def test_what_raises_has_no_launches(recorded):
    found = recorded("    rows = x.shape[0]", "    rows = missing")
    assert all(isinstance(lines, str) and "missing" in lines for lines in found.values())


def test_a_library_that_came_is_no_difference_where_launches_name_the_others():
    """The former libraries must all be there: kernels, host code, variables."""
    former = MachineCode("sm_90a", "nvcc", {"a": "1"}, ("d",), {"run": "h"}, "p")
    present = MachineCode("sm_90a", "nvcc", {"a": "1", "b": "2"}, ("d", "e"), {"run": "h", "few": "i"}, "p")
    assert differences(former, present) and not differences(with_added(former, present), present)
    for change in ({"kernels": {"a": "3"}}, {"host": {"run": "other"}}, {"data": ("x",)}, {"data": ("d", "d")}):
        other = replace(former, **change)
        assert with_added(other, present) == other and differences(other, present)


def test_code_of_libraries_joins_and_each_is_compared_by_itself():
    few, many = (MachineCode("sm_90a", "nvcc", {"k": one}, (one,), {f"{one}_run": "h"}, "p") for one in ("few", "many"))
    both = joined({"many": many, "few": few})
    assert both.kernels == {"k": "few", "k 2": "many"} and set(both.host) == {"few_run", "many_run"}
    assert joined({"many": many, "few": few}, ["many"]) == many
    former = {"few": few, "many": replace(many, kernels={"k": "other"}), "gone": few}
    assert unchanged(former, {"few": replace(few, python="q"), "many": many}) == {"few"}


@pytest.mark.skipif(shutil.which("git") is None or NVCC is None, reason="no git or no nvcc")
def test_a_library_that_changed_outdates_what_calls_it(small_set, derby, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(NVCC).parent}{os.pathsep}{os.environ['PATH']}")
    first, other = sorted(each.axes["rows"] for each in Catalog.open(small_set).workloads(D))[:2]
    folder = small_set / f"solutions/alice/toy/{D}/toy_triton"
    folder.mkdir()
    (folder / "solution.toml").write_text(TOML.replace('"triton"', '"python"'))
    (folder / "main.py").write_text(LIBRARIES.replace("ROWS", str(first)))
    for name in ("few", "many"):
        (folder / f"{name}.cu").write_text(CUDA.replace("NAME", name))
    git = ["git", "-C", str(small_set), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    before = Catalog.open(small_set).solution("toy_triton")
    give_rows(small_set, before)
    (folder / "many.cu").write_text(CUDA.replace("NAME", "many").replace("2.0f", "3.0f"))
    code, out, _ = derby("certify", "toy_triton", "--launches", "--root", small_set)
    assert code == 1 and "the same on 1 of 2 recorded workloads" in out and "calls many" in out, out
    catalog = Catalog.open(small_set)
    now = catalog.solution("toy_triton")
    kept = {each.axes["rows"]: now.has_kernels(before.hash, each.uuid) for each in catalog.workloads(D)}
    assert (kept[first], kept[other]) == (True, False)
    assert derby("certify", "--check", "--root", small_set)[0] == 0
    main = folder / "main.py"
    main.write_text(main.read_text().replace('CudaLibrary("many")', 'CudaLibrary("many")\nmany.name = "a b"'))
    code, out, _ = derby("certify", "toy_triton", "--launches", "--root", small_set)
    assert code == 1 and "a library is called 'a b'" in out, out
    main.write_text(main.read_text().replace('\nmany.name = "a b"', ""))
    (folder / "few.cu").write_text(CUDA.replace("NAME", "few").replace("2.0f", "4.0f"))
    code, out, _ = derby("certify", "toy_triton", "--launches", "--root", small_set)
    assert code == 1 and "the same on" not in out and "calls few" in out, out


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_rows_of_what_launches_the_same_keep_their_graph_times(recorded, small_set, derby, monkeypatch):
    """Each workload by itself: one launches otherwise after the change. The solution's code runs fenced."""
    escaped = small_set.parent / "escaped"
    monkeypatch.setitem(globals(), "MAIN", f"import contextlib\n{WRITES.format(str(escaped))}{MAIN}")
    recorded()
    escaped.unlink()  # by this process, which has no fence
    git = ["git", "-C", str(small_set), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    before = Catalog.open(small_set).solution("toy_triton")
    give_rows(small_set, before)
    first, other = sorted(each.axes["rows"] for each in Catalog.open(small_set).workloads(D))[:2]
    recorded("return (rows,)", f"return (rows + (rows == {other}),)")
    escaped.unlink()
    code, out, _ = derby("certify", "toy_triton", "--launches", "--root", small_set)
    assert not escaped.exists()
    assert code == 1 and "the same on 1 of 2 recorded workloads" in out and "scale_rows" in out
    catalog = Catalog.open(small_set)
    now = catalog.solution("toy_triton")
    kept = {each.axes["rows"]: now.has_kernels(before.hash, each.uuid) for each in catalog.workloads(D)}
    assert (kept[first], kept[other]) == (True, False) and not now.has_code(before.hash)
    assert derby("certify", "--check", "--root", small_set)[0] == 0 and not escaped.exists()
    # And once more: rows that only such a certificate keeps are kept by a second one.
    for words in (["add", "-A"], ["commit", "-qm", "two"]):
        subprocess.run([*git, *words], check=True)
    recorded("return (rows,)", f"return (rows + 1 * (rows == {other}),)")
    assert not Catalog.open(small_set).solution("toy_triton").has_kernels(before.hash)
    code, out, _ = derby("certify", "toy_triton", "--launches", "--root", small_set)
    assert code == 0 and "the same on 1 of 1 recorded workload" in out
    now = Catalog.open(small_set).solution("toy_triton")
    assert [now.has_kernels(before.hash, each.uuid) for each in catalog.workloads(D)].count(True) == 1


FRESH_UUID = "0f0f0f0f-0000-4000-8000-000000000001"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_second_certificate_of_a_version_keeps_the_workloads_of_the_first(recorded, small_set, derby):
    recorded()
    git = ["git", "-C", str(small_set), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    before = Catalog.open(small_set).solution("toy_triton")
    give_rows(small_set, before)
    (path,) = (small_set / "traces").rglob("*.jsonl")
    one, two = path.read_text().splitlines(keepends=True)
    fresh = json.loads(one)  # a shape that no file lists
    fresh["workload"] |= {"uuid": FRESH_UUID, "axes": {**fresh["workload"]["axes"], "rows": 11}}
    fresh["measurement"]["shape"] = {"origin": "fresh"}
    recorded("return (rows,)", "return (rows * 1,)")
    for rows, count in (
        (one, "1 of 1 recorded workload"),
        (f"{one}{two}{json.dumps(fresh)}\n", "3 of 3 recorded workloads"),
    ):
        path.write_text(rows)
        code, out, _ = derby("certify", "toy_triton", "--launches", "--root", small_set)
        assert code == 0 and f"the same on {count}" in out
    catalog = Catalog.open(small_set)
    now = catalog.solution("toy_triton")
    kept = [now.has_kernels(before.hash, uuid) for uuid in (*(each.uuid for each in catalog.workloads(D)), FRESH_UUID)]
    assert kept.count(True) == 3 and kept[-1]
    assert derby("certify", "--check", "--root", small_set)[0] == 0


def give_rows(small_set, solution):
    """A row of the solution on each workload, with graph times."""
    (path,) = (small_set / "traces").rglob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = []
    for line in {each["workload"]["uuid"]: each for each in lines if each["evaluation"]["status"] == "PASSED"}.values():
        own = line["measurement"]
        eager = {"median_us": own["latency_us"], "samples_us": own["samples_us"]}
        own |= {"solution_hash": solution.hash, "times": {"eager": eager, "graph": eager}}
        rows.append(json.dumps({**line, "solution": solution.name, "measurement": own}))
    path.write_text("".join(f"{row}\n" for row in rows))


def test_where_a_library_lies_does_not_count(tmp_path):
    def how(folder, contents):
        path = tmp_path / folder / "libdevice.bc"
        path.parent.mkdir()
        path.write_bytes(contents)
        return compiled_how({"extern_libs": (("libdevice", str(path)),), "num_warps": 4})

    here = how("here", b"one")
    assert here == how("there", b"one")
    assert here != how("elsewhere", b"two")
    assert str(tmp_path) not in repr(here)
