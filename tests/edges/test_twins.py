"""Two of what there may be one of, and names that look alike: never the last one in silence."""

import json

import pytest
from mutating import run
from test_strangers import DEFINITION, TRACES, WORKLOADS, D, edit

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.store.fields import expect_keys_once

FAST = f"solutions/alice/toy/{D}/toy_fast"
PACKED = f"{FAST}.json"


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def copied_as(root, name):
    """The packed solution once more, under another name."""
    other = json.loads((root / PACKED).read_text()) | {"name": name}
    (root / f"solutions/alice/toy/{D}/{name}.json").write_text(json.dumps(other))


def is_told(root, *words, verb=("list",)):
    """Left out with one line by a verb, an error of `pack --check`."""
    lines = [line for line in run(*verb, "--root", root).err.splitlines() if all(word in line for word in words)]
    checked = run("pack", "--check", "--root", root)
    return len(lines) == 1 and checked.code == 1 and any(word in checked.out for word in words)


@pytest.mark.parametrize("file", [DEFINITION, WORKLOADS])
def test_a_key_twice_in_one_object(small_set, without_torch, file):
    text = (small_set / file).read_text()
    (small_set / file).write_text(
        text.replace('"rows":', '"rows": {"type": "var"}, "rows":' if file == DEFINITION else '"rows": 7, "rows":', 1)
    )
    assert is_told(small_set, "rows: stands twice in one object; remove one of them")


def test_a_key_twice_in_a_row(small_set, without_torch):
    """Ranking reads rows by the hundred thousand: `pack --check` looks."""
    path = small_set / TRACES
    path.write_text(path.read_text().replace('"latency_us":', '"latency_us": 1.0, "latency_us":', 1))
    assert "jsonl:1: latency_us: stands twice" in run("pack", "--check", "--root", small_set).out


def test_a_key_twice_in_a_packed_solution(small_set, without_torch):
    (small_set / FAST / "solution.toml").unlink()
    (small_set / FAST / "main.py").unlink()
    text = (small_set / PACKED).read_text()
    (small_set / PACKED).write_text(text.replace('"sources":', '"sources": [], "sources":', 1))
    assert is_told(small_set, "sources: stands twice")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("./main.py", "two are 'main.py'"),
        ("MAIN.py", "two are 'main.py'"),
        ("main.py/x.py", "'main.py' is a file and a folder"),
    ],
)
def test_two_sources_that_would_be_one_file(small_set, without_torch, other, words):
    (small_set / FAST / "solution.toml").unlink()
    (small_set / FAST / "main.py").unlink()
    edit(small_set / PACKED, lambda one: one["sources"].append({"path": other, "content": "raise SystemExit"}))
    assert is_told(small_set, f"sources: {words}")


def test_many_sources_are_held_against_each_other_quickly(small_set):
    """run() looks at the time."""
    (small_set / FAST / "solution.toml").unlink()
    (small_set / FAST / "main.py").unlink()
    more = [{"path": f"a/b/c/{number}.py", "content": ""} for number in range(50_000)]
    edit(small_set / PACKED, lambda one: one["sources"].extend(more))
    assert run("list", "--root", small_set).code == 0


def test_two_stages_of_one_name(small_set, without_torch):
    toml = small_set / FAST / "solution.toml"
    toml.write_text(toml.read_text() + '\n[[stages]]\nname = "S1"\ntitle = "again"\nkernels = ["x"]\n')
    assert is_told(small_set, "stages: two are 'S1'")


def test_two_definitions_that_differ_in_case(small_set, without_torch):
    text = (small_set / DEFINITION).read_text().replace(f'"{D}"', f'"{D.upper()}"')
    (small_set / f"definitions/toy/{D.upper()}.json").write_text(text)
    assert is_told(small_set, "name:", "has it too", "whatever their case")


def test_two_solutions_that_differ_in_case(small_set, without_torch):
    text = (small_set / PACKED).read_text().replace('"toy_fast"', '"TOY_FAST"')
    (small_set / f"solutions/alice/toy/{D}/TOY_FAST.json").write_text(text)
    assert is_told(small_set, "name:", "has it too", "whatever their case")


@pytest.mark.parametrize("twin", ["toy_\uff46\uff41\uff53\uff54", "toy_fa\u017ft"])
def test_two_solutions_whose_letters_are_written_in_two_ways(small_set, without_torch, twin):
    copied_as(small_set, twin)
    assert is_told(small_set, "name:", "has it too")


@pytest.mark.parametrize("letter", "\ufe0f\u3164\u115f\u2800\u034f\u00a0\u2003\U000e0061\u180b\U0001d173")
def test_a_solution_whose_name_holds_a_letter_that_nobody_sees(small_set, without_torch, letter):
    twin = f"toy_{letter}fast"
    copied_as(small_set, twin)
    assert is_told(small_set, "name: must be", "unseen ones")


@pytest.mark.parametrize("field", ["name", "aliases"])
def test_a_solution_that_takes_the_references_name(small_set, without_torch, field):
    """It would race as plain torch."""
    name = f"{D}_reference"
    if field == "name":
        copied_as(small_set, name)
    else:
        toml = small_set / FAST / "solution.toml"
        toml.write_text(f'aliases = ["{name}"]\n' + toml.read_text())
    assert is_told(small_set, f"{field}:", f"{D}.json has it too")
    assert Catalog.open(small_set).solution(name).author == "baseline"


def test_an_exported_reference_is_one(small_set, without_torch):
    reference = Catalog.open(small_set).solution(f"{D}_reference")
    folder = small_set / f"solutions/baseline/toy/{D}"
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"language": "python", "entry_point": "main.py::run", "destination_passing_style": False}
    sources = [{"path": "main.py", "content": reference.sources["main.py"]}]
    about = {"name": reference.name, "definition": D, "author": "baseline", "spec": spec, "sources": sources}
    (folder / f"{reference.name}.json").write_text(json.dumps(about))
    catalog = Catalog.open(small_set)
    assert catalog.solutions[reference.name].hash == reference.hash and not catalog.warnings


def test_a_scalar_and_an_axis_of_one_name(small_set, without_torch):
    """generate_inputs gets both in one dict."""
    edit(small_set / DEFINITION, lambda one: one["axes"].update(factor={"type": "const", "value": 3}))
    assert is_told(small_set, "inputs.factor: is an axis too")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape_id": 3}, "shape_id: workloads cf66eb2c-f0ef-5616-aca2-16f5525f77bc and another both have 3"),
        ({}, "inputs.scale.path: workloads cf66eb2c-f0ef-5616-aca2-16f5525f77bc and another both have 'blob/"),
    ],
)
def test_two_workloads_with_what_only_one_can_have(small_set, without_torch, change, words):
    """A published number, or a file of generated inputs that each would overwrite."""
    path = small_set / WORKLOADS
    first = json.loads(path.read_text().splitlines()[0]) | change
    other = json.loads(json.dumps(first))
    other["workload"]["uuid"] = "another"
    if change:
        other["workload"]["inputs"]["scale"]["path"] = "blob/another.safetensors"
    path.write_text(f"{json.dumps(first)}\n{json.dumps(other)}\n")
    assert words in run("pack", "--check", "--root", small_set).out


def test_a_field_of_a_table_twice(small_set, without_torch):
    (small_set / "profiles").mkdir()
    table = small_set / "profiles/published_importance.csv"
    table.write_text(f"operator,importance_percent,importance_percent\n{D},10,20\n")
    assert is_told(small_set, "csv:1: 'importance_percent': names two fields")


@pytest.mark.parametrize("text", ["", "\n\n", "# operator,importance_percent\roperator,importance_percent\r"])
def test_a_table_without_a_header(small_set, without_torch, text):
    (small_set / "profiles").mkdir()
    (small_set / "profiles/published_importance.csv").write_bytes(text.encode())
    assert is_told(small_set, "has no line that names the fields")


@pytest.mark.parametrize(
    "gpu", ["NVIDIA H200\n", " NVIDIA H200", "NVIDIA H200\u00a0", "NVIDIA\u202e H200", "NVIDIA H2\u200b00"]
)
def test_a_gpu_that_looks_like_another(small_set, without_torch, gpu):
    """It would get a ranking of its own."""
    edit(small_set / TRACES, lambda row: row["evaluation"]["environment"].update(hardware=gpu))
    assert is_told(
        small_set, "evaluation.environment.hardware", "without control characters, unseen ones and outer blanks"
    )


@pytest.mark.parametrize(
    ("field", "value"), [("modules", "os\n"), ("executables", "nvcc\n"), ("minimum_compute_capability", "9.0\n")]
)
def test_a_line_break_at_the_end_of_a_word(small_set, without_torch, field, value):
    (small_set / FAST / "solution.toml").unlink()
    (small_set / FAST / "main.py").unlink()
    edit(small_set / PACKED, lambda one: one["requires"].update({field: value if "compute" in field else [value]}))
    assert is_told(small_set, f"requires.{field}", "must be")


@pytest.mark.parametrize(("field", "value"), [("rtol", 1.0), ("rtol", 1e9), ("required_matched_ratio", 0.4)])
def test_a_tolerance_that_lets_zeros_or_most_elements_pass(small_set, without_torch, field, value):
    edit(small_set / DEFINITION, lambda one: one["tolerances"][0].update({field: value}))
    assert is_told(small_set, f"tolerances[0].{field}: must be")


def test_very_many_keys_are_held_against_each_other_quickly(small_set):
    many = ",".join(f'"k{number}":1' for number in range(100_000))
    with pytest.raises(DerbyError, match="k99999: stands twice in one object"):
        expect_keys_once("a.json", f'{{{many},"k99999":2}}'.encode())
    path = small_set / "profiles" / "published_importance.csv"
    path.parent.mkdir()
    path.write_text(",".join(f"c{number}" for number in range(100_000)) + ",c99999\n1\n")
    assert "'c99999': names two fields" in run("list", "--root", small_set).err


def test_very_many_unknown_fields_are_not_all_told(small_set):
    path = small_set / f"solutions/alice/toy/{D}/toy_fast/solution.toml"
    path.write_text(path.read_text() + "".join(f"\n[t{number}]" for number in range(20_000)))
    assert run("list", "--root", small_set).err.count("is no field") == 16
