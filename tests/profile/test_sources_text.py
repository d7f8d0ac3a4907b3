"""Summaries as text: `nsys stats` in its formats and ages, the GUI's copied table, Markdown pages, other locales."""

import gzip
import json
import random

import pytest

from kernelderby.errors import DerbyError
from kernelderby.profile.sources import open_profile
from kernelderby.profile.sources.cells import CellError, columns_of, count, quantity
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.spans import SpanKind

KERN = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
CSV = f"""Generating SQLite file report.sqlite from report.nsys-rep
NOTICE: Existing SQLite export found: report.sqlite
Processing [report.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/nvtx_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
100.0,900,3,300.0,300.0,300,300,0.0,PushPop,:step

Processing [report.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_api_sum.py]...
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,9000,3,3000.0,3000.0,3000,3000,0.0,cudaDeviceSynchronize
10.0,1000,4,250.0,250.0,200,300,50.0,cudaLaunchKernel

Processing [report.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_gpu_kern_sum.py]...
{KERN}
75.0,600,3,200.0,190.0,180,230,26.5,"void gemm<(int)128, float>(T2 *, ""x"")"
25.0,200,1,200.0,200.0,200,200,0.0,softmax_kernel

Processing [report.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_gpu_mem_time_sum.py]...
Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,70,2,35.0,35.0,30,40,7.1,[CUDA memcpy HtoD]

Processing [report.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_gpu_mem_size_sum.py]...
Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
8.389,2,4.194,4.194,4.194,4.194,0.000,[CUDA memcpy HtoD]

Processing [report.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/um_sum.py]...
SKIPPED: report.sqlite does not contain CUDA Unified Memory CPU page faults data.
"""
GEMM = 'void gemm<(int)128, float>(T2 *, "x")'
PLAIN = """ ** CUDA API Summary (cuda_api_sum):

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)          Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  ---------------------
     90.0            9,000          3   3,000.0   3,000.0     3,000     3,000          0.0  cudaDeviceSynchronize

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances   Avg (ns)   Med (ns)  Min (ns)   Max (ns)  StdDev (ns)     Name
 --------  ---------------  ---------  ---------  ---------  --------  ---------  -----------  ------------------
     95.0        2,469,134          2  1,234,567  1,234,567   900,000  1,569,134          0.0  gemm<128,  float>
      5.0              100      1,000        0.1        0.1         0          1          0.3  softmax_kernel

"""


def write(tmp_path, text, name="profile.txt", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def named(profile):
    return {each.name: each for each in profile.sums()}


def test_several_reports_in_one_csv(tmp_path):
    profile = open_profile(write(tmp_path, CSV))
    sums = named(profile)
    assert list(sums) == [GEMM, "softmax_kernel", "[CUDA memcpy Host-to-Device]"]
    gemm, copy = sums[GEMM], sums["[CUDA memcpy Host-to-Device]"]
    assert (gemm.kind, gemm.instances, gemm.total_ns, gemm.median_ns) == (SpanKind.KERNEL, 3, 600, 190)
    assert (gemm.min_ns, gemm.max_ns, gemm.stddev_ns, gemm.bytes) == (180, 230, 26.5, None)
    assert (copy.kind, copy.instances, copy.total_ns, copy.bytes) == (SpanKind.MEMCPY, 2, 70, 8_389_000)
    assert [(each.name, each.calls, each.total_ns) for each in profile.api_sums()] == [
        ("cudaDeviceSynchronize", 3, 9000),
        ("cudaLaunchKernel", 4, 1000),
    ]
    assert profile.warnings == ["not read: nvtx_sum"]
    assert not profile.has_events and profile.form == "summary, CSV"


@pytest.mark.parametrize(
    "written,name",
    [
        ('"f<1, "x">(T1 *)"', 'f<1, "x">(T1 *)'),  # as nsys 2025.3 writes it
        ('"f<"x">(T1 *)"', 'f<"x">(T1 *)'),
        ('"f<1, ""x"">(T1 *)"', 'f<1, "x">(T1 *)'),  # as CSV is written
        ('"f<1, 2>"', "f<1, 2>"),
        ('f<"x">', 'f<"x">'),
    ],
)
def test_quotes_in_names(tmp_path, written, name):
    text = f"{KERN}\n75.0,600,3,200.0,190.0,180,230,26.5,{written}\n"
    assert open_profile(write(tmp_path, text)).sums()[0].name == name


def test_sums_have_no_spans_and_say_what_has(tmp_path):
    with pytest.raises(DerbyError, match="sums only.*nsys export --type sqlite"):
        open_profile(write(tmp_path, CSV)).spans()


def test_the_plain_table_with_thousands_separators(tmp_path):
    profile = open_profile(write(tmp_path, PLAIN))
    sums = named(profile)
    assert sums["gemm<128,  float>"].total_ns == 2_469_134 and sums["gemm<128,  float>"].max_ns == 1_569_134
    assert sums["softmax_kernel"].instances == 1000
    assert profile.api_sums()[0].total_ns == 9000 and profile.form == "summary, text"


def test_a_plain_table_out_of_line_is_refused(tmp_path):
    with pytest.raises(DerbyError, match="txt:11: a value runs over the column"):
        open_profile(write(tmp_path, PLAIN.replace("  1,569,134 ", "1,569,134,000 ")))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_from_windows(tmp_path, encoding):
    text = CSV.replace("\n", "\r\n")
    assert named(open_profile(write(tmp_path, text, encoding=encoding)))[GEMM].total_ns == 600


def test_gzipped(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(CSV.encode()))
    assert named(open_profile(path))[GEMM].total_ns == 600


def test_tsv(tmp_path):
    rows = f"{KERN.replace(',', chr(9))}\n75.0\t600\t3\t200.0\t190.0\t180\t230\t26.5\tvoid f<1, 2>()\n"
    assert named(open_profile(write(tmp_path, rows)))["void f<1, 2>()"].instances == 3


def test_json(tmp_path):
    """As nsys 2023.4 prints it: a list a table, under the line that names the report."""

    def table(report, *rows):
        lines = json.dumps([dict(row) for row in rows], indent=2)
        return f"Processing [a.sqlite] with [/opt/x/reports/{report}.py]... \n{lines}\n\n"

    times = {"Time (%)": 1.0, "Total Time (ns)": 600, "Instances": 3, "Avg (ns)": 200.0, "Med (ns)": 190.0}
    kernels = table("cuda_gpu_kern_sum", {**times, "Name": GEMM}, {**times, "Med (ns)": None, "Name": "[b] {k}"})
    text = table("nvtx_sum", {"Total Time (ns)": 5, "Instances": 1, "Range": ":r"}) + kernels
    sizes = table("cuda_gpu_mem_size_sum", {"Total (MB)": 8.5, "Count": 2, "Operation": "[CUDA memcpy HtoD]"})
    calls = table("cuda_api_sum", {"Total Time (ns)": 7, "Num Calls": 2, "Name": "cudaFree"})
    profile = open_profile(write(tmp_path, text + sizes + calls, "a.json"))
    found = {each.name: (each.instances, each.total_ns, each.median_ns) for each in profile.sums()}
    assert found == {GEMM: (3, 600, 190.0), "[b] {k}": (3, 600, None)}
    assert [(each.name, each.calls) for each in profile.api_sums()] == [("cudaFree", 2)]
    alone = kernels.split("\n", 1)[1]
    assert open_profile(write(tmp_path, alone, "b.json")).sums() == profile.sums()


def test_rocprofs_statistics(tmp_path):
    head = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
    kernel = '"Cijk_Alik_Bljk_BBS",10,12340,1234.000000,60.0,1000,2000,12.3\n'
    (each,) = open_profile(write(tmp_path, head + kernel)).sums()
    assert (each.instances, each.total_ns, each.min_ns, each.max_ns) == (10, 12340, 1000, 2000)
    with pytest.raises(DerbyError, match="no kernels in it"):
        open_profile(write(tmp_path, head + '"hipLaunchKernel",10,12340,1234.0,60.0,1000,2000,12.3\n'))


def test_names_of_2021_and_headers_without_units(tmp_path):
    text = """Processing [a.sqlite] with [/opt/nvidia/nsight-systems/2021.1/reports/gpukernsum.py]...
Time(%),Total Time,Instances,Average,Minimum,Maximum,Name
100.0,600,3,200.0,180,230,k
"""
    (each,) = open_profile(write(tmp_path, text)).sums()
    assert (each.total_ns, each.min_ns, each.max_ns, each.median_ns) == (600, 180, 230, None)


@pytest.mark.parametrize("unit,scale", [("ns", 1), ("us", 1e3), ("usec", 1e3), ("ms", 1e6), ("s", 1e9), ("sec", 1e9)])
def test_units_in_headers(tmp_path, unit, scale):
    text = f"{KERN.replace('(ns)', f'({unit})')}\n100.0,1234.500,2,617.250,617.250,600.000,634.500,1.000,k\n"
    (each,) = open_profile(write(tmp_path, text)).sums()
    assert each.total_ns == pytest.approx(1234.5 * scale) and each.max_ns == pytest.approx(634.5 * scale)


def test_columns_are_found_by_title_not_by_place(tmp_path):
    text = "Name,Instances,Extra,Total Time (ns)\nk,3,hello,600\n"
    (each,) = open_profile(write(tmp_path, text)).sums()
    assert (each.name, each.instances, each.total_ns, each.median_ns) == ("k", 3, 600, None)


def test_comment_lines_and_an_average_without_a_total(tmp_path):
    text = "# source: by hand\n# gpu: NVIDIA B200\nName,Instances,Avg (us)\nk,4,2.5\n"
    profile = open_profile(write(tmp_path, text))
    assert profile.sums()[0].total_ns == 10_000 and profile.gpu == "NVIDIA B200"


def test_kernels_by_grid_are_added_up_where_they_stand_alone(tmp_path):
    header = KERN.replace("Name", "GridXYZ,BlockXYZ,Name")
    rows = (
        "60.0,600,3,200.0,200.0,180,230,26.5,  1 1 1, 64 1 1,k\n40.0,400,1,400.0,400.0,400,400,0.0,  2 1 1, 64 1 1,k\n"
    )
    (each,) = open_profile(write(tmp_path, f"{header}\n{rows}")).sums()
    assert (each.instances, each.total_ns, each.median_ns, each.min_ns, each.max_ns) == (4, 1000, None, 180, 400)
    both = f"{header}\n{rows}\n{KERN}\n100.0,1000,4,250.0,210.0,180,400,99.0,k\n"
    (each,) = open_profile(write(tmp_path, both)).sums()
    assert (each.instances, each.total_ns, each.median_ns) == (4, 1000, 210)


def test_rows_of_one_name_stay_apart_and_are_told(tmp_path):
    """nsys prints long names cut to the width of a text table, so two kernels may look alike."""
    text = (
        f"{KERN}\n75.0,600,3,200.0,190.0,180,230,26.5,void gemm<128, fl...\n"
        "25.0,200,1,200.0,200.0,200,200,0.0,void gemm<128, fl...\n"
    )
    text = text.replace("void gemm<128, fl...", '"void gemm<128, fl..."')
    profile = open_profile(write(tmp_path, text, "cut.csv"))
    one, other = profile.sums()
    assert [(each.instances, each.total_ns, each.median_ns) for each in (one, other)] == [(3, 600, 190), (1, 200, 200)]
    assert (one.name, other.name) == ("void gemm<128, fl...", "void gemm<128, fl... (line 3)")
    assert profile.warnings == [
        "2 kernels have 1 names: the names were cut off, and rows of one name are told apart by their line; "
        "export with `nsys stats --format csv`, which prints them whole"
    ]


def test_the_report_of_everything_is_split_by_its_category(tmp_path):
    text = (
        KERN.replace("Name", "Category,Operation")
        + """
50.0,500,1,500.0,500.0,500,500,0.0,CUDA_API,cudaLaunchKernel
30.0,300,1,300.0,300.0,300,300,0.0,CUDA_KERNEL,k
20.0,200,1,200.0,200.0,200,200,0.0,MEMORY_OPER,[CUDA memset]
"""
    )
    profile = open_profile(write(tmp_path, text))
    assert [(each.kind, each.total_ns) for each in profile.sums()] == [(SpanKind.KERNEL, 300), (SpanKind.MEMSET, 200)]
    assert [each.name for each in profile.api_sums()] == ["cudaLaunchKernel"]


def test_os_calls_without_a_report_name_are_not_cuda_calls(tmp_path):
    calls = KERN.replace("Instances", "Num Calls")
    text = f"{calls}\n100.0,900,3,300.0,300.0,300,300,0.0,poll\n\n{KERN}\n100.0,600,3,200.0,200.0,200,200,0.0,k\n"
    profile = open_profile(write(tmp_path, text))
    assert profile.api_sums() == [] and profile.warnings == ["not read: a table of other calls in line 1"]


def test_sizes_without_times_are_a_warning(tmp_path):
    text = f"{KERN}\n100.0,600,3,200.0,200.0,200,200,0.0,k\n\nTotal (MB),Count,Operation\n1.5,2,[CUDA memset]\n"
    profile = open_profile(write(tmp_path, text))
    assert [each.name for each in profile.sums()] == ["k"] and "cuda_gpu_mem_time_sum" in profile.warnings[0]


GUI = """Time\tTotal Time\tInstances\tAvg\tMed\tMin\tMax\tStdDev\tName
path/to/Source.cpp 60.5%\t4.122 s\t64\t64.406 ms\t64.261 ms\t52.275 ms\t69.005 ms\t2.800 ms\tampere_gemm<1, 2>
 30.0%\t272.609 ms\t1536\t177.479 μs\t4.704 μs\t3.872 μs\t4.219 ms\t828.945 µs\tvoid act<bf16, &silu<float>>(T1 *)
0.0%\t992 ns\t1\t992 ns\t992 ns\t992 ns\t992 ns\t0 ns\tfill

[rank0]:   File "runner.py", line 378, in __init__
\tself.capture()
"""


def test_the_table_copied_from_the_gui_with_notes_and_other_text_around_it(tmp_path):
    sums = named(open_profile(write(tmp_path, GUI)))
    assert {name: (each.instances, each.total_ns, each.median_ns, each.stddev_ns) for name, each in sums.items()} == {
        "ampere_gemm<1, 2>": (64, 4_122_000_000, 64_261_000, 2_800_000),
        "void act<bf16, &silu<float>>(T1 *)": (1536, 272_609_000, 4704, 828_945),
        "fill": (1, 992, 992, 0),
    }


MARKDOWN = """# Profile of 2026-02-02

**GPU:** NVIDIA B200 (SM100)

| Stage | Kernel | Instances | Total (ms) | Avg (us) | % of pipeline |
|-------|--------|----------:|-----------:|---------:|--------------:|
| K1 | `moe_fused_gate_kernel` | 1949 | 42.5 | 21.8 | 1.3% |
| K3 | `GemmUniversal<A \\| B>` (GEMM1) | 1098 | 2410.0 | 2194.9 | 72.8% |
| K3' | `get_starts` | 2799+1098 | 10.4 | — | 0.3% |
| K4 | **`swiglu_quant_kernel`** (Triton) | 1948 | 286.1 | 146.9 | 8.6% |
| | **Pipeline total** | | **~2749** | | **100%** |

| What | Kernel | Share |
|------|--------|-------|
| cache | copy | 2-3% |
"""


def test_a_markdown_table(tmp_path):
    profile = open_profile(write(tmp_path, MARKDOWN))
    assert {each.name: (each.instances, each.total_ns) for each in profile.sums()} == {
        "GemmUniversal<A | B> (GEMM1)": (1098, 2_410_000_000),
        "swiglu_quant_kernel (Triton)": (1948, 286_100_000),
        "moe_fused_gate_kernel": (1949, 42_500_000),
        "get_starts": (3897, 10_400_000),
    }
    assert profile.gpu == "NVIDIA B200" and profile.form == "summary, Markdown table"


def test_a_markdown_table_without_units_is_refused(tmp_path):
    with pytest.raises(DerbyError, match="txt:3: '5' has no unit"):
        open_profile(write(tmp_path, "| Kernel | Instances | Total |\n|---|---|---|\n| k | 1 | 5 |\n"))


class TestOtherLocales:
    """A CSV with decimal commas is an error that says so and how to export it again; never a wrong number."""

    @pytest.mark.parametrize(
        "row",
        [
            '"75,0","600","3","200,0","190,0","180","230","26,5",k',
            '"75.0","600","3","200,00","190","180","230","26",k',
            '"75.0","1.234.600","3","200","190","180","230","26",k',
            '"75.0","1.234,5","3","200","190","180","230","26",k',
        ],
    )
    def test_quoted(self, tmp_path, row):
        with pytest.raises(DerbyError, match=r"txt:2: .*LC_ALL=C nsys stats"):
            open_profile(write(tmp_path, f"{KERN}\n{row}\n"))

    def test_unquoted_shifts_the_fields(self, tmp_path):
        with pytest.raises(DerbyError, match=r"txt:2: 13 fields, but 9 .*decimal commas.*LC_ALL=C"):
            open_profile(write(tmp_path, f"{KERN}\n75,0,600,3,200,0,190,0,180,230,26,5,k\n"))

    def test_with_semicolons(self, tmp_path):
        header = KERN.replace(",", ";")
        with pytest.raises(DerbyError, match="decimal comma"):
            open_profile(write(tmp_path, f"{header}\n75,0;600;3;200,0;190,0;180;230;26,5;k\n"))
        (each,) = open_profile(write(tmp_path, f"{header}\n75.0;600;3;200.0;190.0;180;230;26.5;k\n")).sums()
        assert each.total_ns == 600

    def test_three_places_after_a_comma_may_be_either(self, tmp_path):
        for cell in ("8,389", "1,234,567"):
            text = f'Total (MB),Count,Operation\n"{cell}",2,[CUDA memset]\n'
            with pytest.raises(DerbyError, match="thousand or a decimal comma"):
                open_profile(write(tmp_path, text))
        with pytest.raises(DerbyError, match="thousand or a decimal comma"):
            open_profile(write(tmp_path, GUI.replace("64.406 ms", "64,406 ms")))

    def test_a_total_that_its_average_contradicts(self, tmp_path):
        with pytest.raises(DerbyError, match="not 3 x its average"):
            open_profile(write(tmp_path, f"{KERN}\n75.0,600000,3,200.0,190.0,180,230,26.5,k\n"))

    @pytest.mark.parametrize("separator", [",", " ", "'", "’", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}"])
    def test_numbers_may_have_thousands_separators(self, tmp_path, separator):
        text = f'{KERN}\n75.0,"1{separator}234{separator}500","1{separator}000","1{separator}234.5",0,0,0,0.0,k\n'
        (each,) = open_profile(write(tmp_path, text)).sums()
        assert (each.total_ns, each.instances) == (1_234_500, 1000)

    def test_a_dot_between_semicolons_may_group_thousands(self, tmp_path):
        text = "Time (%);Total Time (ns);Instances;Name\n60;6.000;3;k\n"
        with pytest.raises(DerbyError, match="'6.000' may have a thousand's or a decimal point"):
            open_profile(write(tmp_path, text))
        (each,) = open_profile(write(tmp_path, text.replace("6.000", "6000"))).sums()
        assert (each.total_ns, each.instances) == (6000, 3)


class TestRefused:
    @pytest.mark.parametrize(
        "text,what",
        [
            ("hello\nworld\n", "no profile that derby knows"),
            ("a,b,c\n1,2,3\n", "no profile that derby knows"),
            (f"{KERN}\n", "tables in it have no rows"),
            ("Processing [a] with [x/nvtx_sum.py]...\nTotal Time (ns),Instances,Range\n2,3,r\n", "only nvtx_sum"),
            (f"{KERN.replace('Instances', 'Num Calls')}\n100,5,1,5.0,5.0,5,5,0.0,cudaFree\n", "only cuda_api_sum"),
            (f"{KERN}\n1,2,1,2,2,2,2,0,k\n\n{KERN}\n1,2,1,2,2,2,2,0,k\n", "two tables of kernels, in lines 1 and 4"),
            (f"{KERN}\n1,x,1,2,2,2,2,0,k\n", "'x' is no number"),
            (f"{KERN}\n1,2,1.5,2,2,2,2,0,k\n", "'1.5' is no number of instances"),
            (f"{KERN}\n1,2,,2,2,2,2,0,k\n", "no number of instances for 'k'"),
            (f"{KERN}\n1,,3,,2,2,2,0,k\n", "neither total nor average"),
            (f"{KERN}\n1,2 KB,1,2,2,2,2,0,k\n", "'2 KB' has the unit KB; expected ns"),
            ("| Kernel | Instances | Total (ms) |\n|---|---|---|\n| a | b | 1 | 5 |\n", "4 cells where the header"),
        ],
    )
    def test_with_the_reason(self, tmp_path, text, what):
        with pytest.raises(DerbyError) as caught:
            open_profile(write(tmp_path, text))
        assert what in str(caught.value) and "\n" not in str(caught.value)
        assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_in_any_unit_and_grouping_is_read_again(tmp_path, seed):
    random_ = random.Random(seed)
    unit, scale = random_.choice([("ns", 1), ("us", 10**3), ("ms", 10**6)])
    rows = {f"k{index}, <1>": (random_.randrange(1, 10**6), random_.randrange(1, 10**12)) for index in range(30)}
    form = random_.choice(["{:.6f}", "{:,.6f}"])
    lines = [
        f'0,"{form.format(total / scale)}","{random_.choice(["{}", "{:,}"]).format(number)}","{name}"'
        for name, (number, total) in rows.items()
    ]
    random_.shuffle(lines)
    text = "\n".join([f"Time (%),Total Time ({unit}),Instances,Name", *lines])
    sums = open_profile(write(tmp_path, text)).sums()
    assert {each.name: (each.instances, each.total_ns) for each in sums} == rows
    assert [each.total_ns for each in sums] == sorted((each.total_ns for each in sums), reverse=True)


def test_cells():
    times = {"ns": 1, "ms": 10**6}
    assert quantity("**~3.5 ms**", None, times).value == 3_500_000
    assert quantity("1e3", "ns", times).value == 1000
    assert quantity("—", "ns", times) is None
    assert (quantity("2.50", "ms", times).step, quantity("3", "ms", times).step) == (pytest.approx(10**4), 10**6)
    with pytest.raises(CellError, match="no unit"):
        quantity("5", None, times)
    assert count("2799+1098") == 3897 and count("-") is None and count("~1,949") == 1949


def test_titles():
    header = ["Time(%)", "Total Time (ns)", "Num Calls", "Average", "**Kernel Name**", "Total"]
    assert [column.meaning for column in columns_of(header)] == ["percent", "total", "count", "average", "name", ""]


@pytest.mark.parametrize(
    "name,kind,spelling",
    [
        ("[CUDA memcpy HtoD]", SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]"),
        ("[CUDA memcpy Device-to-Device]", SpanKind.MEMCPY, "[CUDA memcpy Device-to-Device]"),
        ("[CUDA Unified Memory memcpy HtoD]", SpanKind.MEMCPY, "[CUDA memcpy Unified Host-to-Device]"),
        ("[CUDA memcpy PtoP]", SpanKind.MEMCPY, "[CUDA memcpy Peer-to-Peer]"),
        ("[CUDA memset]", SpanKind.MEMSET, "[CUDA memset]"),
        ("Memcpy DtoD (Device -> Device)", SpanKind.MEMCPY, "[CUDA memcpy Device-to-Device]"),
        ("Memset (Device)", SpanKind.MEMSET, "[CUDA memset]"),
        ("MEMORY_COPY_HOST_TO_DEVICE", SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]"),
        ("CopyDeviceToDevice", SpanKind.MEMCPY, "[CUDA memcpy Device-to-Device]"),
        ("FillBuffer", SpanKind.MEMSET, "[CUDA memset]"),
        ("__amd_rocclr_copyBuffer", SpanKind.KERNEL, "__amd_rocclr_copyBuffer"),
        ("memcpy_kernel", SpanKind.KERNEL, "memcpy_kernel"),
        ("my_memset", SpanKind.KERNEL, "my_memset"),
    ],
)
def test_operations(name, kind, spelling):
    assert operation(name) == (kind, spelling)


@pytest.mark.parametrize("cell", ["1" + 400 * "0", 5000 * "9", "1e400", "1e-400", "１２", "٣"])
def test_a_cell_that_no_profile_holds_is_said(tmp_path, cell):
    path = tmp_path / "odd.csv"
    for row in (f'100.0,{cell},1,10.0,10.0,10,10,0.0,"k"', f'100.0,10,{cell},10.0,10.0,10,10,0.0,"k"'):
        path.write_text(
            "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n" + row + "\n",
            encoding="utf-8",
        )
        with pytest.raises(DerbyError, match="odd.csv"):
            open_profile(path).sums()
