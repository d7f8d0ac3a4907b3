"""Verbs that only read run nothing of a set: neither its definitions nor its solutions are imported."""

import sys
from pathlib import Path

import pytest
from mutating import run
from test_strangers import D

sys.path.insert(0, str(Path(__file__).parent.parent / "profile"))
from make_nsys import Export

from kernelderby.errors import DerbyError

VERBS = [
    "list",
    f"show {D}",
    "show toy_fast",
    f"prompt {D}",
    "rank",
    f"rank {D}",
    "roofline --traces",
    "field",
    "explain toy_fast --workload 0",
    "report {folder}/r.html",
    "report {folder}/r.md --markdown",
    "export {folder}/out",
    "merge {set}",
    "profile kernels {folder}/p.sqlite",
    "profile stages {folder}/p.sqlite --solution toy_fast",
    "capture {folder}/p.sqlite",
    "capture {folder}/p.sqlite --gain",
    "doctor",
]


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_that_reads_runs_the_set(small_set, tmp_path, verb, asked_once, monkeypatch):
    mark = tmp_path / "ran"
    for path in small_set.rglob("*.py"):
        path.write_text(f"open({str(mark)!r}, 'a').write('x')\n{path.read_text()}")
    with Export(tmp_path / "p.sqlite") as made:
        made.kernel("elementwise_kernel", 0, 1000)
    monkeypatch.setenv("DERBY_ROOT", str(small_set))
    found = run(*verb.format(folder=tmp_path, set=small_set).split())
    assert found.code in (0, 1) and not mark.exists(), found


def test_what_a_captured_shape_costs_is_counted_behind_the_fences(small_set):
    pytest.importorskip("torch")
    from kernelderby.catalog import Catalog
    from kernelderby.measure.judge.fenced import FencedDefinitions

    catalog = Catalog.open(small_set)
    definition, workload = catalog.definition(D), catalog.workloads(D)[0]
    line = {
        "uuid": workload.uuid,
        "axes": {"rows": 3},
        "inputs": {name: {"type": "random"} for name in definition.inputs},
    }
    line = {"definition": D, "workload": line}
    source = definition.source_path
    code = source.read_text()
    with FencedDefinitions(catalog) as fenced:
        assert (
            fenced.cost(definition, line)["bytes_written"] == workload.cost.bytes_written // workload.axes["rows"] * 3
        )
    for raised in ("import os; os._exit(0)", "raise SystemExit"):
        source.write_text(f"{raised}\n{code}")
        with (
            FencedDefinitions(catalog) as fenced,
            pytest.raises(DerbyError, match=rf"{D}.*(ended|load)"),
        ):
            fenced.cost(definition, line)
