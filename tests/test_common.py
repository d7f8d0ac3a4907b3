"""common = [...] of a solution.toml: files that stand once, packed into every solution that names them."""

import json

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.pack import pack
from kernelderby.errors import DerbyError

D = "scale_rows_h4"
FAST = f"solutions/alice/toy/{D}/toy_fast"
MAIN = """import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
shared = importlib.import_module(f"{__name__}.shared")


def run(x, scale, factor, y):
    torch.mul(x, shared.weights(scale, factor), out=y)
"""
SHARED = "def weights(scale, factor):\n    return (scale * factor)[:, None]\n"


def name_in_toml(root, *names):
    path = root / FAST / "solution.toml"
    path.write_text(path.read_text().replace("dependencies =", f"common = {json.dumps(names)}\ndependencies ="))


@pytest.fixture
def shared_set(small_set):
    """The small set, whose toy_fast takes half of its code from alice's common/shared.py."""
    common = small_set / "solutions/alice/common"
    common.mkdir()
    (common / "shared.py").write_text(SHARED)
    (small_set / FAST / "main.py").write_text(MAIN)
    name_in_toml(small_set, "shared.py")
    pack(small_set)
    return small_set


def test_it_is_packed_beside_the_solutions_own_sources(shared_set):
    solution = Catalog.open(shared_set).solutions["toy_fast"]
    assert solution.sources == {"main.py": MAIN, "shared.py": SHARED} and solution.common == ("shared.py",)
    packed = json.loads((shared_set / f"{FAST}.json").read_text())
    assert {source["path"]: source["content"] for source in packed["sources"]} == solution.sources
    assert not (shared_set / FAST / "shared.py").exists()


def test_a_change_of_it_makes_the_json_stale_and_another_solution(shared_set):
    before = Catalog.open(shared_set).solutions["toy_fast"].hash
    (shared_set / "solutions/alice/common/shared.py").write_text(SHARED + "CHANGED = True\n")
    assert [change.path for change in pack(shared_set, check=True)] == [shared_set / f"{FAST}.json"]
    assert Catalog.open(shared_set).solutions["toy_fast"].hash != before


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["share.py"], ["common[0]", "'share.py'", "did you mean shared.py"]),
        (["../shared.py"], ["common[0]", "plain name"]),
        (["sub/shared.py"], ["common[0]", "plain name"]),
        (["shared.txt"], ["common[0]", "plain name"]),
        (["shared.py", "shared.py"], ["common[1]", "already"]),
        (["main.py"], ["common[0]", "already"]),
        ([3], ["common", "string"]),
    ],
)
def test_a_name_that_is_no_shared_file_is_one_line(small_set, names, words):
    (small_set / "solutions/alice/common").mkdir()
    (small_set / "solutions/alice/common/shared.py").write_text(SHARED)
    name_in_toml(small_set, *names)
    with pytest.raises(DerbyError) as caught:
        Catalog.open(small_set, strict=True).solutions  # noqa: B018 - reads them
    message = str(caught.value)
    assert "\n" not in message and str(small_set / FAST / "solution.toml") in message
    assert all(word in message for word in words)


def check(run):
    import torch

    y = torch.empty(2, 4)
    run(torch.ones(2, 4), torch.tensor([1.0, 3.0]), 0.5, y)
    assert y.tolist() == [[0.5] * 4, [1.5] * 4]


def test_derby_finds_it(shared_set, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from kernelderby.measure.worker.build import load_solution

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    catalog = Catalog.open(shared_set)
    check(load_solution(catalog.definition(D), catalog.solutions["toy_fast"]))


def test_flashinfer_bench_finds_it(shared_set, tmp_path, monkeypatch):
    pytest.importorskip("flashinfer_bench")
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.data import Definition, Solution

    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    definition = Definition.model_validate_json((shared_set / f"definitions/toy/{D}.json").read_text())
    solution = Solution.model_validate_json((shared_set / f"{FAST}.json").read_text())
    check(BuilderRegistry.get_instance().build(definition, solution).call_destination_passing)


def test_flashinfers_trace_apply_finds_it(shared_set, tmp_path, monkeypatch):
    pytest.importorskip("flashinfer.trace_apply")
    from flashinfer.trace.solution import Solution
    from flashinfer.trace_apply.loaders import load

    monkeypatch.setenv("HOME", str(tmp_path))
    check(load(Solution.from_dict(json.loads((shared_set / f"{FAST}.json").read_text()))))


def test_headers_that_cuda_sources_include_come_along(shared_set):
    """No list names them: kernel.cu includes one, which includes another. A solution's own header of the same name
    goes first."""
    common = shared_set / "solutions/alice/common"
    (common / "outer.cuh").write_text('#pragma once\n#include <cuda.h>\n  #  include "inner.cuh"\n')
    (common / "inner.cuh").write_text('#include "own.cuh"\n// #include "unused.cuh"\n')
    for name in ("own.cuh", "unused.cuh"):
        (common / name).write_text("// not this one\n")
    (shared_set / FAST / "own.cuh").write_text("// mine\n")
    (shared_set / FAST / "kernel.cu").write_text('#include "outer.cuh"\n')
    solution = Catalog.open(shared_set).solutions["toy_fast"]
    assert sorted(solution.sources) == ["inner.cuh", "kernel.cu", "main.py", "outer.cuh", "own.cuh", "shared.py"]
    assert solution.sources["own.cuh"] == "// mine\n" and sorted(solution.common) == [
        "inner.cuh",
        "outer.cuh",
        "shared.py",
    ]
    before = solution.hash
    (common / "inner.cuh").write_text('#include "own.cuh"\nint changed;\n')
    assert Catalog.open(shared_set).solutions["toy_fast"].hash != before


def test_a_header_from_outside_of_the_set_is_refused(shared_set, tmp_path):
    (tmp_path / "outside.cuh").write_text("int secret;\n")
    (shared_set / "solutions/alice/common/outside.cuh").symlink_to(tmp_path / "outside.cuh")
    (shared_set / FAST / "kernel.cu").write_text('#include "outside.cuh"\n')
    with pytest.raises(DerbyError, match="leads outside the set"):
        Catalog.open(shared_set, strict=True).solutions  # noqa: B018 - reads them
