"""Cases from workloads and SMALL_AXES; inputs that are seeded, shaped and refilled."""

from types import SimpleNamespace

import pytest
from measuring import DEFINITION, MISBEHAVIOURS

from kernelderby.catalog import Catalog
from kernelderby.catalog.selection import select_workloads
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.cases import Case, case_of_workload, small_cases

torch = pytest.importorskip("torch")
from kernelderby.measure.judge import inputs as inputs_module  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker, torch_dtype  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def catalog():
    return Catalog.open(MISBEHAVIOURS)


def test_a_workload_gives_its_case(catalog):
    definition, workload = catalog.definition(DEFINITION), catalog.workloads(DEFINITION)[0]
    case = case_of_workload(definition, workload)
    assert case.sizes == {"rows": 8, "columns": 16} and case.scalars == {"factor": 0.5}
    assert case.seed == workload.seed and case_of_workload(definition, workload, 2).seed == workload.seed + 2
    assert Case(**case.to_json()) == case


def test_small_cases_vary_what_any_operator_has(catalog):
    cases = small_cases(catalog.definition(DEFINITION), {"rows": 4, "columns": 16, "factor": 2.0}, None, 2)
    assert [case.label for case in cases] == [
        "small seed=0",
        "small seed=1",
        "rows=0 seed=0",
        "rows=0 seed=1",
        "rows=1 seed=0",
        "rows=1 seed=1",
    ]
    assert cases[2].sizes == {"rows": 0, "columns": 16} and cases[2].scalars == {"factor": 2.0}
    chosen = small_cases(
        catalog.definition(DEFINITION), {"rows": 4, "columns": 16, "factor": 2.0}, [{"factor": 0.0, "rows": 3}], 1
    )
    assert [(case.sizes["rows"], case.scalars) for case in chosen] == [(3, {"factor": 0.0})]
    with pytest.raises(DerbyError, match="SMALL_AXES: lacks columns"):
        small_cases(catalog.definition(DEFINITION), {"rows": 4}, None, 1)


def test_workloads_by_uuid_and_size(catalog):
    workloads = catalog.workloads(DEFINITION)
    for word in ("32", "rows=32", workloads[1].uuid[:8], workloads[1].uuid):
        assert select_workloads(workloads, [word]) == [workloads[1]]
    assert select_workloads(workloads, []) == workloads
    with pytest.raises(DerbyError, match="no workload '9'.*rows=8"):
        select_workloads(workloads, ["9"])


def maker(catalog, generate=None, **changes):
    case = Case("", {"rows": 5, "columns": 16, **changes}, {"factor": 0.5}, 11)
    module = SimpleNamespace(
        generate_inputs=generate
        or (lambda values, device: {"y": torch.full((values["rows"], 16), float(values["seed"]))})
    )
    return InputMaker(catalog.definition(DEFINITION), module, case, CPU, catalog.root)


def test_inputs_are_in_order_seeded_and_of_their_variant(catalog):
    made = maker(catalog).make()
    assert list(made) == ["x", "y", "factor"] and made["factor"] == 0.5
    assert made["x"].shape == (5, 16) and made["y"][0, 0] == 11
    assert torch.equal(made["x"], maker(catalog).make()["x"])
    other = maker(catalog).make(variant=1)
    assert other["y"][0, 0] == 12 and not torch.equal(other["x"], made["x"])
    same_work = maker(catalog).make(0, random_variant=3)
    assert same_work["y"][0, 0] == 11 and not torch.equal(same_work["x"], made["x"])


def test_a_refill_leaves_the_generated_ones_and_the_addresses(catalog):
    one = maker(catalog)
    made = one.make()
    before, address = made["x"].clone(), made["x"].data_ptr()
    one.refill_random(made, 7)
    assert made["x"].data_ptr() == address and not torch.equal(made["x"], before) and made["y"][0, 0] == 11
    assert torch.equal(made["x"], one.make(0, random_variant=7)["x"])


def test_generated_inputs_must_fit_the_definition(catalog):
    with pytest.raises(DerbyError, match="input y: generated as"):
        maker(catalog, lambda values, device: {"y": torch.zeros(1)}).make()


def test_without_a_generator_the_files_are_read(catalog, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    stored = torch.randn(5, 16)
    safetensors.save_file({"key": stored}, tmp_path / "b.safetensors")
    files = {"y": {"path": "b.safetensors", "tensor_key": "key"}}
    case = Case("", {"rows": 5, "columns": 16}, {"factor": 0.5}, 0, files)
    one = InputMaker(catalog.definition(DEFINITION), SimpleNamespace(), case, CPU, tmp_path)
    assert torch.equal(one.make()["y"], stored)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(DerbyError, match="derby pack"):
        InputMaker(catalog.definition(DEFINITION), SimpleNamespace(), case, CPU, tmp_path).make()


@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int32", "int64", "bool"]
)
def test_random_numbers_are_those_of_flashinfer_bench(name, monkeypatch):
    monkeypatch.setattr(inputs_module, "CHUNK", 1000)
    tensor = torch.empty(3500, dtype=torch_dtype(name))
    generator = torch.Generator().manual_seed(1)
    for start in range(0, 3500, 1000):
        inputs_module._fill_random(tensor[start : start + 1000], generator)
    numbers = tensor.float()
    if name.startswith("float8"):
        assert numbers.abs().max() == 2 and 0.7 < numbers.std() < 1
    elif "float" in name:
        assert 0.9 < numbers.std() < 1.1 and numbers.abs().max() > 2
    elif name == "bool":
        assert 0.4 < numbers.mean() < 0.6
    else:
        low, high = (-128, 128) if name == "int8" else (-1024, 1024)
        assert low <= numbers.min() < low / 2 and high / 2 < numbers.max() < high


def test_an_unknown_dtype_is_an_error():
    with pytest.raises(DerbyError, match="float3"):
        torch_dtype("float3")
