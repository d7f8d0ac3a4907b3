"""derby explain: parts of a time, the verdict and what to try, with numbers worked out by hand; occupancy."""

import json
import re
import shutil
import subprocess

import pytest

import kernelderby
from kernelderby import DerbyError
from kernelderby.hardware import find_gpu
from kernelderby.hardware.occupancy import KernelDemand, Occupancy, occupancy
from kernelderby.rank.bounds import explained
from kernelderby.report.explanation import explanation_answer
from kernelderby.rows.measurement import Measurement, Status, Timed

D = "scale_rows_h4"


def row(solution, graph=100.0, busy=70.0, eager=130.0, empty=2.0):
    return Measurement(
        D,
        {"uuid": "w", "axes": {}, "inputs": {}},
        solution,
        Status.PASSED,
        "NVIDIA H200",
        "cupti-graph-eager-2",
        "2026-11-22T00:00:00+00:00",
        eager,
        ((eager,),),
        environment={"empty_kernel_us": {"graph": empty, "eager": empty}},
        times={kind: Timed(us, ((us,),)) for kind, us in (("graph", graph), ("eager", eager), ("busy", busy))},
    )


@pytest.fixture
def found(small_set):
    """found(row, rivals): of the toy's second workload, 36,000 bytes."""
    opened = kernelderby.open(small_set)
    solution, workload = opened.solutions["toy_fast"], opened.workloads[D][1]
    return lambda own, *rivals, **more: explained(solution, workload, find_gpu("h200"), own, rivals, **more)


def test_parts_and_savings_by_hand(found):
    it = found(row("toy_fast"), row("far", 50.0), row("near", 90.0, busy=40.0))
    assert (it.parts.gaps, it.parts.busy, it.reachable_us) == (30.0, 70.0, 2.0)
    assert (it.bound, it.limit, it.slow_kernels_us, it.rival.solution) == ("kernels", "launch", 68.0, "near")
    saved = [(each.change, each.saves_us) for each in it.experiments]
    assert saved == [("kernels", 68.0), ("gaps", 30.0), ("host", 30.0), ("rival", 10.0)]
    told = data(it)
    assert told["verdict"] == "bound by its kernels: they run 68 us longer than a launch takes at best"
    assert told["experiments"][-1]["what"] == "as near does: its kernels run 30 us less"


def data(found):
    return json.loads(explanation_answer(found).to_json())


def test_other_verdicts(found):
    def verdict(*rows, **more):
        return data(found(*rows, **more))["verdict"]

    assert verdict(row("toy_fast", 100, busy=30)) == "bound by gaps: for 70 us of 100 us no kernel runs"
    assert verdict(row("toy_fast", 2.2, 2.2, 2.3)).startswith("near its floor: 91%")
    assert verdict(None).startswith("not measured") and not found(None).experiments
    assert "keep DRAM at 75%" in verdict(row("toy_fast"), unit=("DRAM", 75.0))
    assert "latency, so more work in flight" in verdict(row("toy_fast"), unit=("DRAM", 30.0))
    few = KernelDemand("k", 32, 0, True, 128, (66, 1, 1))  # 16 blocks of 4 warps a multiprocessor
    assert few.waves == 66 / (16 * 132)
    assert "k fills 3% of the GPU" in str(data(found(row("toy_fast"), demands=[few]))["experiments"])


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (128, 48, 64, Occupancy(10, 0.625, "registers")),  # 65536 / (48 * 32) = 42 warps, 10 blocks of 4
        (1024, 32, 0, Occupancy(2, 1.0, "threads")),
        (128, 178, 209316, Occupancy(1, 0.0625, "shared memory")),
        (32, 16, 0, Occupancy(32, 0.5, "blocks")),
        (1024, 128, 0, None),  # does not fit at all
    ],
)
def test_occupancy_of_hopper(threads, registers, shared, expected):
    assert occupancy(threads, registers, shared) == expected


def test_the_command_on_the_toy(derby, small_set):
    code, out, err = derby("explain", "toy_fast", "--root", small_set, "--no-compile", "--json", "--workload", "1000")
    told = json.loads(out)
    assert code == 0 and told["axes"] == {"rows": 1000} and told["time_us"]["total"] == 4.0, err
    assert told["rival"]["solution"] == "toy_baseline" and told["s"] == 0.0075 / 4
    assert "toy_fast: what bounds it" in derby("explain", "toy_fast", "--root", small_set, "--no-compile")[1]
    assert "no solution" in derby("explain", "toy_fats", "--root", small_set)[2]
    with pytest.raises(DerbyError, match="no workload '7'"):
        kernelderby.open(small_set).explain("toy_fast", "7", compiles=False)


def test_code_of_a_solution_runs_behind_the_fences(small_set, tmp_path):
    """It writes only into its cache, sees no secret of the user, and cannot end the command."""
    pytest.importorskip("triton")
    code = f"""
import os, pathlib
for place in ({str(tmp_path / "escaped")!r}, os.environ.get("MY_TOKEN", "unknown") + "-token"):
    try:
        pathlib.Path(place).write_text("x")
    except OSError:
        pass
os._exit(3)
"""
    for path in (small_set / "solutions").rglob("main.py"):
        path.write_text(code)
    before = set(tmp_path.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_TOKEN", str(tmp_path / "seen"))
        answer = kernelderby.open(small_set).explain("toy_fast", "1000")
    assert set(tmp_path.iterdir()) == before and not answer.value.demands
    assert any("the process exited with code 3" in each for each in answer.value.notes), answer.value.notes


def test_a_recording_and_triton_kernels_of_this_set(checkout, monkeypatch):
    """The kernels are those that the shape launches: a block a token and one for each multiprocessor."""
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    answer = kernelderby.open(checkout).explain("triton_compact", "56")
    it = answer.value
    assert [each.kernel for each in it.demands] == ["moe_route", "moe_gemm1", "moe_gemm2", "moe_combine"]
    assert it.demands[0].grid == (56, 1, 1) and it.demands[1].occupancy.limit == "shared memory"
    assert all(24 <= each.registers <= 255 for each in it.demands)
    assert {each["stage"] for each in json.loads(answer.to_json())["stages"]} >= {"K1", "K2", "K3", "K4"}


def test_resources_in_a_cubin_are_what_ptxas_says(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    from kernelderby.measure.certify.cubin import resources_of

    source = tmp_path / "k.cu"
    source.write_text(
        "__global__ void __launch_bounds__(256) k(float* x) { __shared__ float s[256]; s[threadIdx.x] = x[threadIdx.x];"
        " __syncthreads(); x[threadIdx.x] = s[255 - threadIdx.x]; }"
    )
    done = subprocess.run(
        [nvcc, "-arch=sm_90a", "-cubin", "-Xptxas", "-v", "-o", tmp_path / "k.cubin", source],
        capture_output=True,
        text=True,
        check=True,
    )
    [kernel] = resources_of((tmp_path / "k.cubin").read_bytes()).values()
    assert f"Used {kernel.registers} registers" in done.stderr
    assert kernel.threads == 256 and kernel.shared_bytes in (1024, 2048)  # with or without the system's kilobyte


def test_a_set_with_rows_of_a_cpu_alone(small_set, derby):
    """Nobody knows a CPU's limits: the task and the explanation take an H200's and say so."""
    (small_set / "traces/h200").rename(small_set / "traces/cpu")
    [traces] = (small_set / "traces").rglob("*.jsonl")
    traces.write_text(re.sub(r'"hardware": ?"[^"]*"', '"hardware": "CPU"', traces.read_text()))
    opened = kernelderby.open(small_set)
    assert opened.prompt(D).startswith(f"# Task: the fastest `{D}` on NVIDIA H200")
    told = " ".join(str(opened.explain("toy_fast", compiles=False)).split())
    assert "limits of a CPU are not known, so these are an H200's" in told and "not measured" in told


def test_a_word_for_several_shapes_is_answered_with_them(small_set):
    [workloads] = (small_set / "workloads").rglob("*.jsonl")
    first = workloads.read_text().splitlines()[0]
    with workloads.open("a") as file:
        file.write(re.sub(r'("uuid": ?")\w{8}', r"\g<1>00000000", first) + "\n")
    with pytest.raises(DerbyError, match=r"'2' names rows=2 cf66eb2c, rows=2 00000000; give one's uuid"):
        kernelderby.open(small_set).explain("toy_fast", "2", compiles=False)
