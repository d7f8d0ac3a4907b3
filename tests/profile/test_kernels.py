"""The kernel summary: sums worked out by hand, and what must hold of any summary."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelderby.cli import derby
from kernelderby.profile.kernels.attribution import Role
from kernelderby.profile.kernels.summary import NOT_TOLD, summarise
from kernelderby.profile.spans import KernelSum, Profile, SpanKind
from kernelderby.report import text
from kernelderby.report.profile.kernels import kernels_report

DATA = Path(__file__).parents[2] / "profiles" / "sglang_llama_h200.csv"
GEMVX = (
    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float, (int){}, "
    "cublasGemvParamsEx<int>>(T13)"
)


class Sums(Profile):
    def __init__(self, sums, **options):
        super().__init__(Path("made.csv"), "made by hand", **options)
        self._sums = sums

    def sums(self):
        return self._sums


def kernel(name, total_us, instances=1, **statistics):
    return KernelSum(SpanKind.KERNEL, name, instances, total_us * 1e3, **statistics)


# 600 + 250 + 100 + 50 = 1000 us of kernels, 30 us of copies
SUMS = [
    kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", 600, 2, median_ns=300e3),
    kernel("void flashinfer::norm::RMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *)", 250, 10),
    kernel("nvjet_tst_64x32_64x16_2x4_2cta_h_bz_TNT", 100, 4),
    kernel("Mystery<int>(T1)", 50, 5),
    KernelSum(SpanKind.MEMCPY, "[CUDA memcpy Device-to-Device]", 3, 30e3, bytes=3e6),
]


def test_sums_by_hand():
    table = summarise(Sums(SUMS, gpu="NVIDIA H200"))
    assert table.total_ns == 1000e3 and table.memory_ns == 30e3
    assert [round(row.share, 6) for row in table.rows] == [0.6, 0.25, 0.1, 0.05]
    assert table.rows[0].average_ns == 300e3 and table.rows[0].median_ns == 300e3
    assert {total.key: total.total_ns for total in table.by_library} == {
        "cuBLAS": 700e3,
        "FlashInfer": 250e3,
        "unknown": 50e3,
    }
    assert {total.key: (total.total_ns, total.instances, total.names) for total in table.by_role} == {
        "GEMM": (700e3, 6, 2),
        "norm": (250e3, 10, 1),
        "unknown": (50e3, 5, 1),
    }
    assert {total.key: total.total_ns for total in table.by_architecture} == {
        "sm_80": 600e3,
        "sm_100": 100e3,
        NOT_TOLD: 300e3,
    }
    assert {total.key: total.total_ns for total in table.by_dtype} == {"bfloat16": 950e3, NOT_TOLD: 50e3}
    assert (table.unknown.names, table.unknown.instances, table.unknown.total_ns) == (1, 5, 50e3)
    assert table.memory[0].role is Role.MEMCPY and table.memory[0].share == 1.0 and table.memory[0].bytes == 3e6


def test_the_rest_is_summed_never_dropped():
    table = summarise(Sums(SUMS))
    first, rest = table.top(1)
    assert len(first) == 1 and (rest.key, rest.total_ns, rest.instances) == ("3 more kernels", 400e3, 19)
    assert table.top(4)[1] is None and table.top(None)[1] is None
    for count in range(1, 6):
        first, rest = table.top(count)
        assert sum(row.total_ns for row in first) + (rest.total_ns if rest else 0) == table.total_ns


def test_kernels_with_one_short_name_stay_apart():
    table = summarise(Sums([kernel(GEMVX.format(7), 10), kernel(GEMVX.format(6), 20), kernel("nvjet_tst_1", 5)]))
    assert [row.short_name for row in table.rows] == [
        "gemvx::kernel<bf16, float> #1",
        "gemvx::kernel<bf16, float> #2",
        "nvjet_tst_1",
    ]
    assert len({row.name for row in table.rows}) == 3


def test_nothing_to_sum():
    table = summarise(Sums([]))
    assert table.total_ns == 0 and table.rows == () and table.by_role == ()
    text.render(kernels_report(table, []))
    zero = summarise(Sums([kernel("nvjet_tst_1", 0, 0)]))
    assert zero.rows[0].share == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_properties(seed):
    """Shares sum to 1, every grouping adds up to the total, known + unknown = total, order does not matter."""
    numbers = random.Random(seed)
    names = [
        "ampere_sgemm_128x64_nn",
        "Foo",
        "Bar<int>",
        "triton_poi_fused_mul_0",
        "nvjet_hsh_1",
        "swiglu_kernel",
        "void vllm::rms_norm_kernel<c10::Half>(T1 *)",
    ]
    sums = [
        kernel(f"{name}{number}", numbers.randint(1, 10**6), numbers.randint(1, 99))
        for number, name in enumerate(names * 4)
    ]
    table = summarise(Sums(sums))
    numbers.shuffle(sums)
    assert summarise(Sums(sums)) == table
    assert sum(row.share for row in table.rows) == pytest.approx(1)
    for totals in (table.by_library, table.by_role, table.by_dtype, table.by_architecture):
        assert sum(total.total_ns for total in totals) == pytest.approx(table.total_ns)
        assert sum(total.share for total in totals) == pytest.approx(1)
        assert sum(total.names for total in totals) == len(sums)
        assert sum(total.instances for total in totals) == sum(each.instances for each in sums)
    known = table.total_of("known", lambda row: row.library != "unknown")
    assert known.total_ns + table.unknown.total_ns == pytest.approx(table.total_ns)


def test_report_shows_guesses_unknown_and_the_rest():
    table = summarise(Sums([*SUMS, kernel("compute_arg_sorts", 40)], warnings=["three rows were skipped"]))
    shown = text.render(kernels_report(table, [], top=4), width=250)
    assert "sgl-kernel?" not in shown  # the fifth kernel is in the rest
    assert "1 more kernel " in shown and "three rows were skipped" in shown
    assert "unknown: 1 kernel, 4.8% of the time; library guessed: 1 kernel, 3.8%" in shown
    assert "sgl-kernel?" in text.render(kernels_report(table, []), width=250)


# --- the command ---


def run(*arguments):
    return CliRunner().invoke(
        derby, ["profile", "kernels", *map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "200"}
    )


def test_command_on_the_documents_table():
    result = run(DATA, "--gpu", "h200", "--top", "3")
    assert result.exit_code == 0
    assert "66 kernels, 21937 launches, 9936.3 ms" in result.output
    assert "63 more kernels" in result.output
    assert "90% of the kernel time runs kernels for sm_80 on an sm_90 GPU (NVIDIA H200)" in result.output


def test_command_json_has_every_kernel_with_its_full_name():
    result = run(DATA, "--json")
    profile = json.loads(result.output)["profiles"][0]
    assert len(profile["rows"]) == 66 and profile["unknown"]["names"] == 0
    assert any(row["name"].startswith("void at::native::elementwise_kernel<(int)128") for row in profile["rows"])
    assert sum(row["share"] for row in profile["rows"]) == pytest.approx(1)
    assert "sums only" in " ".join(profile["notes"]) and profile["gpu"] == "NVIDIA H200"  # the file's text names it


def test_command_csv_has_full_names_and_all_rows():
    result = run(DATA, "--format", "csv")
    assert result.output.count("void at::native::vectorized_elementwise_kernel<") > 15
    assert "more kernels" not in result.output


@pytest.mark.parametrize("gpu", ["MI300X", "gfx942", "H100 PCIe"])
def test_a_gpu_without_peaks_will_do(gpu):
    assert f" · {gpu} · " in run(DATA, "--gpu", gpu).output.splitlines()[1]


def test_unknown_gpu_is_an_error_that_names_the_known_ones():
    with pytest.raises(Exception, match="--gpu: .* has no 'h2000'; did you mean .*h200"):
        run(DATA, "--gpu", "h2000")
