"""benchmarks/compare_sass.py: what counts as the same machine code, on listings written as cuobjdump writes them."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
LISTING = """
Fatbin elf code:
================
		Function : _Z3onePf
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;              /* 0x00000a00ff017b82 */
                                                                       /* 0x000fe20000000800 */
        /*0010*/               @P0 EXIT ;                              /* 0x000000000000094d */
                                                                       /* 0x000fea0003800000 */
		..........

		Function : _Z3twov
        /*0000*/                   BRA 0x0;                            /* 0xfffffffc00fc7947 */
                                                                       /* 0x000fc0000383ffff */
"""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("compare_sass")


def test_a_listing_is_read_whole(script):
    kernels = script.parse_sass(LISTING)
    assert kernels["_Z3onePf"].texts == ("LDC R1, c[0x0][0x28] ;", "@P0 EXIT ;")
    assert kernels["_Z3onePf"].words == (
        "0x00000a00ff017b82",
        "0x000fe20000000800",
        "0x000000000000094d",
        "0x000fea0003800000",
    )
    assert kernels["_Z3twov"].texts == ("BRA 0x0;",)


@pytest.mark.parametrize(
    "old, new, same, says",
    [
        ("", "", [True, True], "same words (2 instructions)"),
        (
            "@P0 EXIT ;                              /* 0x000000000000094d",
            "@P1 EXIT ; /* 0x000000000000194d",
            [False, True],
            "1 of 2 instructions differ, the first at 1: @P0 EXIT ; | @P1 EXIT ;",
        ),
        ("000fe20000000800", "000fe40000000800", [False, True], "other encodings"),
        ("_Z3twov", "_Z4trevi", [True, True], "_Z3twov, renamed _Z4trevi: same words (1 instructions)"),
        (
            "BRA 0x0;                            /* 0xffff",
            "NOP; BRA 0x1; /* 0xfffe",
            [True, False],
            "1 of 1 instructions differ",
        ),
    ],
)
def test_what_differs_is_said(script, old, new, same, says):
    lines = script.compare(script.parse_sass(LISTING), script.parse_sass(LISTING.replace(old, new)))
    assert [found for found, _ in lines] == same
    assert any(says in line for _, line in lines)


def test_parameters_that_lie_elsewhere_are_no_other_code(script):
    moved = LISTING.replace("c[0x0][0x28]", "c[0x0][0x30]").replace("0x00000a00ff017b82", "0x00000c00ff017b82")
    lines = script.compare(script.parse_sass(LISTING), script.parse_sass(moved))
    assert lines[0] == (True, "_Z3onePf: same but for constant bank offsets (1 of 2 instructions)")


def test_a_kernel_that_came_or_went_is_a_difference(script):
    kernels = script.parse_sass(LISTING)
    one = {"_Z3onePf": kernels["_Z3onePf"]}
    assert script.compare(kernels, one)[-1] == (False, "_Z3twov: gone")
    assert script.compare(one, kernels)[-1] == (False, "_Z3twov: new")


@pytest.mark.parametrize(
    "instruction, conflicts",
    [
        ("FFMA R4, R24, R136, R88 ;", "1 of 1"),
        ("@P0 FFMA R4, R25.reuse, R137, R89 ;", "1 of 1"),
        ("FFMA R4, R24, R137, R88 ;", "0 of 1"),
        ("FFMA R4, R24, c[0x0][0x28], R88 ;", "0 of 0"),
        ("FFMA R4, R24, R136, RZ ;", "0 of 0"),
        ("FMUL R4, R24, R136 ;", "0 of 0"),
    ],
)
def test_multiply_adds_of_one_register_bank_are_counted(script, instruction, conflicts):
    assert script.Kernel((instruction,), ()).bank_conflicts == conflicts
