"""What a recalled result depends on: the parts of the tests' modules that its test uses, and no others."""

import on_host

HELPER = "def used():\n    return other()\n\n\ndef other():\n    return 1\n\n\ndef unused():\n    return 2\n"
HELPER += "\n\ndef through_its_module():\n    return 6\n"
TEST = """import helper as h
from helper import used as alias

CASES = {"a": 1}


def in_a_string():
    return 3


def not_named():
    return 4


@mark(CASES)
@recalled_for("solution")
def test_one():
    alias()
    h.through_its_module()
    run("in_a_string()")
"""


def counted(tmp_path, helper=HELPER, test=TEST):
    on_host._Module.of.cache_clear()
    (tmp_path / "helper.py").write_text(helper)
    (tmp_path / "test_it.py").write_text(test)
    texts = on_host.used_by(tmp_path / "test_it.py", "test_one")
    return texts["helper.py"], texts["test_it.py"]


def test_what_a_test_uses_counts(tmp_path):
    helper, test = counted(tmp_path)
    assert "return other()" in helper and "return 1" in helper and "return 6" in helper and "unused" not in helper
    assert "CASES = " in test and "return 3" in test and "not_named" not in test


def test_a_decorator_and_what_acts_on_import_count(tmp_path):
    _, test = counted(tmp_path, test=TEST.replace("CASES)", "CASES, 5)"))
    assert "CASES, 5" in test
    helper, _ = counted(tmp_path, HELPER + "\n\nif True:\n    other.__doc__ = unused\n")
    assert "other.__doc__" in helper and "return 2" in helper


def test_headers_count_where_they_are_named():
    found = on_host._headers_named_in(['#include "decode_mma.cuh"'])
    assert {"decode_mma.cuh", "cuda_bf16.h", "cuda_runtime.h"} <= found.keys() and "dense_types.h" not in found


def test_no_other_sources_count_in_a_test_of_triton():
    here = on_host.HEADERS.parent
    texts = on_host.used_by(here / "test_rowwise_compiles.py", "test_the_largest_workload")
    assert "def compile_kernel" in texts["aot.py"] and not texts.keys() & {"on_host.py", "nvcc.py"}
    assert not on_host._headers_named_in(texts.values())
