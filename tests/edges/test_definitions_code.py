"""Hostile contents of a definition's module: sizes that are no numbers, exceptions of any kind."""

import itertools

import pytest
from mutating import run
from test_strangers import D

from kernelderby.catalog import Catalog
from kernelderby.cli.signals import Signalled
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.definition import DefinitionFailed, blamed_on

SMALL = {"rows": 3, "columns": 4, "factor": 2.0}


@pytest.mark.parametrize(
    ("axes", "variants", "words"),
    [
        ("x", None, "SMALL_AXES: must be an object"),
        ([SMALL], None, "SMALL_AXES: must be an object"),
        (SMALL | {"rows": float("nan")}, None, "SMALL_AXES: rows: must be an integer of 0 or more"),
        (SMALL | {"rows": -3}, None, "SMALL_AXES: rows: must be an integer of 0 or more"),
        (SMALL | {"rows": "3"}, [{}], "SMALL_AXES: rows: must be an integer of 0 or more"),
        (SMALL, [{"rows": 10**400}], "SMALL_AXES: rows: must be an integer of 0 or more"),
        (SMALL, itertools.repeat({"rows": 1}), "SMALL_VARIANTS: must be a list"),
        (SMALL, ["rows"], r"SMALL_VARIANTS: \[0\]: must be an object"),
        (SMALL, {"rows": 1}, "SMALL_VARIANTS: must be a list"),
    ],
)
def test_sizes_that_are_none(small_set, axes, variants, words):
    definition = Catalog.open(small_set).definition(D)
    assert len(small_cases(definition, SMALL, ({}, {"rows": 0}), 1)) == 2
    with pytest.raises(DerbyError, match=f"{D}.py: {words}"):
        small_cases(definition, axes, variants, 1)


@pytest.mark.parametrize("raised", ["GeneratorExit", "SystemExit(0)", "BaseException('x\\ny')", "RecursionError"])
def test_whatever_the_module_raises_is_its_fault(small_set, raised):
    source = small_set / f"definitions/toy/{D}.py"
    source.write_text(f"{source.read_text()}\nraise {raised}\n")
    outcome = run("pack", "--root", small_set)
    assert outcome.code == 1 and f"broken  {source}: does not load: " in outcome.out


def test_a_signal_is_no_fault_of_the_definition(small_set):
    """derby ends by an exception that is a SystemExit, too: it goes through, sys.exit() in a definition does not."""
    definition = Catalog.open(small_set).definition(D)
    with pytest.raises(Signalled), blamed_on(definition, "run raises"):
        raise Signalled(15)
    with pytest.raises(DefinitionFailed, match=f"{D}.py: run raises SystemExit: 3; mend the definition"):
        with blamed_on(definition, "run raises"):
            raise SystemExit(3)
