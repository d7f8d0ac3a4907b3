"""hardware: every file is whole, and only an exact name finds a GPU."""

import re
from pathlib import Path

import pytest

import kernelderby.hardware
from kernelderby.errors import DerbyError
from kernelderby.hardware import TRAFFIC_KINDS, find_gpu, gpu_id, gpus, read_gpu
from kernelderby.hardware.families import amd_architecture_of, compute_capability_of


@pytest.mark.parametrize("gpu", gpus().values(), ids=list(gpus()))
def test_every_file_is_whole_and_in_si_units(gpu):
    assert gpu.names and gpu.source and gpu.date.count("-") == 1
    assert 5e11 < gpu.memory_bytes_per_second < 2e13
    assert all(1e13 < rate < 2e16 for rate in gpu.flops_per_second.values())
    assert gpu.l2_bytes is None or gpu.l2_bytes % 2**20 == 0
    assert gpu.compute_capability is None or gpu.compute_capability.count(".") == 1


@pytest.mark.parametrize("gpu", gpus().values(), ids=list(gpus()))
def test_peaks_are_dense(gpu):
    """Halving the bits doubles the rate on these tensor cores; a figure with sparsity would break the ratio."""
    rates = gpu.flops_per_second
    for wide, narrow in (("bfloat16", "float8_e4m3fn"), ("float16", "int8"), ("float8_e4m3fn", "float4_e2m1")):
        if wide in rates and narrow in rates:
            assert rates[narrow] / rates[wide] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(
    "name, capability",
    [
        ("NVIDIA A100-PCIE-40GB", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A10G", "8.6"),
        ("NVIDIA H100 PCIe", "9.0"),
        ("NVIDIA H100 NVL", "9.0"),
        ("NVIDIA H20-3e", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("NVIDIA GB200", "10.0"),
        ("NVIDIA B300 SXM6 AC", "10.3"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA L4", "8.9"),
        ("NVIDIA GeForce RTX 4090", "8.9"),
        ("NVIDIA GeForce RTX 5090", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("NVIDIA RTX A6000", "8.6"),
        ("Tesla T4", "7.5"),
        ("Tesla V100-SXM2-32GB", "7.0"),
        ("AMD Instinct MI300X", None),
        ("Some Accelerator 3", None),
    ],
)
def test_compute_capability_by_family(name, capability):
    assert compute_capability_of(name) == capability


def test_amd_names_give_their_architecture():
    assert [amd_architecture_of(f"AMD Instinct {name}") for name in ("MI300X", "MI355X", "MI250X")] == [
        "gfx942",
        "gfx950",
        "gfx90a",
    ]
    assert amd_architecture_of("gfx1201") == "gfx1201"
    assert amd_architecture_of("NVIDIA H200") is None


def test_the_h200_is_found_by_every_name():
    gpu = find_gpu("h200")
    assert gpu is find_gpu("NVIDIA H200") is find_gpu("nvidia h200 ")
    assert (gpu.memory_bytes_per_second, gpu.flops_per_second["float8_e4m3fn"]) == (4.8e12, 1979e12)
    assert (gpu.compute_capability, gpu.l2_bytes) == ("9.0", 60 * 2**20)


def test_every_gpu_that_must_be_there_is():
    assert {"h20", "xpu-a", "h800", "h100", "h200", "b200"} <= set(gpus())


def test_measured_ceilings_stay_below_the_vendor_s_peaks():
    """They were read on the machine, and stand beside the peaks, never instead of them."""
    gpu = find_gpu("h200")
    assert (gpu.measured.memory_bytes_per_second, gpu.measured.date) == (4.699e12, "2026-11-22")
    assert gpu.measured.flops_per_second == {"float8_e4m3fn": 1666.8e12, "bfloat16": 858.7e12}
    for each in gpus().values():
        if each.measured:
            assert each.measured.memory_bytes_per_second < each.memory_bytes_per_second
            assert all(rate < each.flops_per_second[dtype] for dtype, rate in each.measured.flops_per_second.items())
            assert all(rate < each.memory_bytes_per_second for rate in each.measured.traffic_bytes_per_second.values())
            assert all(0 < us < 100 for us in each.measured.empty_kernel_us.values())


MORE = """
[measured.traffic_bytes_per_second]
read = 4.4e12
mixed = 4.1e12

[measured.empty_kernel_us]
eager = 2.5
graph = 1.5
"""


def without_the_optional_tables():
    text = (Path(kernelderby.hardware.__file__).parent / "gpus" / "h200.toml").read_text()
    return re.sub(r"\[measured\.(traffic_bytes_per_second|empty_kernel_us)\][^\[]*", "", text)


def test_ceilings_by_kind_of_traffic_and_the_empty_kernel_are_optional(tmp_path):
    assert find_gpu("h200").measured.traffic_bytes_per_second.keys() <= set(TRAFFIC_KINDS)
    plain = without_the_optional_tables()
    (tmp_path / "gpu.toml").write_text(plain)
    assert read_gpu(tmp_path / "gpu.toml").measured.empty_kernel_us == {}
    (tmp_path / "gpu.toml").write_text(plain + MORE)
    measured = read_gpu(tmp_path / "gpu.toml").measured
    assert measured.traffic_bytes_per_second == {"read": 4.4e12, "mixed": 4.1e12}
    assert measured.empty_kernel_us == {"eager": 2.5, "graph": 1.5}


@pytest.mark.parametrize("old, new", [("read =", "reads ="), ("eager =", "cold =")])
def test_a_kind_of_ceiling_that_is_none_is_named(tmp_path, old, new):
    (tmp_path / "gpu.toml").write_text(without_the_optional_tables() + MORE.replace(old, new))
    with pytest.raises(DerbyError, match=rf"measured\.\w+: {new.split()[0]}: none of "):
        read_gpu(tmp_path / "gpu.toml")


def test_a_gpu_at_its_ceilings_keeps_the_peak_of_what_was_not_measured():
    gpu = find_gpu("h200").at_ceilings()
    assert (gpu.id, gpu.memory_bytes_per_second) == ("h200", 4.699e12)
    assert (gpu.flops_per_second["bfloat16"], gpu.flops_per_second["float32"]) == (858.7e12, 67e12)
    assert find_gpu("b200").at_ceilings() is None


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H100 80GB HBM2e", "NVIDIA GeForce RTX 4090", "H2", ""])
def test_a_name_that_only_looks_alike_is_unknown(name):
    assert find_gpu(name) is None


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("AMD Instinct MI300X", "amd-instinct-mi300x"),
        ("../..", "unknown"),
    ],
)
def test_every_gpu_has_a_folder_name(name, folder):
    assert gpu_id(name) == folder


def test_no_name_belongs_to_two_gpus():
    names = [name for gpu in gpus().values() for name in {known.casefold() for known in (gpu.id, *gpu.names)}]
    assert len(names) == len(set(names))
