"""Patterns out of a foreign set: none hangs who reads it."""

import json
import time

import pytest

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.store import patterns
from kernelderby.store.patterns import Pattern


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(a+)+$", "a" * 60 + "b"),
        ("(a|aa)+$", "a" * 80 + "b"),
        (".*.*.*.*.*x", "a" * 3000),
        (r"(\w+\s?)*$", "a" * 60 + "!"),
        ("a?" * 40 + "a" * 40, "a" * 40),
        ("(aa|a)" * 40 + "b", "a" * 60 + "c"),
    ],
)
def test_a_pattern_that_takes_ages_is_said(monkeypatch, pattern, name):
    slow, next_one = Pattern("stage K1: kernels", pattern), Pattern("stage K1: kernels", "^gemm.*sm90")
    monkeypatch.setattr(patterns, "SECONDS", 0.02)  # to search; a busy machine may take as long to compile
    start = time.process_time()
    with pytest.raises(DerbyError, match=r"^stage K1: kernels: .* takes over 0.02 s on the name 'aaa"):
        slow.search(name)
    assert time.process_time() - start < 1
    assert not next_one.search("gemm_bf16")  # and the next one is searched


@pytest.mark.parametrize(
    "text", ["(", "*", "a" * 1001, "(?P<a>x)(?P<a>y)", "[z-a]", "(?i)" + r"[\x01-\U0010fffe]" * 58]
)
def test_what_is_no_pattern_is_left_out_of_the_set(small_set, text, monkeypatch):
    """The last one takes half a second to compile, and there may be hundreds."""
    monkeypatch.setattr(patterns, "SECONDS", 0.2)
    with pytest.raises(DerbyError, match="^here: "):
        Pattern("here", text)
    path = next(small_set.rglob("toy_baseline/solution.toml"))
    path.write_text(f'{path.read_text()}\n[[stages]]\nname = "K1"\ntitle = "one"\nkernels = [{json.dumps(text)}]\n')
    catalog = Catalog.open(small_set)
    assert "toy_baseline" not in catalog.solutions and "toy_fast" in catalog.solutions
    assert "stages[1].kernels" in catalog.warnings[0] and "\n" not in catalog.warnings[0]
