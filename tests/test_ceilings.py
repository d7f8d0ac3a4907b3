"""benchmarks/ceilings.py without a GPU: its kernels compile, its checks tell right from wrong, its table is read."""

import importlib
import shutil
from pathlib import Path

import pytest

from kernelderby.hardware import read_gpu

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def ways(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("ceiling_ways")


@pytest.fixture
def ceilings(ways):
    return importlib.import_module("ceilings")


def plan_on_cpu(ways, broken):
    """A plan of 256 KiB with torch in place of the kernels; `broken` changes one word of their result."""

    class OnCpu(ways.Plan):
        def call(self, name, *arguments):
            to, index = self.held["to"], torch.arange(self.size // 4)
            if name.startswith("read"):
                self.held["sink"][5] += wrapped(self.held["one"].long().sum() + broken)
            elif name.startswith("fill"):
                words = index % ways.BOX_WORDS if name == "fill_tma" else index
                to.copy_(wrapped(words * ways.STEP + ways.SEED))
            elif name.startswith("add"):
                to.copy_(wrapped(self.held["one"].long() + self.held["other"]))
            elif name == "multiply":
                products = torch.einsum("wsmk,snk->wmn", self.held["a"].float(), self.held["b"].float())
                self.held["d"].copy_(arguments[-2] * products)
                self.held["d"][-1, -1, -1] += 30 * broken
            else:
                to.copy_(self.held["one"])
            to[-1] += broken

    plan = OnCpu(None, 2**18, 2, "cpu")
    plan.allocate()
    return plan


def wrapped(words):
    return ((words + 2**31) % 2**32 - 2**31).to(torch.int32)


@pytest.mark.parametrize("broken", [0, 1])
def test_every_way_is_checked(ways, monkeypatch, broken):
    monkeypatch.setattr(ways, "PART", 10_000)
    plan = plan_on_cpu(ways, broken)
    every = [*plan.memory_ways(), *plan.loops()]
    assert {way.kind for way in every} == {"read", "copy", "fill", "mixed", "bfloat16", "float8_e4m3fn"}
    for way in every:
        way.prepare()
        if broken:
            with pytest.raises(ways.WayFailed, match="differ|sum is"):
                way.check()
        else:
            way.check()
        way.release()


def test_work_is_what_is_moved_and_multiplied(ways):
    plan = ways.Plan(None, 2**32, 132)
    times = {"read": 1, "fill": 1, "copy": 2, "mixed": 3}
    assert all(way.work == times[way.kind] * 2**32 for way in plan.memory_ways())
    bf16, _, fp8, _ = plan.loops()
    assert (bf16.name, fp8.name) == ("wgmma loop, 2 warpgroups an SM",) * 2
    # 16 instructions a pass and warpgroup, of 64 x 256 x 16 or 32 multiply-adds
    assert (bf16.work, fp8.work) == tuple(2 * 64 * 256 * k * 16 * 2 * 7000 * 132 for k in (16, 32))
    assert [way.work for way in plan.gemms()] == [2 * n**3 for n in ways.GEMM_SIZES] * 3


def test_a_way_that_fails_keeps_its_reason_and_leaves_the_others(ways, ceilings):
    results = [
        ceilings.Result("read", "linear", 1.0, 4.4e12),
        ceilings.Result("read", "TMA", 1.0, 4.5e12),
        ceilings.Result("copy", "linear", 1.0, problem="the copy differs"),
    ]
    assert ceilings.line(results[2]).endswith("linear: the copy differs")
    assert {kind: best.name for kind, best in ceilings.best_of(results).items()} == {"read": "TMA"}


def test_the_printed_table_is_one_that_the_hardware_files_take(ceilings, tmp_path):
    results = [
        ceilings.Result("read", "TMA", 1.0, 4.4e12),
        ceilings.Result("mixed", "linear", 1.0, 4.1e12),
        ceilings.Result("bfloat16", "wgmma", 1.0, 8.1234e14),
    ]
    small = {"load_store": {"cupti-span-1": {"eager": 2.251, "graph": 1.5}}}
    text = (ROOT / "kernelderby/hardware/gpus/h100.toml").read_text().split("[measured]")[0]
    table = ceilings.toml(ceilings.best_of(results), small, 'a "GPU"', "2026-11-22")
    (tmp_path / "gpu.toml").write_text(f"{text}\n{table}\n")
    measured = read_gpu(tmp_path / "gpu.toml").measured
    assert measured.memory_bytes_per_second == 4.4e12
    assert measured.traffic_bytes_per_second == {"read": 4.4e12, "mixed": 4.1e12}
    assert measured.flops_per_second == {"bfloat16": 812.3e12}
    assert measured.empty_kernel_us == {"eager": 2.25, "graph": 1.5}
    assert (measured.source, measured.date) == ('a "GPU"', "2026-11-22")


def test_its_kernels_compile_and_the_plan_is_shown(ceilings, capsys, monkeypatch):
    if not shutil.which("nvcc") and not Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("no nvcc on the PATH or in /usr/local/cuda")
    monkeypatch.setattr("sys.argv", ["ceilings.py", "--dry-run"])
    assert ceilings.main() == 0
    shown = capsys.readouterr().out
    assert "wgmma loop, 3 warpgroups an SM" in shown and "TMA boxes of 128 x 128 bytes, one run a CTA" in shown
