"""Findings: each from numbers worked out by hand, and its silence below the threshold."""

from pathlib import Path

import pytest

from kernelderby.profile.kernels.findings import Severity, findings
from kernelderby.profile.kernels.summary import summarise
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import ApiSum, KernelSum, Profile, Span, SpanKind
from kernelderby.profile.timeline import TimelineBuilder
from kernelderby.report.profile.findings import told_finding

DATA = Path(__file__).parents[2] / "profiles" / "sglang_llama_h200.csv"
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)], at::native::memory::LoadWithCast"
    "<(int)1>>(int, T1)"
)
AMPERE, HOPPER, NVJET = "ampere_bf16_s16816gemm_bf16_tn", "sm90_xmma_gemm_bf16bf16_bf16f32_f32", "nvjet_tst_64x32"
NORM = "void flashinfer::norm::RMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *)"


class Sums(Profile):
    def __init__(self, sums, gpu="NVIDIA H200"):
        super().__init__(Path("made.csv"), "made by hand", gpu=gpu)
        self._sums = sums

    def sums(self):
        return self._sums


def table(times, gpu="NVIDIA H200", copies=()):
    """times: name -> us, or (us, instances, median us)."""
    sums = []
    for name, given in times.items():
        total, instances, median = given if isinstance(given, tuple) else (given, 1, None)
        sums.append(KernelSum(SpanKind.KERNEL, name, instances, total * 1e3, median_ns=median and median * 1e3))
    sums += [KernelSum(SpanKind.MEMCPY, name, 1, total * 1e3, bytes=size) for name, total, size in copies]
    return summarise(Sums(sums, gpu))


def kinds(found):
    return {finding.kind: told_finding(finding) for finding in found}


def test_older_architecture_on_a_newer_gpu():
    found = kinds(findings(table({AMPERE: 300, NVJET: 100, NORM: 600})))["older architecture"]
    assert found.severity is Severity.HIGH and found.share == pytest.approx(0.3)
    assert found.evidence["total ms"] == pytest.approx(0.3) and found.evidence["kernels"] == 1
    assert found.kernels == (AMPERE,)
    assert "sm_80 on an sm_90 GPU (NVIDIA H200)" in found.what and "libcublas" in found.advice


@pytest.mark.parametrize(
    "times, gpu",
    [
        ({AMPERE: 300, NORM: 600}, "NVIDIA A100-SXM4-80GB"),  # its own architecture
        ({HOPPER: 300, NORM: 600}, "NVIDIA H200"),
        ({NVJET: 300, NORM: 600}, "NVIDIA B200"),  # sm_90 or later: not older
        ({AMPERE: 300, NORM: 600}, None),
        ({AMPERE: 300, NORM: 600}, "NVIDIA Imaginary 1"),  # an unknown GPU is no guess
        ({AMPERE: 5, NORM: 995}, "NVIDIA H200"),  # half a percent
    ],
)
def test_no_older_architecture(times, gpu):
    assert "older architecture" not in kinds(findings(table(times, gpu)))


def test_hopper_kernels_are_older_on_blackwell():
    found = kinds(findings(table({HOPPER: 300, NORM: 600}, "NVIDIA B200")))
    assert "sm_90 on an sm_100 GPU" in found["older architecture"].what


def test_gemm_dominance_and_its_bound():
    found = kinds(findings(table({NVJET: 500, "fused_moe_kernel": 300, NORM: 200})))["GEMM dominance"]
    assert found.share == pytest.approx(0.8)
    assert found.evidence["bound without everything else"] == "1.25x"  # 1 / 0.8
    assert found.evidence["largest share"] == pytest.approx(0.5)
    assert "GEMM dominance" not in kinds(findings(table({NVJET: 500, NORM: 500})))


def test_gather_and_scatter():
    found = kinds(findings(table({"void shuffleRowsKernel<float>(const T1 *)": 80, NORM: 920})))
    assert found["gather and scatter"].share == pytest.approx(0.08)
    assert found["gather and scatter"].severity is Severity.MEDIUM


def test_copies_hidden_in_kernels_are_found():
    found = kinds(findings(table({COPY: 50, NORM: 950})))["hidden copies"]
    assert found.share == pytest.approx(0.05) and found.evidence["of these casts ms"] == pytest.approx(0.05)
    assert ".transpose().contiguous()" in found.advice
    assert "hidden copies" not in kinds(findings(table({COPY: 5, NORM: 995})))


def test_copies_by_direction_with_bandwidth():
    """2.4e9 bytes in 1 ms, each read and written: 4.8e12 bytes/s, the whole bandwidth of an H200."""
    found = kinds(
        findings(
            table(
                {NORM: 8000},
                copies=[("[CUDA memcpy Device-to-Device]", 1000, 2.4e9), ("[CUDA memcpy DtoH]", 1000, 1e6)],
            )
        )
    )
    inside = found["copies device to device"]
    assert inside.share == pytest.approx(0.1) and inside.severity is Severity.HIGH
    assert inside.evidence["GB/s"] == pytest.approx(2400)
    assert inside.evidence["of the memory bandwidth"] == pytest.approx(1.0)
    assert found["copies device to host"].evidence["GB"] == pytest.approx(1e-3)
    assert "copies host to device" not in found


def test_synchronisation_share_of_the_api_time():
    """The published B200 profile: 41.4 s of waiting are 72 % of the API time."""
    api = [ApiSum("cudaStreamSynchronize_v3020", 1000, 41.4e9), ApiSum("cudaLaunchKernel_v7000", 9000, 16.1e9)]
    found = kinds(findings(table({NORM: 1}), api))["synchronisation"]
    assert found.share == pytest.approx(0.72) and found.severity is Severity.MEDIUM
    assert found.evidence["calls"] == 1000 and found.evidence["us a call"] == pytest.approx(41400)
    quiet = [ApiSum("cudaStreamSynchronize", 1, 1e9), ApiSum("cudaLaunchKernel", 9, 9e9)]
    assert "synchronisation" not in kinds(findings(table({NORM: 1}), quiet))


def spans(*times, device=0):
    return [Span(SpanKind.KERNEL, "k", start * 1000, end * 1000, device=device) for start, end in times]


def timelines(given):
    builder = TimelineBuilder(Sums([]))
    for span in given:
        builder.take(span)
    return builder.timelines()


def test_launch_gaps_by_hand():
    """Kernels of 10 us; gaps of 2, 10 and 20 us, then a pause of 2000 us: late are two, of 30 us in 92 us."""
    given = timelines(spans((0, 10), (12, 22), (32, 42), (62, 72), (2072, 2092)))
    gaps = kinds(findings(table({NORM: 50}), (), given))["launch gaps"]
    assert gaps.evidence["gaps above 5 us"] == 2 and gaps.evidence["their total ms"] == pytest.approx(0.03)
    assert gaps.evidence["gaps"] == 4 and gaps.evidence["median gap us"] == pytest.approx(15)
    assert gaps.evidence["pauses above 1 ms"] == 1 and gaps.evidence["busy ms"] == pytest.approx(0.06)
    assert gaps.share == pytest.approx(30 / 92)


def test_overlap_and_back_to_back_are_no_gaps():
    given = timelines(spans((0, 100), (10, 20), (90, 130), (130, 140)))
    assert given[0].gaps == 0 and given[0].busy_ns == 140_000
    assert "launch gaps" not in kinds(findings(table({NORM: 1}), (), given))


def test_average_far_above_median():
    found = kinds(findings(table({NORM: (1000, 10, 5.0), NVJET: (1000, 10, 50.0)})))["average far above median"]
    assert found.kernels == (NORM,)  # 100 us against 5 us; the other is 100 against 50
    assert found.evidence["average over median"] == pytest.approx(20)
    assert "average far above median" not in kinds(findings(table({NORM: (1000, 3, 5.0)})))  # three launches


def test_the_documents_findings():
    """profiles/sglang_llama_h200.csv: Ampere GEMMs on an H200 come first; activation and norm are two phases in one."""
    found = findings(summarise(open_profile(DATA), "NVIDIA H200"))
    assert found[0].kind == "older architecture" and found[0].share == pytest.approx(0.895, abs=0.001)
    skewed = [finding.rows[0].name for finding in found if finding.kind == "average far above median"]
    assert len(skewed) == 4
    assert any("act_and_mul_kernel" in name for name in skewed)
    assert any("FusedAddRMSNormKernel" in name for name in skewed)


def test_severest_first_and_every_finding_is_complete():
    found = findings(
        table({AMPERE: 300, COPY: 30, NORM: 300, "void shuffleRowsKernel<float>(T1)": 60}),
        [ApiSum("cudaDeviceSynchronize", 1, 9e9)],
    )
    order = [list(Severity).index(finding.severity) for finding in found]
    assert order == sorted(order) and len(found) >= 4
    for finding in found:
        told = told_finding(finding)
        assert told.what and told.advice and told.evidence
        assert 0 <= finding.share <= 1 + 1e-9
