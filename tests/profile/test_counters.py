"""ncu's counters: a real file from an H200, files as other versions and programs write them, and spoilt ones."""

import csv
import io

import pytest

import kernelderby
from kernelderby.errors import DerbyError
from kernelderby.measure.record import ncu
from kernelderby.profile.counters import METRICS, read_counters

RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
FIXED = ["ID", "Process ID", RANGES, "Kernel Name", "Block Size", "Grid Size"]
DURATION, READ = METRICS["duration_ns"], METRICS["read_bytes"]


def written(path, metrics, rows, units=None, above="==PROF== Connected to process 12 (/usr/bin/python3)\n"):
    """rows: (range, kernel, values of the metrics)."""
    text = io.StringIO()
    lines = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    lines.writerow([*FIXED, *metrics])
    lines.writerow([""] * len(FIXED) + list(units or [""] * len(metrics)))
    for number, (where, kernel, values) in enumerate(rows):
        lines.writerow([number, 12, where, kernel, "(384, 1, 1)", "(132, 1, 1)", *values])
    path.write_text(above + text.getvalue())
    return path


def test_what_is_asked_of_ncu_is_what_is_read():
    assert set(METRICS.values()) < set(ncu.METRICS)
    assert len(ncu.METRICS) - len(METRICS) == 1, "the GPU's name"


def test_a_file_of_ncu_2025_from_an_h200(checkout):
    """FlashAttention 3 on 16 tokens of unified_attention, as `derby profile run --with ncu` wrote it."""
    found = read_counters(checkout / "tests" / "data" / "profile" / "ncu_raw_h200.csv")
    assert (found.gpu, found.invocations, found.outside) == ("NVIDIA H200", 3, 0)
    assert [(row.short_name[:11], row.launches, row.registers) for row in found.rows] == [
        ("prepare_var", 3, 16),
        ("FlashAttnFw", 3, 168),
    ]
    small, large = found.rows
    assert small.duration_ns == 2784 and large.duration_ns == 12704 and large.shared_bytes == 167936
    assert all(getattr(large, field) is not None for field in METRICS)
    assert kernelderby.counters(found.path).value == (found,)


def test_launches_of_a_kernel_are_one_row_and_the_harness_is_left_out(tmp_path):
    call = '"<default domain>" "solution:a x=1:none" "invocation {}:none"'
    path = written(
        tmp_path / "a.ncu.csv",
        [DURATION, READ],
        [
            ('"<default domain>" "harness: flush L2:none"', "fill", (9000, 5)),
            *((call.format(number), "gemm", (value, "1,000")) for number, value in enumerate((700, 500, 600))),
            *((call.format(number), "sum", (50, 8)) for number in range(3)),
        ],
        ("ns", "byte"),
    )
    found = read_counters(path)
    assert (found.invocations, found.outside, found.gpu) == (3, 1, None)
    assert [(row.kernel, row.launches, row.duration_ns, row.read_bytes) for row in found.rows] == [
        ("gemm", 3, 600, 1000),
        ("sum", 3, 50, 8),
    ]
    assert found.rows[0].tensor_percent is None and found.rows[0].grid == "(132, 1, 1)"


@pytest.mark.parametrize(
    "units, values",
    [(("us", "Kbyte"), ("1.5", "2")), (("usecond", "Kbyte"), ("1.5", "2")), (("ns", "byte"), (1500, 2000))],
)
def test_units_are_what_the_file_says(tmp_path, units, values):
    found = read_counters(written(tmp_path / "a.csv", [DURATION, READ], [("", "k", values)], units))
    assert found.rows[0].duration_ns == 1500 and found.rows[0].read_bytes == 2000


def test_a_program_without_ranges_has_all_its_kernels(tmp_path):
    found = read_counters(written(tmp_path / "a.csv", [DURATION], [("", "a", (1,)), ("", "b", (2,))], ("ns",)))
    assert [row.kernel for row in found.rows] == ["a", "b"] and (found.invocations, found.outside) == (0, 0)


def test_what_could_not_be_counted_is_nothing(tmp_path, derby):
    path = written(tmp_path / "a.csv", [DURATION, READ], [("", "a", ("n/a", 5))], ("ns", "byte"))
    assert read_counters(path).rows[0].duration_ns is None
    code, text, _ = derby("profile", "counters", path, columns=80)
    assert code == 0 and "GPU not named · no call is marked" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "text, says",
    [
        ("", 'no line begins with "ID"'),
        ("==ERROR== ERR_NVGPUCTRPERM\n", 'no line begins with "ID"'),
        ('"ID","Kernel Name","Block Size","Grid Size"\n', "has no kernel"),
        ('"ID","Kernel Name","Block Size","Grid Size"\n"","","",""\n', "has no kernel"),
        ('"ID","Kernel Name"\n"",""\n"0","a"\n', "no metric in it has a value"),
        ('"ID","Kernel Name","Block Size","Grid Size"\n"","","",""\n"0","a","b', "no whole CSV"),
    ],
)
def test_a_spoilt_file_is_one_line(tmp_path, text, says):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DerbyError, match=says) as error:
        read_counters(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize("text", ["55,5", "0,125", "1.234,5"])
def test_a_decimal_comma_is_refused(tmp_path, text):
    with pytest.raises(DerbyError, match=f"'{text}' has a comma before its decimals"):
        read_counters(written(tmp_path / "a.csv", [DURATION], [("", "a", (text,))], ("ns",)))
    read = read_counters(written(tmp_path / "b.csv", [DURATION], [("", "a", ("12,345,678.5",))], ("ns",)))
    assert read.rows[0].duration_ns == 12_345_678.5


def test_a_value_that_is_no_number_is_one_line(tmp_path):
    with pytest.raises(DerbyError, match="'many' is no number"):
        read_counters(written(tmp_path / "a.csv", [DURATION], [("", "a", ("many",))], ("ns",)))


# The forms that people have: `ncu --csv` and its summary

LONG = """==PROF== Connected to process 12
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"
{rows}
""".replace("\\\n", "")
SECTIONS = [
    ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "2,000.5"),
    ("GPU Speed Of Light Throughput", "Duration", "us", "12.5"),
    ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "78.5"),
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%", "12.25"),
    ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "70"),
    ("GPU Speed Of Light Throughput", "L1/TEX Cache Throughput", "%", "30"),
    ("Occupancy", "Achieved Occupancy", "%", "33.1"),
    ("Launch Statistics", "Registers Per Thread", "register/thread", "112"),
    ("Launch Statistics", "Static Shared Memory Per Block", "Kbyte/block", "4.1"),
    ("Launch Statistics", "Dynamic Shared Memory Per Block", "byte/block", "1,024"),
    ("Warp State Statistics", "Stall Long Scoreboard", "inst", "8"),
    ("Warp State Statistics", "Mem Busy", "%", "n/a"),
]


def long_form(path, launches, sections=SECTIONS, rule=True):
    """launches: (id, kernel, factor of the duration)."""
    rows = []
    for number, kernel, factor in launches:
        head = f'"{number}","12","app","host","{kernel}","1","7","(32, 1, 1)","(8, 1, 1)","0","9.0"'
        for section, name, unit, value in sections:
            value = str(float(value) * factor) if name == "Duration" else value
            rows.append(f'{head},"{section}","{name}","{unit}","{value}","","",""')
        if rule:
            rows.append(f'{head},"SpeedOfLight","","","","SOLBottleneck","OPT","Memory is more heavily utilized"')
    path.write_text(LONG.format(rows="\n".join(rows)))
    return path


def test_the_default_long_form(tmp_path, derby):
    path = long_form(tmp_path / "long.csv", [(0, "gemm", 1), (1, "gemm", 3), (2, "sum", 1)])
    found = read_counters(path)
    gemm, total = found.rows
    assert (gemm.launches, gemm.duration_ns, total.launches, total.duration_ns) == (2, 25_000, 1, 12_500)
    assert (gemm.memory_percent, gemm.compute_percent, gemm.dram_percent, gemm.l1_percent) == (78.5, 12.25, 70, 30)
    assert (gemm.bound, gemm.registers, gemm.warps_percent, gemm.shared_bytes) == ("memory", 112, 33.1, 4100 + 1024)
    assert gemm.stalls == (("long scoreboard", 8.0),) and found.unread == ("Memory Throughput, rate",)
    code, text, _ = derby("profile", "counters", path, columns=80)
    assert code == 0 and "Speed of light" in text and "long scoreboard" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_summary_form(tmp_path):
    path = tmp_path / "summary.csv"
    path.write_text(
        '"Process ID","Kernel Name","Block Size","Grid Size","Invocations","Section Name","Metric Name","Metric Unit",'
        '"Minimum","Maximum","Average"\n'
        '"1","k","(128, 1, 1)","(96, 1, 1)","3","Command line profiler metrics",'
        '"sm__throughput.avg.pct_of_peak_sustained_elapsed","%","10.00","20.00","15.00"\n'
        '"1","k","(128, 1, 1)","(96, 1, 1)","3","GPU Speed Of Light","Duration","us","1","3","2"\n'
    )
    [row] = read_counters(path).rows
    assert (row.launches, row.compute_percent, row.duration_ns, row.bound) == (3, 15, 2000, "")


def test_a_table_without_numbers_is_an_error(tmp_path, derby):
    path = long_form(tmp_path / "odd.csv", [(0, "k", 1)], [("S", "Fan Speed", "rpm", "7")], rule=False)
    code, _, error = derby("profile", "counters", path)
    assert code == 1 and "none of its 1 metric is known (it has Fan Speed)" in error


def test_stalls_and_the_place_on_a_roofline(tmp_path):
    stall = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    flop = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    names = [
        DURATION,
        READ,
        stall.format("long_scoreboard"),
        stall.format("wait"),
        flop.format("ffma"),
        flop.format("fadd"),
    ]
    path = written(tmp_path / "a.csv", names, [("", "k", (1000, 500, 8, 2, 1000, 500))], ("ns", "byte", *["inst"] * 4))
    [row] = read_counters(path).rows
    assert row.stalls == (("long scoreboard", 8), ("wait", 2)) and (row.flops, row.flops_a_byte) == (2500, 5)
    frames = kernelderby.counters(path).frames
    assert [each["reason"] for each in frames["stalls"].to_dicts()] == ["long scoreboard", "wait"]


def test_a_timeline_verb_names_the_right_one(tmp_path, derby):
    code, _, error = derby("profile", "kernels", long_form(tmp_path / "long.csv", [(0, "k", 1)]))
    assert code == 1 and "use `derby profile counters`" in error


AGAIN = (
    "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC,Section Name,"
    "Metric Name,Metric Unit,Metric Value"
)


def long_lines(*rows):
    """(kernel, metric, unit, value) as programs write ncu's table again: without its quotes."""
    return "\n".join(
        [
            AGAIN,
            *(f'{place},7,a,h,{kernel},1,7,"(256, 1, 1)","(4, 1, 1)",0,9.0,S,{rest}' for place, kernel, rest in rows),
        ]
    )


DURATION_LINE = (0, "gemm", 'Duration,usecond,"1,234.5"')


@pytest.mark.parametrize(
    ("encoding", "change"),
    [
        ("utf-8", lambda text: text),
        ("utf-16", lambda text: text),
        ("utf-8", lambda text: "\n".join(f"{at or ''},{line}" for at, line in enumerate(text.splitlines()))),
        ("utf-8", lambda text: text.replace("Kernel Name", "Function Name")),
        ("utf-8", lambda text: f"==PROF== Connected\nID of the job, 7\n{text}"),
    ],
    ids=["unquoted", "PowerShell", "index", "GUI", "output above"],
)
def test_tables_that_other_programs_wrote_again(tmp_path, encoding, change):
    path = tmp_path / "again.csv"
    path.write_text(change(long_lines(DURATION_LINE)), encoding=encoding)
    [row] = read_counters(path).rows
    assert (row.kernel, row.duration_ns, row.launches) == ("gemm", 1_234_500, 1)


def test_a_raw_page_without_its_units(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(f"ID,Kernel Name,{DURATION}\n0,gemm,700\n1,gemm,900\n")
    [row] = read_counters(path).rows
    assert (row.duration_ns, row.launches) == (800, 2)


@pytest.mark.parametrize("value", ["", "n/a", "nan"])
def test_a_table_of_nothing_is_an_error(tmp_path, value):
    path = tmp_path / "nothing.csv"
    path.write_text(long_lines((0, "gemm", f"Duration,usecond,{value}"), (0, "gemm", f"Executed Ipc Active,,{value}")))
    with pytest.raises(DerbyError, match="no metric in it has a value; count with"):
        read_counters(path)
