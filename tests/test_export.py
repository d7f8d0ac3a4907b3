"""export: the set into another dataset; what lies there stays."""

import json

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.pack import export
from kernelderby.errors import DerbyError

D = "scale_rows_h4"
FAST = f"solutions/alice/toy/{D}/toy_fast"


@pytest.fixture
def packed_set(small_set):
    """The small set with blobs (their bytes do not matter here)."""
    for workload in Catalog.open(small_set).workloads(D):
        path = small_set / workload.inputs["scale"]["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(workload.uuid.encode())
    return small_set


@pytest.fixture
def dataset(tmp_path):
    """An empty dataset of somebody else."""
    (tmp_path / "dataset" / "definitions").mkdir(parents=True)
    return tmp_path / "dataset"


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_everything_goes_into_an_empty_dataset_and_the_sources_stay_here(packed_set, dataset):
    changes = export(packed_set, dataset)
    there = files(dataset)
    assert sorted(change.path.relative_to(dataset).as_posix() for change in changes) == sorted(there)
    assert {name for name in there if not name.startswith("blob/")} == {
        f"definitions/toy/{D}.json",
        f"workloads/toy/{D}.jsonl",
        f"{FAST}.json",
        f"solutions/baseline/toy/{D}/toy_baseline.json",
    }
    assert len([name for name in there if name.endswith(".safetensors")]) == 2
    catalog = Catalog.open(dataset)
    assert set(catalog.solutions) == {"toy_fast", "toy_baseline"} and len(catalog.workloads(D)) == 2


def test_a_second_export_copies_nothing(packed_set, dataset):
    export(packed_set, dataset)
    assert export(packed_set, dataset) == []


def test_a_definition_and_workloads_that_are_there_stay_as_they_are(packed_set, dataset):
    """Theirs may lie elsewhere and differ; the name decides."""
    theirs = {
        f"definitions/other_type/{D}.json": b'{"theirs": 1}',
        f"workloads/other_type/{D}.jsonl": b"theirs\n",
        "definitions/toy/another.json": b"{}",
        f"traces/toy/{D}.jsonl": b"theirs too\n",
    }
    for name, content in theirs.items():
        (dataset / name).parent.mkdir(parents=True, exist_ok=True)
        (dataset / name).write_bytes(content)
    copied = {change.path.relative_to(dataset).as_posix() for change in export(packed_set, dataset)}
    assert copied == {f"{FAST}.json", f"solutions/baseline/toy/{D}/toy_baseline.json"}
    there = files(dataset)
    assert all(there[name] == content for name, content in theirs.items())


def test_their_definition_without_workloads_gets_ours(packed_set, dataset):
    (dataset / "definitions/toy").mkdir()
    (dataset / f"definitions/toy/{D}.json").write_bytes(b"theirs")
    copied = {change.path.relative_to(dataset).as_posix() for change in export(packed_set, dataset)}
    assert f"workloads/toy/{D}.jsonl" in copied and f"definitions/toy/{D}.json" not in copied


def test_a_solution_is_brought_up_to_date(packed_set, dataset):
    export(packed_set, dataset)
    (dataset / f"{FAST}.json").write_text("old")
    assert [change.path for change in export(packed_set, dataset)] == [dataset / f"{FAST}.json"]
    assert json.loads((dataset / f"{FAST}.json").read_text())["name"] == "toy_fast"


def test_a_foreign_solution_of_the_same_name_stops_the_export_before_anything_is_copied(packed_set, dataset):
    foreign = dataset / f"solutions/carol/toy/{D}/toy_fast.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("{}")
    with pytest.raises(DerbyError, match="carol.*'toy_fast' is there already"):
        export(packed_set, dataset)
    assert files(dataset) == {f"solutions/carol/toy/{D}/toy_fast.json": b"{}"}


def test_a_missing_directory_is_an_error_and_never_a_new_folder(packed_set, tmp_path):
    with pytest.raises(DerbyError, match="does not exist"):
        export(packed_set, tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_a_folder_that_is_no_dataset_is_an_error(packed_set, tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(DerbyError, match="no dataset"):
        export(packed_set, tmp_path / "photos")


def test_the_set_itself_is_no_destination(packed_set):
    with pytest.raises(DerbyError, match="the set itself"):
        export(packed_set, packed_set)


def test_without_blobs_it_says_what_makes_them(small_set, dataset):
    with pytest.raises(DerbyError, match="safetensors: does not exist; run derby pack first"):
        export(small_set, dataset)
    assert files(dataset) == {}


def test_a_stale_set_is_not_exported(packed_set, dataset):
    (packed_set / FAST / "main.py").write_text("def run(x, scale, factor, y):\n    pass\n")
    with pytest.raises(DerbyError, match="run derby pack first"):
        export(packed_set, dataset)
