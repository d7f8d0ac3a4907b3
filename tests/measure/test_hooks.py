"""Hooks of a definition that give nonsense: one line names its file and the hook, no solution is accused, and nothing
that was not compared passes."""

from __future__ import annotations

import json

import pytest
from measuring import CPU, DEFINITION, copied_set

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner

torch = pytest.importorskip("torch")

SLOW = "import time\n_run = run\ndef run(x, y, factor):\n    time.sleep(0.05)\n    return _run(x, y, factor)\n"
NONSENSE = {
    "generate_inputs: gave 'z', not one of x, y": "_own = generate_inputs\n"
    "def generate_inputs(a, d):\n    return {'z': _own(a, d)['y']}\n",
    "generate_inputs: gave 'factor', not one of": "def generate_inputs(a, d):\n    return {'factor': 2.0}\n",
    "generate_inputs: gave a NoneType": "def generate_inputs(a, d):\n    pass\n",
    "generate_inputs: y is a sparse_coo tensor": "_own = generate_inputs\n"
    "def generate_inputs(a, d):\n    return {'y': _own(a, d)['y'].to_sparse()}\n",
    "canonical_outputs: gave a NoneType": "def canonical_outputs(outputs, inputs):\n    pass\n",
    "canonical_outputs: gave no out": "def canonical_outputs(outputs, inputs):\n    return {}\n",
    "canonical_outputs: out is a float": "def canonical_outputs(outputs, inputs):\n    return {'out': 1.0}\n",
    "canonical_outputs: out has shape (0, 16)": "def canonical_outputs(outputs, inputs):\n"
    "    return {'out': outputs['out'][:0]}\n",
    "INPUT_DRAWS: 3 is no dict": "INPUT_DRAWS = 3\n",
    "INPUT_DRAWS: ['x'] is no dict": "INPUT_DRAWS = [['x']]\n",
    "INPUT_DRAWS: 'x': [2] changes no tensor": "INPUT_DRAWS = [{'x': [2]}]\n",
    "INPUT_DRAWS: 'factor': 2.0 changes no tensor": "INPUT_DRAWS = [{'factor': 2.0}]\n",
    "INPUT_DRAWS: x: 'plus many' is neither": "INPUT_DRAWS = [{'x': 'plus many'}]\n",
    "same_work: gave a NoneType": "def same_work(given, generator):\n    pass\n",
    "same_work: gave 'z', not one of": "def same_work(given, generator):\n    return {'z': given['y']}\n",
    "input y: generated as (1, 16)": "def same_work(given, generator):\n    return {'y': given['y'][:1]}\n",
    "run: out is a complex tensor": "def run(x, y, factor):\n    return (x + factor * y) * 1j\n",
    "some rows raises ValueError: no rows": SLOW + "def reference_rows(inputs, rows):\n"
    "    raise ValueError('no rows')\n",
    "run: out has shape (32, 16)": SLOW + "def reference_rows(inputs, rows):\n    return inputs\n",
    "REFERENCE_ROWS: 'z'": SLOW + "REFERENCE_ROWS = {'z': 0}\n",
    "REFERENCE_ROWS: 'x': 7 is no dimension": SLOW + "REFERENCE_ROWS = {'x': 7}\n",
}


@pytest.mark.parametrize("told", NONSENSE)
def test_nonsense_of_a_hook_is_one_line_and_accuses_nobody(tmp_path, told):
    root, notes = copied_set(tmp_path), []
    source = Catalog.open(root).definition(DEFINITION).source_path
    source.write_text(f"{source.read_text()}\n\n{NONSENSE[told]}")

    class Told(Observer):
        def note(self, line):
            notes.append(line)

    catalog, settings = Catalog.open(root), Settings(rounds=1, most_rounds=1, iterations=4, timeout_seconds=30)
    plan = make_plan(catalog, CPU, settings, ["honest"], workloads=("32",))
    assert Runner(catalog, CPU, settings, Told()).run(plan) == []
    assert any(f"{DEFINITION}.py: " in note and told in note and "\n" not in note for note in notes), notes


@pytest.mark.parametrize("given", ["None", "torch.ones(32, 16).to_sparse()"])
def test_pack_says_which_hook_gave_no_tensor(tmp_path, given):
    from kernelderby.measure.judge.blobs import pack_blobs

    root = copied_set(tmp_path)
    source = Catalog.open(root).definition(DEFINITION).source_path
    source.write_text(
        f"{source.read_text()}\n\ndef generate_inputs(a, d):\n    import torch\n    return {{'y': {given}}}\n"
    )
    catalog = Catalog.open(root)
    with pytest.raises(DerbyError, match="generate_inputs: y is a"):
        list(pack_blobs(catalog))


def test_an_output_of_four_bits_is_no_crash(tmp_path):
    root, notes = copied_set(tmp_path), []
    path = Catalog.open(root).definition(DEFINITION).path
    data = json.loads(path.read_text())
    data["outputs"]["out"]["dtype"] = "float4_e2m1"
    path.write_text(json.dumps(data))

    class Told(Observer):
        def note(self, line):
            notes.append(line)

    catalog, settings = Catalog.open(root), Settings(rounds=1, most_rounds=1, iterations=4, timeout_seconds=30)
    plan = make_plan(catalog, CPU, settings, ["honest"], workloads=("32",))
    assert Runner(catalog, CPU, settings, Told()).run(plan) == []
    assert any("outputs.out: float4_e2m1 cannot be compared" in note for note in notes), notes
