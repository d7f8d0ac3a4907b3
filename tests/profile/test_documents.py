"""Documents that people wrote, as they are: a module table with and without its alignment, a copied kernel table."""

import csv
import json
from pathlib import Path

import pytest

from kernelderby.errors import DerbyError
from kernelderby.profile.layers.document import read_document
from kernelderby.profile.layers.table import layer_table
from kernelderby.profile.sources import open_profile
from kernelderby.profile.stages.notes import StatedFigure
from kernelderby.profile.stages.stated import stated_beside
from kernelderby.report.profile.notes import told_warnings

ROOT = Path(__file__).resolve().parents[2]
WHOLE = """# a page

| 层级 | 模块 | Kernel | h800 ds prof | b 200 d1 mtp on |
|------|------|--------|--------------|-----------------|
|      | 端到端 |  | 96ms |  |
|      | 61层执行耗时 |  | 87.32ms | |
| attention层 | self.attn_mqa | mhaSm100fKernel_Qkv | 255 | 225.767 |
| attention层 | self.o_proj | deep_gemm::sm100_fp8_gem | 50 | 43.512 |
| attention层 | sum | | 305 | |
| gate层 |  | nvjet_tst_64x32_64x16_2x4_2 | 6 | |
| moe层 | combine | | 394 | |
"""
# The same with its empty cells dropped, as one copy of such a page had lost them.
SHIFTED = """D4 Profile
| 层级 | 模块 | Kernel | h800 ds prof | b 200 d1 mtp on |
|---|---|---|---|---|
| 端到端 | 96ms | |||
| 61层执行耗时 | 87.32ms | |||
| attention层 | self.attn_mqa | mhaSm100fKernel_Qkv | 255 | 225.767 |
| attention层 | self.o_proj | deep_gemm::sm100_fp8_gem | 50 | 43.512 |
| attention层 | sum | 305 | ||
| gate层 | nvjet_tst_64x32_64x16_2x4_2 | 6 | ||
| moe层 | combine | 394 | ||
"""


@pytest.fixture(params=[WHOLE, SHIFTED], ids=["whole", "shifted"])
def document(request, tmp_path):
    path = tmp_path / "page.txt"
    path.write_text(request.param, encoding="utf-8")
    return path


def test_a_module_table_is_read_as_it_is(document):
    table = layer_table([document], None)
    first, second = table.columns
    assert (first.title, first.gpu, second.gpu) == ("h800 ds prof", "NVIDIA H800", "NVIDIA B200")
    assert first.groups == {"attention": 305, "gate": 6, "moe": 394}
    assert second.groups == {"attention": pytest.approx(269.279)}
    assert sorted(first.lines.values()) == [6, 50, 255, 394]
    [sum_] = [printed for printed in first.printed if printed.group]
    assert (sum_.printed_us, sum_.agrees) == (305, True)
    whole = {printed.what: printed.printed_us for printed in first.printed if not printed.group}
    assert whole == {"端到端": 96_000, "61层执行耗时": 87_320}  # us
    assert [printed.layers for printed in first.printed if not printed.group] == [None, 61]
    kernels = {line[2] for line in table.lines}
    assert {"mhaSm100fKernel_Qkv", "deep_gemm::sm100_fp8_gem", "nvjet_tst_64x32_64x16_2x4_2"} <= kernels


def test_lost_alignment_is_said(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(SHIFTED, encoding="utf-8")
    assert any("5 rows have lost the alignment" in note for note in read_document(path)["notes"])


def test_a_kernel_verb_says_which_verb_reads_it(document):
    with pytest.raises(DerbyError, match="use `derby profile layers`"):
        open_profile(document)


def test_a_cell_that_is_no_time(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(WHOLE.replace("| 255 |", "| 2,55 |"), encoding="utf-8")
    with pytest.raises(DerbyError, match=r"page.md:7: .*decimal comma"):
        layer_table([path], None)


KERNELS = "Time\tTotal Time\tInstances\tAvg\tMed\tMin\tMax\tStdDev\tName\n" + (
    "note.cpp 41.5%\t4.122 s\t64\t64.406 ms\t64.261 ms\t52.275 ms\t69.005 ms\t2.800 ms\t"
    "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_tn\n"
)


def test_every_printed_column_comes_out_in_every_form(derby, tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(KERNELS + "\nH200 needs sm_90, so build again\n", encoding="utf-8")
    code, out, _ = derby("profile", "kernels", path, "--format", "csv")
    [row] = csv.DictReader(out.splitlines())
    figures = {name: float(row[name]) for name in ("total_ns", "median_ns", "min_ns", "max_ns", "stddev_ns")}
    assert code == 0 and figures == {
        "total_ns": 4.122e9,
        "median_ns": 64.261e6,
        "min_ns": 52.275e6,
        "max_ns": 69.005e6,
        "stddev_ns": 2.8e6,
    }
    _, out, _ = derby("profile", "kernels", path, "--json")
    assert json.loads(out)["profiles"][0]["rows"][0]["stddev_ns"] == 2.8e6
    for form in ("text", "markdown"):
        _, out, _ = derby("profile", "kernels", path, "--format", form)
        assert all(figure in out for figure in ("64261", "52275", "69005", "2800")), form


def test_the_gpu_that_the_text_names_gives_the_finding(derby, tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(KERNELS + "\nH200 needs sm_90, so build again\n", encoding="utf-8")
    _, out, _ = derby("profile", "kernels", path)
    assert "NVIDIA H200" in out and "older architecture" in out and "sm_80" in out
    path.write_text(KERNELS + "\nan H200 and a B200\n", encoding="utf-8")  # two: no guess
    assert open_profile(path).gpu is None


def test_the_committed_table_tells_its_finding_without_a_flag(derby):
    _, out, _ = derby("profile", "kernels", ROOT / "profiles" / "sglang_llama_h200.csv", "--json")
    [older] = [each for each in json.loads(out)["profiles"][0]["findings"] if each["kind"] == "older architecture"]
    assert older["share"] == pytest.approx(0.895, abs=5e-4) and "sm_90 GPU (NVIDIA H200)" in older["what"]


def test_a_misspelt_field_of_stated_figures_is_one_line_with_the_mend(tmp_path):
    (tmp_path / "a.toml").write_text('[[stated]]\nwhat = "copies"\nseconts = 2.48\n')
    with pytest.raises(DerbyError, match=r"a\.toml: stated\[0\]\.seconts: is no field; did you mean seconds\?$"):
        stated_beside(tmp_path / "a.csv")


def test_what_the_published_profile_states_of_the_rest():
    stated = stated_beside(ROOT / "profiles" / "triton_fused_v2_b200.csv")
    elementwise, copies, waiting = told_warnings(StatedFigure(entry, 1949) for entry in stated.stated)
    assert "25.8 + 18.7 + 15.7 = 60.2 % of the GPU kernel time" in elementwise
    assert "7.6 TB in 2.48 s (3.06 TB/s), 3.9 GB an invocation" in copies
    assert "41.4 s, 72 % of the CUDA API time, which is 57.5 s in all" in waiting
