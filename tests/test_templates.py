"""One text of an author, a solution for every definition."""

import json
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.pack import pack
from kernelderby.errors import DerbyError

D = "scale_rows_h4"
ABOUT = """name = "carol_$definition"
definition = "$definition"
author = "carol"
description = "The reference."
language = "python"
entry_point = "main.py::run"
destination_passing_style = true
target_hardware = ["CPU"]
"""
CODE = """def run($arguments):
    return ($inputs,), ($outputs,)
"""


@pytest.fixture
def template(small_set) -> Path:
    folder = small_set / "solutions" / "carol" / "template"
    folder.mkdir(parents=True)
    (folder / "solution.toml").write_text(ABOUT)
    (folder / "main.py.in").write_text(CODE)
    return folder


def test_every_definition_gets_a_packed_solution_with_its_reference(small_set, template):
    definitions = Catalog.open(small_set).definitions
    changes = pack(small_set)
    assert len(changes) == len(definitions) and pack(small_set, check=True) == []
    catalog = Catalog.open(small_set, strict=True)
    for name, definition in definitions.items():
        solution = catalog.solutions[f"carol_{name}"]
        assert solution.sources["reference.py"] == definition.reference and not solution.requires.cpu
        inputs, outputs = ", ".join(definition.inputs), ", ".join(definition.outputs)
        assert solution.sources["main.py"] == f"def run({inputs}, {outputs}):\n    return ({inputs},), ({outputs},)\n"


def test_a_changed_template_or_reference_makes_them_stale(small_set, template):
    pack(small_set)
    (template / "main.py.in").write_text(CODE + "# changed\n")
    assert len(pack(small_set, check=True)) == len(Catalog.open(small_set).definitions)
    pack(small_set)
    with open(small_set / f"definitions/toy/{D}.py", "a") as file:
        file.write("\n# changed\n")
    stale = pack(small_set, check=True)
    assert {change.path.name for change in stale} == {f"{D}.json", f"carol_{D}.json"}


def test_what_is_left_out_has_none_and_may_not_linger(small_set, template):
    pack(small_set)
    (template / "solution.toml").write_text(ABOUT + f'[left_out]\n{D} = "a loop"\n')
    with pytest.raises(DerbyError, match=f"carol_{D}.json: .*solution.toml leaves {D} out; remove the file"):
        pack(small_set)
    (small_set / f"solutions/carol/toy/{D}/carol_{D}.json").unlink()
    assert pack(small_set) == [] and f"carol_{D}" not in Catalog.open(small_set).solutions


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('[left_out]\nscale_rows = "no"\n', "left_out: 'scale_rows' is no definition"),
        ("[left_out]\nscale_rows_h4 = 3\n", "left_out"),
        ("speed = 3\n", "speed"),
    ],
)
def test_a_wrong_field_is_a_line_that_names_the_file(small_set, template, more, told):
    (template / "solution.toml").write_text(ABOUT + more)
    problems: list[str] = []
    pack(small_set, left_out=problems.append)
    assert len(problems) == 1 and "template/solution.toml" in problems[0] and told in problems[0]


def test_ours_are_of_operators_that_torch_can_trace(checkout):
    """Each definition has Inductor's solution or a reason not to; the packed ones say what they need."""
    from kernelderby.catalog.templates import left_out

    catalog = Catalog.open(checkout)
    without = left_out(checkout / "solutions" / "inductor" / "template")
    ours = {each.definition: each for each in catalog.solutions.values() if each.author == "inductor"}
    assert {*ours} | {*without} == {*catalog.definitions} and not {*ours} & {*without}
    assert all(each.requires.modules == ("torch._inductor",) and each.requires.cpu for each in ours.values())
    assert json.loads(ours["rms_norm"].json_path.read_text())["sources"][1]["path"] == "reference.py"
