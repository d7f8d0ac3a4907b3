"""Code of a set that a notebook or a cluster's driver needs runs behind the fences, never in their own process."""

import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
from test_strangers import D

import kernelderby
from kernelderby.api import fenced_verbs
from kernelderby.errors import DerbyError
from kernelderby.report.gate import gate_answer
from kernelderby.statistics.gate import Gated

SPY = """
import builtins, os
builtins.definition_ran_here = True
try:
    with open({mark!r}, "w") as file:
        file.write("ran")
except OSError:
    pass
AXES_SPACE = {{"rows": (1, 64), "factor": 2.0}}
"""


@pytest.fixture
def spied(small_set, tmp_path):
    """Says whether its definition ran in this process, or wrote where no fence lets it."""
    pytest.importorskip("torch")
    mark = tmp_path / "written"
    source = small_set / f"definitions/toy/{D}.py"
    source.write_text(source.read_text() + SPY.format(mark=str(mark)))
    import builtins

    def has_escaped():
        return hasattr(builtins, "definition_ran_here") or (mark.exists() and mark.read_text() != "")

    yield small_set, has_escaped
    if hasattr(builtins, "definition_ran_here"):
        del builtins.definition_ran_here


def test_a_check_of_the_api(spied):
    root, has_escaped = spied
    answer = kernelderby.open(root).check("toy_baseline", device="cpu", quick=True)
    assert [each.status for each in answer.value] == ["passed"] and answer.value[0].matched_ratio == 1.0
    assert "1 passed, 0 failed" in answer.to_text() and not has_escaped()
    with pytest.raises(DerbyError, match="toy_basline.*did you mean"):
        kernelderby.open(root).check("toy_basline", device="cpu")


def test_fresh_shapes_and_shapes_of_ones_own(spied):
    from kernelderby.api.adhoc import adhoc_set
    from kernelderby.catalog import Catalog
    from kernelderby.measure.run.fresh import fresh_workloads

    root, has_escaped = spied
    catalog = Catalog.open(root)
    (shapes,) = fresh_workloads(catalog, [], [], "5e" * 16, 2).values()
    assert len({each.uuid for each in shapes}) == 2 and all(each.cost for each in shapes)
    with adhoc_set(catalog, D, shapes=["rows=3"], rivals=catalog.solutions_of(D)) as adhoc:
        assert adhoc.lines[0]["cost"]["flops"]
    assert not has_escaped()
    source = root / f"definitions/toy/{D}.py"
    source.write_text(source.read_text() + "import os\nos._exit(0)\n")
    with pytest.raises(DerbyError, match=rf"{D}.py: its code was ended"):
        fresh_workloads(Catalog.open(root), [], [], "5e" * 16, 2)


def test_a_gate_of_the_api_is_the_commands(small_set, monkeypatch):
    pytest.importorskip("torch")
    catalog = kernelderby.open(small_set).catalog
    one, other = catalog.workloads(D)
    gated = Gated("regression", 0.25, 0.125, math.inf, 0.5, math.inf, 4, 8.0, 10.0)
    found = [
        SimpleNamespace(workload=one, verdict="regression", kind="graph", gated=gated, failure=""),
        SimpleNamespace(workload=other, verdict="cannot tell", kind="", gated=None, failure="no time"),
    ]
    expected = gate_answer(("a", "b"), "H200", 0.03125, found, ["a note"])
    asked = []

    def told(words, root):
        asked.append(words)
        return json.loads(expected.to_json()), ("a warning",)

    monkeypatch.setattr(fenced_verbs, "verb_json", told)
    answer = kernelderby.open(small_set).gate("a", "b", one.uuid, least=0.03125, timeout_seconds=9, device="cpu")
    assert asked == [["gate", "a", "b", f"--workloads={one.uuid}", "--least=3.125", "--timeout=9", "--device=cpu"]]
    assert answer.to_json() == expected.to_json() and answer.to_text() == expected.to_text()
    assert answer.warnings == ("a warning",) and answer.value[0].gated == gated


def test_a_name_is_no_option(small_set):
    for name in ("--dump=x", "-h"):
        with pytest.raises(DerbyError, match="is no name of a solution"):
            kernelderby.open(small_set).check(name)


def test_no_torch_is_loaded_by_a_notebook_that_checks(small_set):
    """It takes seconds and memory there, and ends the program where the working directory is gone."""
    code = f"""
import sys
import kernelderby
from kernelderby.api import fenced_verbs
row = dict.fromkeys(("definition", "solution", "case", "message"), "x") | {{"status": "passed", "correctness": None}}
found = {{"device": "cpu", "results": [row], "skipped": {{}}, "broken": {{}}, "secret": "ab"}}
fenced_verbs.verb_json = lambda *_: (found, ())
[one] = kernelderby.open({str(small_set)!r}).check().value
assert one.status == "passed" and one.matched_ratio is None and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
