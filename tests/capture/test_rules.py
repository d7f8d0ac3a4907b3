"""The rules of derby capture are whole: every one names what its definition needs, and its examples."""

import pytest

from kernelderby.capture.rules import rules
from kernelderby.catalog import Catalog
from tests.conftest import CHECKOUT

FROM_A_MODEL = {"top_k"}  # --model tells it


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.entry.id)
def test_a_rule_fits_its_examples_and_fills_every_axis(rule):
    entry, definition = rule.entry, Catalog.open(CHECKOUT).definitions[rule.entry.definition]
    assert entry.examples and all(rule.operator.fullmatch(example) for example in entry.examples)
    named = {name.removeprefix("*") for text in entry.inputs.values() for name in text.removeprefix("?").split()}
    named |= {*entry.values, *entry.sizes}
    needed = {axis for axis, size in definition.axes.items() if size is None}
    needed |= {name for name, spec in definition.inputs.items() if spec.shape is None}
    assert needed - named <= (FROM_A_MODEL if "model" in entry.needs.casefold() else set())


def test_ids_are_unique():
    ids = [rule.entry.id for rule in rules()]
    assert len(ids) == len(set(ids))
