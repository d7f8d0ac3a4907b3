"""A package of every operator with its plain torch alone, imported once in a process as servers import it."""

import importlib
import sys

import pytest

from kernelderby.catalog import Catalog
from kernelderby.deploy.contents import NAME, contents
from kernelderby.deploy.winners import AllWinners, ChoiceLoss, Winners, kind_of

CHOICE_LOSS = ChoiceLoss(0, None, None, 0, None, 0, {})


def plain_winners(catalog):
    """A package without rows: the operators' contracts and plain torch. In place where the set's solutions are."""
    operators = []
    for definition in catalog.definitions.values():
        own = [each for each in catalog.solutions.values() if each.definition == definition.name]
        kept = [each for each in own if kind_of(each) == "plain" or each.in_place]
        operators.append(Winners(definition, tuple(kept), (), {}, CHOICE_LOSS, {}))
    return AllWinners(("NVIDIA H200",), "cupti-graph-eager-2", ("2026-11-22", "2026-11-23"), tuple(operators), {})


@pytest.fixture(scope="session")
def catalog():
    from tests.conftest import CHECKOUT

    return Catalog.open(CHECKOUT)


@pytest.fixture(scope="session")
def package(catalog, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for path, data in contents(plain_winners(catalog)).items():
        (folder / NAME / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / NAME / path).write_bytes(data)
    sys.path.insert(0, str(folder))
    yield importlib.import_module(NAME)
    sys.path.remove(str(folder))
