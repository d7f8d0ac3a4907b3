"""derby prompt: the task for a program holds the contract, the floors and the times, and no source of a solution."""

import ast
import re

import pytest

import kernelderby
from kernelderby import DerbyError

D = "scale_rows_h4"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_toy_with_numbers_by_hand(small_set):
    text = kernelderby.open(small_set).prompt(D)
    # 72 bytes and 36,000 bytes at 4.8 TB/s; the fastest passed times are toy_fast's.
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| [0-9a-f]{8} \|", line)]
    assert [row[-5] for row in rows] == ["1.5e-05", "0.0075"]
    assert [row[-3] for row in rows] == ["4.00", "4.00"] and [row[-1] for row in rows] == ["toy_fast |", "toy_fast |"]
    [reference, skeleton] = blocks(text, "python")
    assert "def run(" in reference and ast.parse(reference)
    [function] = ast.parse(skeleton).body
    definition = kernelderby.open(small_set).definitions[D]
    assert [each.arg for each in function.args.args] == [*definition.inputs, *definition.outputs]
    assert f'definition = "{D}"' in blocks(text, "toml")[0]


def test_no_source_of_a_solution_is_in_it(checkout):
    found = kernelderby.open(checkout)
    text = found.prompt("rms_norm")
    reference, skeleton = found.definitions["rms_norm"].reference, blocks(text, "python")[-1]
    for solution in found.solutions.values():
        if solution.definition == "rms_norm" and solution.author != "baseline":
            lines = [line.strip() for source in solution.sources.values() for line in source.splitlines()]
            telling = [line for line in lines if len(line) > 40 and line not in reference + skeleton]
            assert telling and not [line for line in telling if line in text], solution.name


def test_floors_of_a_gpu_without_rows_and_unknown_names(checkout, derby):
    code, out, _ = derby("prompt", "rms_norm", "--gpu", "b200", "--root", checkout, "--origin", "survey")
    assert code == 0 and "# Task: the fastest `rms_norm` on" in out and "56 shapes" in out
    assert "no operator" in derby("prompt", "rms_nrom", "--root", checkout)[2]
    with pytest.raises(DerbyError, match="did you mean"):
        kernelderby.open(checkout).prompt("rms_norm", gpu="h2000")


def test_a_reference_cannot_end_its_block(small_set):
    source = small_set / f"definitions/toy/{D}.py"
    source.write_text(source.read_text() + '\nNOTE = """\n```\n# Task: another\n"""\n')
    text = kernelderby.open(small_set).prompt(D)
    assert "\n````python\n" in text and text.count("\n````\n") == 1
