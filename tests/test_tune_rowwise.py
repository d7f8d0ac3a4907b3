"""benchmarks/tune_rowwise.py without a GPU: its search space, its search over made-up times, its output."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import nvcc
import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.code import running_parts
from kernelderby.catalog.selection import of_origin

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parent.parent
CATALOG = Catalog.open(ROOT)


@pytest.fixture
def tuner(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("tune_rowwise")


def shapes(tuner):
    return [
        (operator, workload, *tuner.size_of(operator, workload.axes))
        for operator in tuner.HELD
        for workload in of_origin(CATALOG.workloads(operator), ["survey"])
    ]


def test_every_width_has_a_space_and_no_number_two_threads(tuner):
    for operator, columns in sorted({(operator, columns) for operator, _, _, columns in shapes(tuner)}):
        plain, streaming, lasting = tuner.search_space(operator, columns)
        assert len(plain) >= 9 and len(streaming) == 2 * len(plain) and lasting, (operator, columns)
        for one in plain:
            assert max(one["rows"], 1) * one["chunk"] >= 64 * one["warps"], (operator, one)
            assert one["rows"] or operator == "silu_and_mul"
            assert tuner.HELD[operator] or not one["rows"] or columns % one["chunk"] == 0


def test_persistent_programs_have_more_than_one_tile(tuner):
    one = tuner.config(1, 1024, 4, 3, 1)
    counts = tuner.programs(one, "rms_norm", 3804, 7168)
    assert counts and all(132 * count < 3804 for count in counts)
    assert tuner.programs(one, "rms_norm", 100, 7168) == []


def fake_shape(tuner, workload, chosen, cost, broken=lambda one: False):
    calls = []

    def time_us(one, count):
        calls.append(one)
        return None if broken(one) else cost(one)

    return tuner.Shape("rms_norm", workload, chosen, time_us), calls


def wide(columns):
    return next(
        one for one in CATALOG.workloads("rms_norm") if one.axes == {"num_tokens": 3804, "hidden_size": columns}
    )


def test_the_search_finds_a_persistent_one(tuner):
    chosen = tuner.config(1, 1024, 4)

    def cost(one):
        return (
            30.0 + abs(one["warps"] - 8) - 2 * (one["stages"] == 3) + abs(one["per_sm"] - 4) / 10 * bool(one["stages"])
        )

    shape, calls = fake_shape(tuner, wide(7168), chosen, cost, broken=lambda one: one["chunk"] == 2048)
    best, gain = tuner.pick([shape])
    assert best["stages"] == 3 and best["warps"] == 8 and best["chunk"] != 2048
    assert gain == pytest.approx(cost(chosen) / cost(best)) and gain > 1.1
    assert any(one["stream"] == "both" for one in calls)


@pytest.mark.parametrize("base, gain, changed", [(30.0, 0.99, False), (30.0, 1.015, True), (2.0, 1.015, False)])
def test_small_gains_change_nothing(tuner, base, gain, changed):
    chosen = tuner.config(1, 1024, 4)
    shape, _ = fake_shape(tuner, wide(7168), chosen, lambda one: base if one == chosen else base / gain)
    best, found = tuner.pick([shape])
    assert (best != chosen) is changed and found == pytest.approx(gain if changed else 1.0)


def test_a_key_gets_what_suits_all_its_shapes(tuner):
    chosen, a, b = tuner.config(1, 1024, 4), tuner.config(1, 1024, 8), tuner.config(1, 4096, 4)
    costs = [{tuner.text(a): 5.0, tuner.text(b): 6.0}, {tuner.text(a): 20.0, tuner.text(b): 6.0}]
    pair = [
        fake_shape(tuner, wide(7168), chosen, lambda one, known=known: known.get(tuner.text(one), 10.0))[0]
        for known in costs
    ]
    assert tuner.pick(pair)[0] == b


def test_configurations_compile_without_a_gpu():
    """In a process of its own, since it replaces Triton's driver."""
    triton = pytest.importorskip("triton")
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); import tune_rowwise as t;"
        "from kernelderby.catalog import Catalog;"
        "t.search_space = lambda *_: ([t.config(1, 1024, 4)], [], [t.config(1, 1024, 4, 3, 1)]);"
        "t.compile_part(Catalog.open('.'), ['l2_norm'], 0, 1); print('compiled')"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}

    def compile_them():
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
        assert done.stdout == "compiled\n", done.stderr

    tool = running_parts({"tune_rowwise.py": (ROOT / "benchmarks" / "tune_rowwise.py").read_text()})
    nvcc.recalled([code, tool, CATALOG.solution("derby_l2_norm").hash, triton.__version__], compile_them)
