"""REFERENCE_ROWS of the definitions: the reference of some rows is these rows of the whole one."""

from __future__ import annotations

import pytest
from measuring import MISBEHAVIOURS

torch = pytest.importorskip("torch")
from kernelderby.catalog import Catalog  # noqa: E402
from kernelderby.measure.judge.cases import small_cases  # noqa: E402
from kernelderby.measure.judge.correctness import joined_rows, judge, reference_outputs, some_rows  # noqa: E402
from kernelderby.measure.judge.definition import module_of  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker  # noqa: E402
from kernelderby.rows.measurement import Status  # noqa: E402

CATALOG = Catalog.open(MISBEHAVIOURS.parent.parent)
WITH_ROWS = [
    name
    for name, each in CATALOG.definitions.items()
    if "\nREFERENCE_ROWS = " in each.reference or "\ndef reference_rows(" in each.reference
]


def test_the_slow_references_have_them():
    assert len(WITH_ROWS) >= 10


@pytest.mark.parametrize("name", WITH_ROWS)
def test_some_rows_are_those_of_the_whole(name):
    definition = CATALOG.definition(name)
    module = module_of(definition)
    for case in small_cases(definition, module.SMALL_AXES, getattr(module, "SMALL_VARIANTS", None), 1):
        inputs = InputMaker(definition, module, case, torch.device("cpu"), CATALOG.root, "secret").make(0)
        whole = {key: value.to(torch.float32) for key, value in reference_outputs(definition, module, inputs).items()}
        count = len(next(iter(whole.values())))
        rows = sorted({0, count // 2, count - 1}) if count else []
        assert judge(definition, module, *some_rows(definition, module, inputs, whole, rows)).status is Status.PASSED, (
            case
        )
        if count:
            wrong = {key: value + 3 * value.abs().max() for key, value in whole.items()}
            assert (
                judge(definition, module, *some_rows(definition, module, inputs, wrong, rows)).status
                is Status.WRONG_VALUES
            )


@pytest.mark.parametrize(
    "name", [name for name in WITH_ROWS if "\nREFERENCE_ROWS = " in CATALOG.definition(name).reference]
)
def test_the_rows_of_several_calls_at_once_are_those_of_each(name):
    definition = CATALOG.definition(name)
    module = module_of(definition)
    for case in small_cases(definition, module.SMALL_AXES, getattr(module, "SMALL_VARIANTS", None), 1):
        maker = InputMaker(definition, module, case, torch.device("cpu"), CATALOG.root, "secret")
        calls = [maker.make(0)]
        for variant in range(2):
            calls.append({**calls[0], **{key: calls[0][key].clone() for key in module.REFERENCE_ROWS}})
            fresh = maker.make(0, random_variant=f"other/{variant}")
            calls[-1] |= {key: fresh[key] for key in module.REFERENCE_ROWS}
        joined = reference_outputs(definition, module, joined_rows(module, calls[0], calls))
        for number, inputs in enumerate(calls):
            count = len(next(iter(joined.values()))) // len(calls)
            rows = {key: value[number * count : (number + 1) * count] for key, value in joined.items()}
            assert judge(definition, module, inputs, rows).status is Status.PASSED, case
