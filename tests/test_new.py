"""derby new: what it writes checks right at once, costs included; what it cannot take ends in one line."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from kernelderby.api.authoring import new_operator
from kernelderby.authoring.solution import LANGUAGES
from kernelderby.authoring.words import tensor
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError

torch = pytest.importorskip("torch")

SOURCE = """
import torch

def attend(q, k, v, scale: float):
    weights = torch.softmax((q.float() @ k.float().transpose(-1, -2)) * scale, dim=-1)
    return (weights @ v.float()).to(q.dtype)

def attend_inputs():
    q, k = torch.randn(2, 8, 16, dtype=torch.bfloat16), torch.randn(2, 12, 16, dtype=torch.bfloat16)
    return q, k, k.clone(), 0.25

def rope(x, positions):
    half = x.shape[-1] // 2
    angles = positions.float()[:, None] * torch.arange(half) / half
    a, b = x[:, :half].float(), x[:, half:].float()
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).to(x.dtype)

def rope_inputs():
    return {"x": torch.randn(64, 64, dtype=torch.float16), "positions": torch.arange(64, dtype=torch.int32)}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "definitions").mkdir()
    (tmp_path / "ops.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_operator_of_an_expression_is_right_at_once_with_counted_costs(own, derby):
    words = [
        "x:bf16[T,2,D]",
        "--run",
        "F.silu(x[:, 0].float()) * x[:, 1].float()",
        "--size",
        "T=1,64",
        "--size",
        "D=128",
    ]
    code, out, err = derby("new", "operator", "swiglu", *words)
    assert code == 0, err
    assert "swiglu(x:bf16[T,2,D]) -> output:bf16[T,D]" in out and "counted from the reference" in out
    assert derby("check", "swiglu")[0] == 0
    assert derby("pack", "--check")[0] == 0
    small, large = Catalog.open(own, strict=True).workloads("swiglu")
    assert large.cost.counted and large.axes == {"T": 64, "D": 128}
    assert (large.cost.bytes_read, large.cost.bytes_written) == (64 * 2 * 128 * 2, 64 * 128 * 2)
    source = own / "definitions/own/swiglu.py"
    source.write_text(
        source.read_text() + "\n\ndef count_cost(axes, inputs):\n"
        '    return {"flops": {"bfloat16": 7}, "bytes_read": 8, "bytes_written": 9}\n'
    )
    assert derby("pack")[0] == 0
    assert not Catalog.open(own).workloads("swiglu")[1].cost.counted  # the author's word


def test_inputs_and_axes_come_from_a_function_and_an_example(own, derby):
    out = derby("new", "operator", "attend", "--from", "ops.py:attend", "--example", "ops.py:attend_inputs")[1]
    q, k, v = "q:bf16[q_dim0,q_dim1,q_dim2]", "k:bf16[q_dim0,k_dim1,q_dim2]", "v:bf16[q_dim0,k_dim1,v_dim2]"
    assert f"attend({q}, {k}, {v}, scale:f32=0.25) -> output:bf16[q_dim0,q_dim1,v_dim2]" in " ".join(out.split())
    out = derby("new", "operator", "rope", "--from", "ops.py:rope", "--example", "ops.py:rope_inputs")[1]
    assert "rope(x:f16[x_dim0,x_dim1], positions:i32[x_dim0]=0..x_dim0) -> output:f16[x_dim0,x_dim1]" in out
    code, out, _ = derby("check", "attend", "rope")
    assert code == 0 and "17 passed" in out
    (workload,) = Catalog.open(own).workloads("attend")
    assert workload.cost.flops == {"bfloat16": 2 * 2 * 8 * 12 * 16 * 2}


def test_an_operator_without_an_expression_runs_and_says_so(own, derby):
    out = derby("new", "operator", "later", "x:fp8[T,D]", "s:f32[T]=0.1..1", "eps:f32=1e-6", "--output", "y:bf16[T,D]")[
        1
    ]
    assert "TODO" in out and derby("check", "later")[0] == 0


@pytest.mark.parametrize("language", ["python", "triton", "helion"])  # Helion's Triton runs in the interpreter too
def test_a_new_solution_is_right_before_it_is_edited(own, derby, language):
    pytest.importorskip({"python": "torch"}.get(language, language), exc_type=ImportError)
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=1", "--size", "D=16")
    assert derby("new", "solution", "mine", "--for", "twice", "--language", language, "--author", "me")[0] == 0
    code, out, err = derby("check", "mine")
    assert code == 0, out + err
    main = own / "solutions/me/own/twice/mine/main.py"
    main.write_text(main.read_text().replace("copy(result, output)", "copy(result + 1, output)"))
    assert derby("check", "mine")[0] == 1
    assert derby("pack", "--check")[0] == 1 and derby("pack")[0] == 0  # flashinfer-bench's JSON follows


def test_every_language_has_sources_that_compile_and_a_folder_that_loads(own, derby):
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=1", "--size", "D=16")
    for language in LANGUAGES:
        name = f"in_{language.replace('-', '_')}"
        code, _, err = derby("new", "solution", name, "--for", "twice", "--language", language, "--author", "me")
        assert code == 0, err
        solution = Catalog.open(own, strict=True).solution(name)
        compile(solution.sources["main.py"], "main.py", "exec")
        assert not any("@name@" in text or "@inputs@" in text for text in solution.sources.values())
        assert json.loads(solution.json_path.read_text())["spec"]["entry_point"] == "main.py::run"


ODD_ONES = """
import torch
from collections import namedtuple


def both():
    return torch.randn(4, 16), torch.randn(4, 16)


def adds(x, y):
    x.add_(y)


def optional(x, bias=None, *, eps=1e-5, kind="rms"):
    assert bias is None and kind == "mean"
    return x / (x.mean(-1, keepdim=True) + eps)


def optional_inputs():
    return {"x": torch.randn(5, 64), "bias": None, "eps": 1e-6, "kind": "mean"}


def pair(x, y):
    return namedtuple("Pair", "total top")(x + y, (x * y).amax(-1))


def masked(x, y):
    return {"kept": torch.where(y, x, torch.zeros_like(x)), "count": y.sum(-1)}


def masked_inputs():
    return torch.randn(6, 32, dtype=torch.float16), torch.rand(6, 32) > 0.5


def looked_up(table, ids):
    return table[ids]


def looked_up_inputs():
    return torch.randn(100, 16), torch.tensor([7, 93])


class Layer(torch.nn.Module):
    pass


layer, listed = Layer(), lambda x, parts: x + parts[0]
listed_inputs = lambda: (torch.randn(3, 8), [torch.randn(3, 8)])
"""


@pytest.mark.parametrize(
    ("function", "example", "shown", "source"),
    [
        ("adds", "both", "-> output:f32[x_dim0,x_dim1]", "    x = x.clone()\n    adds(x, y)\n    return x\n"),
        ("optional", "optional_inputs", "(x:f32[x_dim0,x_dim1], eps:f32=1e-06)", "eps=eps, bias=None, kind='mean')"),
        ("pair", "both", "-> total:f32[x_dim0,x_dim1], top:f32[x_dim0]", "return pair(x, y)"),
        ("masked", "masked_inputs", "y:bool[x_dim0,x_dim1]) -> kept:f16[x_dim0,x_dim1], count:i64[x_dim0]", ""),
        ("looked_up", "looked_up_inputs", "ids:i64[ids_dim0]=0..table_dim0)", ""),  # it ends at 93 in the example
    ],
)
def test_odd_functions_become_operators(own, function, example, shown, source):
    (own / "odd.py").write_text(ODD_ONES)
    written = new_operator(own, "mine", function=f"odd.py:{function}", example=f"odd.py:{example}")
    assert shown in written.shown
    assert source in written.files[1].read_text()
    assert "costs counted" in written.notes[-1], written.notes  # the reference ran, and gave what the contract says


@pytest.mark.parametrize(
    ("function", "example", "said"),
    [
        ("odd.py:layer", "both", "is no plain function"),
        ("odd.py:Layer", "both", "is no plain function"),
        ("torch.nn.functional:gelu", "both", "tells no parameters"),
        ("odd.py:listed", "listed_inputs", "parts is a list"),
        ("odd.py:optional", "both", "fails with it"),
    ],
)
def test_what_is_no_function_of_tensors_ends_in_a_line(own, function, example, said):
    (own / "odd.py").write_text(ODD_ONES)
    with pytest.raises(DerbyError, match=said):
        new_operator(own, "mine", function=function, example=f"odd.py:{example}")


@pytest.fixture
def begun(own, derby):
    """begun(language) -> the folder of a new solution, and its main.py as a module."""
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=1", "--size", "D=16")

    def make(language):
        derby("new", "solution", "mine", "--for", "twice", "--language", language, "--author", "me")
        folder = own / "solutions/me/own/twice/mine"
        spec = importlib.util.spec_from_file_location(
            "new_solution", folder / "main.py", submodule_search_locations=[str(folder)]
        )
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return folder, module

    yield make
    for name in [each for each in sys.modules if each.partition(".")[0] == "new_solution"]:
        del sys.modules[name]


# Ahead of time, for sm_90: no GPU has run these three yet.


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_new_cuda_kernel_compiles(begun):
    folder, _ = begun("cuda")
    library = folder / "mine.so"
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "--shared", "-Xcompiler", "-fPIC", str(folder / "kernel.cu")]
    subprocess.run([*command, "-o", str(library)], check=True)
    assert ctypes.CDLL(str(library)).mine_run(None, None, ctypes.c_longlong(0), None) == 0  # no bytes, no launch


@pytest.mark.skipif("DERBY_TESTS_ALL" not in os.environ, reason="five seconds of a core: DERBY_TESTS_ALL=1")
def test_the_new_cute_dsl_kernel_compiles(begun, monkeypatch):
    cute = pytest.importorskip("cutlass.cute")
    driver = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    _, module = begun("cute-dsl")
    tensors = [
        module.from_dlpack(torch.zeros(1000, dtype=torch.uint8)).mark_layout_dynamic() for _ in ("source", "target")
    ]
    assert callable(cute.compile(module.launch, *tensors, 1000, driver.CUstream(0), options="--gpu-arch sm_90a"))


def test_the_new_tilelang_kernel_compiles(begun):
    tilelang = pytest.importorskip("tilelang")
    _, module = begun("tilelang")
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with target:
        assert "mine_kernel" in tilelang.lower(module.compiled.get_tir(4), target=target).kernel_source


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bad", "x:bf16[T,2*D]"], "write x:bf16[T,2,D]"),
        (["bad", "x:bq16[T]"], "no dtype 'bq16'"),
        (["bad", "x:bf16"], "has no shape"),
        (["bad", "x:bf16[T,W]", "--run", "x[:, : x.shape[1] // 2]"], "which is no axis"),
        (["bad", "x:bf16[T]", "--run", "y"], "name 'y' is not defined"),
        (["bad", "x:bf16[T]", "--size", "D=4"], "D is no axis that varies"),
        (["bad", "x:bf16[T]", "--constant", "w"], "'w' is no tensor"),
        (["bad name", "x:bf16[T]"], "is no name"),
        (["bad", "--from", "nothing_here:f"], "does not load"),
        (["bad", "--from", "ops.py:attend"], "needs --example"),
    ],
)
def test_what_cannot_be_ends_in_one_line_and_writes_nothing(own, derby, words, said):
    code, _, err = derby("new", "operator", *words)
    assert code == 1 and said in err and err.count("\n") == 1
    assert not list((own / "definitions").rglob("*.json"))


def test_a_name_is_taken_once(own, derby):
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=1", "--size", "D=16")
    assert "in the set already" in derby("new", "operator", "Twice", "x:f16[T]")[2]
    assert derby("new", "operator")[0] == 2  # without a terminal it cannot ask


@pytest.mark.parametrize("word", ["x:bf16[T,2,D]", "ids:i32[T]=0..V", "eps:f32=1e-06", "s:f32[]"])
def test_a_word_is_read_as_it_is_shown(word):
    assert str(tensor(word)) == word


def test_a_reference_is_a_solution_by_its_name(small_set):
    catalog = Catalog.open(small_set)
    (name,) = catalog.definitions
    assert catalog.solution(f"{name}_reference").sources == {"main.py": catalog.definition(name).reference}
    assert f"{name}_reference" not in catalog.solutions  # where the definition does not ask for it
