"""What ncu counted: a real file from an H200, files as other versions and programs write them, and spoilt ones."""

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
    path = written(tmp_path / "a.csv", [DURATION], [("", "a", ("n/a",))], ("ns",))
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
        ('"ID","Kernel Name"\n"",""\n"0","a"\n', "has no column Block Size, Grid Size"),
        ('"ID","Kernel Name","Block Size","Grid Size"\n"","","",""\n"0","a","b', "no whole CSV"),
    ],
)
def test_a_spoilt_file_is_one_line(tmp_path, text, says):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DerbyError, match=says) as error:
        read_counters(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_a_value_that_is_no_number_is_one_line(tmp_path):
    with pytest.raises(DerbyError, match="'many' is no number"):
        read_counters(written(tmp_path / "a.csv", [DURATION], [("", "a", ("many",))], ("ns",)))
