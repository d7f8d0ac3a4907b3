"""`derby field`: the libraries of an operator, their versions in the rows and here."""

import importlib
import json
import struct
import sys
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rank_rows import row

from kernelderby.catalog.libraries import (
    build_id,
    library_of,
    library_versions,
    oldest,
    pinned_versions,
    version_of_builds,
)
from kernelderby.catalog.templates import not_raced
from kernelderby.errors import DerbyError
from kernelderby.rank.field import field
from kernelderby.report.field import field_report
from kernelderby.report.text import render
from kernelderby.rows.measurement import Status


def solution(name, author, *dependencies, definition="alpha", language="python", sources=("main.py",), modules=()):
    return SimpleNamespace(
        name=name,
        author=author,
        definition=definition,
        dependencies=dependencies,
        requires=SimpleNamespace(modules=modules),
        language=language,
        sources=dict.fromkeys(sources, ""),
        has_code="now".__eq__,
        has_kernels=lambda recorded, uuid: recorded == "now",
    )


SOLUTIONS = {
    each.name: each
    for each in (
        solution("v", "vllm", "vllm"),
        solution("s", "sgl-kernel", "sglang-kernel>=0.4", definition="beta"),
        solution("t", "torch"),
        solution("i", "inductor", definition="delta", modules=("torch._inductor",)),
        solution("plain", "baseline"),
        solution("glue", "torch", language="triton"),
        solution("mine", "me", language="triton"),
        solution("mine_too", "me", sources=("main.py", "kernel.cu")),
    )
}


def measured(name, uuid, version, day="2026-11-20", **changes):
    environment = {"libs": version}
    return row(name, uuid, 5.0, solution_hash="now", environment=environment, timestamp=f"{day}T10:00:00Z", **changes)


def test_whose_kernels_a_solution_calls():
    assert {name: library_of(each) for name, each in SOLUTIONS.items()} == {
        "v": "vllm",
        "s": "sgl_kernel",
        "t": "torch",
        "i": "inductor",
        "plain": "torch",
        "glue": "torch",
        "mine": None,
        "mine_too": None,
    }


@pytest.mark.parametrize(
    ("versions", "least"),
    [
        (["0.10.0", "0.9.1"], "0.9.1"),
        (["2.13.0", "2.11.0+cpu"], "2.11.0+cpu"),
        (["0.7.2", "0.7.2.post1"], "0.7.2"),
        (["1.0", "unknown"], "unknown"),
        (["2.0", "1." + "9" * 5000], "1." + "9" * 5000),
        ([], "unknown"),
    ],
)
def test_the_oldest_version(versions, least):
    assert oldest(versions) == least


def test_a_row_an_operator_and_library_by_importance():
    rows = [
        measured("v", "w1", {"vllm": "0.33.0"}, "2026-11-21", definition="alpha"),
        measured("v", "w2", {"vllm": "0.25.1"}, definition="alpha"),
        measured("t", "w1", {"vllm": "0.25.1"}, definition="alpha"),
    ]
    found = field(
        rows,
        {"alpha": ["w1", "w2"], "beta": ["w3"], "gamma": []},
        SOLUTIONS,
        {"beta": 9.0, "alpha": 1.0},
        {"vllm": "0.33.0"},
    )
    assert [(each.definition, each.library) for each in found.raced] == [
        ("beta", "sgl-kernel"),
        ("alpha", "torch"),
        ("alpha", "vllm"),
    ]
    beta, torch, vllm = found.raced
    assert (beta.version, beta.passed, beta.measured_from, beta.is_newest) == (None, 0, None, None)
    assert (torch.version, torch.passed, torch.is_newest) == ("unknown", 1, None)
    assert (vllm.version, vllm.here, vllm.is_newest, vllm.passed) == ("0.25.1", "0.33.0", False, 2)
    assert (vllm.measured_from, vllm.measured_to, vllm.workloads) == ("2026-11-20", "2026-11-21", 2)
    assert found.without == ("gamma",)
    shares = [[round(found.at_least(few, raced), 1) for few in (1, 2)] for raced in (False, True)]
    assert shares == [[100.0, 10.0], [10.0, 10.0]]
    three = field(rows, {"alpha": ["w1", "w2", "w3"]}, SOLUTIONS, {"alpha": 1.0}, {})
    assert [three.at_least(few, raced=True) for few in (1, 2)] == [100.0, 0.0], "torch has a third of the shapes"


def test_times_of_former_code_are_no_race():
    rows = [measured("v", "w1", {"vllm": "0.33.0"}, definition="alpha"), measured("t", "w1", {}, definition="alpha")]
    rows[0] = replace(rows[0], solution_hash="former")
    [torch, vllm] = field(rows, {"alpha": ["w1"]}, SOLUTIONS, {"alpha": 1.0}, {}).raced
    assert (vllm.version, vllm.passed, vllm.outdated, torch.passed) == (None, 0, 1, 1)


def test_a_library_whose_rows_all_failed_was_raced():
    rows = [measured("v", "w1", {}, definition="alpha", status=Status.WRONG_VALUES)]
    found = field(rows, {"alpha": ["w1"]}, SOLUTIONS, {"alpha": 1.0}, {})
    assert [(each.library, each.failed, each.passed) for each in found.raced] == [("torch", 0, 0), ("vllm", 1, 0)]
    [torch, vllm] = [each for each in render(field_report(found, {}), width=100).splitlines() if "0/1" in each]
    assert "not raced" in torch and "nothing passed" in vllm


def test_without_rows_every_library_is_named():
    found = field([], {"alpha": ["w1"]}, SOLUTIONS, {}, {})
    assert found.group is None and [each.library for each in found.raced] == ["torch", "vllm"]


def test_versions_of_a_constraints_file(tmp_path):
    path = tmp_path / "constraints.txt"
    path.write_text("# new\nvLLM==0.33.0  # of November\nflash_linear.attention == 0.6.1\nnumpy>=2\nother==1\n")
    assert pinned_versions(path) == {"vllm": "0.33.0", "fla": "0.6.1"}
    path.write_text("other==1\n")
    with pytest.raises(DerbyError, match="<library>==<version>"):
        pinned_versions(path)


def test_the_command_in_the_checkout(derby, checkout):
    code, table, _ = derby("field", "rms_norm", "--root", checkout, columns=80)
    assert code == 0 and "vllm" in table and "sgl-kernel" in table
    assert max(map(len, table.splitlines())) <= 80
    found = json.loads(derby("field", "rms_norm", "--json", "--root", checkout)[1])["field"]
    assert {each["definition"] for each in found["raced"]} == {"rms_norm"}
    assert all(each["passed"] <= each["workloads"] for each in found["raced"])


def elf(build, before=b""):
    """A 64-bit ELF file that has nothing but notes: others, padded to four bytes, and its build id."""
    notes = struct.pack("<3I", 5, 3, 1) + b"SOME\0\0\0\0abc\0" + before
    notes += struct.pack("<3I", 4, len(build) // 2, 3) + b"GNU\0" + bytes.fromhex(build)
    header = b"\x7fELF\x02\x01\x01".ljust(32, b"\0") + struct.pack("<Q14x2H6x", 64, 56, 2)
    programs = struct.pack("<I4xQ16xQ16x", 1, 0, 64) + struct.pack("<I4xQ16xQ16x", 4, 176, len(notes))
    return header + programs + notes


def test_libraries_without_metadata_say_their_version_by_their_build_id(tmp_path):
    old, new = "193e9c8e38199c0fcbab5e2cc8b2713d5dfd9257", "13dd9eac5f61c9f617ac740f4e5c45d284f8157f"
    first, second, third = tmp_path / "a.so", tmp_path / "deep" / "b.so", tmp_path / "c.so"
    second.parent.mkdir()
    assert version_of_builds(tmp_path) is None
    first.write_bytes(elf(old))
    assert build_id(first) == old and version_of_builds(tmp_path) == "0.25.1"
    second.write_bytes(elf(new))
    assert version_of_builds(tmp_path) == "0.25.1/0.33.0"
    third.write_bytes(elf("00" * 20))
    unknown = version_of_builds(tmp_path)
    third.write_bytes(elf("01" * 20))
    assert unknown.startswith("build-") and len(unknown) == 14 and version_of_builds(tmp_path) != unknown


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 9, elf("00" * 20)[:150], elf("00" * 20)[:180]])
def test_a_file_without_a_build_id_has_none(content, tmp_path):
    (tmp_path / "a.so").write_bytes(content)
    assert build_id(tmp_path / "a.so") is None


def test_the_version_is_of_what_an_import_finds_first(tmp_path, monkeypatch):
    """Newer libraries that were unpacked beside an older install; without a file of a version it is not guessed."""
    old, new = tmp_path / "old", tmp_path / "new"
    for place in (old, new):
        (place / "vllm").mkdir(parents=True)
    about = old / "vllm-0.25.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1\n")
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(sys, "path", [str(new), str(old), *sys.path])
    assert library_versions()["vllm"] == "unknown"
    (new / "vllm" / "_moe_C.abi3.so").write_bytes(elf("b6028482ddbdc2feccb5c663e56e2efc03492282"))
    assert library_versions()["vllm"] == "0.33.0"
    (new / "vllm" / "_moe_C.abi3.so").unlink()
    (new / "vllm" / "_version.py").write_text('__version__ = version = "0.33.0"\n')
    assert library_versions()["vllm"] == "0.33.0"
    monkeypatch.setattr(sys, "path", [str(old), str(new), *sys.path[2:]])
    assert library_versions()["vllm"] == "0.25.1"
    (old / "vllm" / "__init__.py").touch()
    importlib.invalidate_caches()
    monkeypatch.setattr(sys, "path", [str(new), str(old), *sys.path[2:]])  # a whole package goes before parts of one
    assert library_versions()["vllm"] == "0.25.1"


LISTED = """
[[library]]
name = "new"
operators = ["alpha"]
why = "A wheel of 92 MB."
needs = "a network"
[[library]]
name = "odd"
operators = ["nowhere"]
why = "No."
needs = ""
[[library]]
name = "other"
operators = []
why = "Of AMD alone."
needs = ""
"""


def test_libraries_that_were_not_raced_say_why(tmp_path):
    told, folder = [], tmp_path / "solutions"
    assert not_raced(tmp_path, ["alpha"], told.append) == ()
    (folder / "compiler" / "template").mkdir(parents=True)
    (folder / "compiler" / "template" / "solution.toml").write_text('[left_out]\nbeta = "loops"\nalpha = "loops"\n')
    (folder / "not_raced.toml").write_text(LISTED)
    new, other, compiler = not_raced(tmp_path, ["alpha", "beta"], told.append)
    assert (new.name, new.needs, other.operators) == ("new", "a network", ())
    assert (compiler.name, compiler.operators, compiler.why) == ("compiler", ("beta", "alpha"), "Loops.")
    assert len(told) == 1 and "odd: 'nowhere' is no definition" in told.pop()
    found = field([], {"beta": []}, SOLUTIONS, {}, {}, not_raced=(new, other, compiler))
    assert found.not_raced == (other, compiler)
    (folder / "not_raced.toml").write_text(LISTED.replace("needs", "wants"))
    assert not_raced(tmp_path, ["alpha"], told.append)[0].name == "compiler" and "wants" in told.pop()


def test_the_command_says_what_was_not_raced(derby, checkout):
    code, text, _ = derby("field", "topk_filter", "--not-raced", "--root", checkout, columns=80)
    assert code == 0 and "DeepSelect" in text and "QuACK" not in text and "Libraries that were raced" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "DeepSelect" in derby("field", "topk_filter", "--root", checkout)[1]
    table = derby("field", "topk_filter", "--format", "csv", "--table", "not_raced", "--root", checkout)[1]
    assert table.startswith("name,operators,why,needs") and "DeepSelect" in table
    found = json.loads(derby("field", "topk_filter", "--json", "--root", checkout)[1])["field"]
    assert any("DeepSelect" in each["name"] for each in found["not_raced"])
