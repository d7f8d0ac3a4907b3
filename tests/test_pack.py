"""pack: stale files are found, written once, and then fresh; sources and JSON hold the same."""

import json
import shutil

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.pack import pack
from kernelderby.errors import DerbyError

D = "scale_rows_h4"
FAST = f"solutions/alice/toy/{D}/toy_fast"


def test_a_fresh_set_needs_nothing(small_set):
    assert pack(small_set, check=True) == []


def test_our_own_json_is_fresh(checkout):
    assert [str(change) for change in pack(checkout, check=True)] == []


@pytest.mark.parametrize(
    ("source", "packed", "reason"),
    [
        (f"definitions/toy/{D}.py", f"definitions/toy/{D}.json", "reference"),
        (f"{FAST}/main.py", f"{FAST}.json", "does not match toy_fast/"),
        (f"{FAST}/solution.toml", f"{FAST}.json", "does not match toy_fast/"),
    ],
)
def test_a_changed_source_makes_its_json_stale_until_packed(small_set, source, packed, reason):
    comment = "\n# changed\n"
    if source.endswith(".toml"):
        text = (small_set / source).read_text().replace("One line of torch.", "Another text.")
        (small_set / source).write_text(text)
    else:
        with open(small_set / source, "a") as file:
            file.write(comment)
    before = (small_set / packed).read_bytes()

    changes = pack(small_set, check=True)
    assert [change.path for change in changes] == [small_set / packed] and reason in str(changes[0])
    assert (small_set / packed).read_bytes() == before, "a check must not write"

    assert pack(small_set) == changes
    assert pack(small_set, check=True) == []


def test_a_new_folder_is_packed(small_set):
    (small_set / f"{FAST}.json").unlink()
    assert [change.path for change in pack(small_set)] == [small_set / f"{FAST}.json"]
    assert pack(small_set, check=True) == []


def test_the_packed_definition_holds_the_sources_text_and_every_extra_field(small_set):
    path = small_set / f"definitions/toy/{D}.json"
    before = json.loads(path.read_text())
    source = path.with_suffix(".py")
    source.write_text(source.read_text() + "\n# ärger\n", encoding="utf-8")
    pack(small_set)
    after = json.loads(path.read_text(encoding="utf-8"))
    assert after.pop("reference") == source.read_text(encoding="utf-8")
    before.pop("reference")
    assert after == before and list(after) == list(before)


def test_the_packed_solution_holds_every_source_and_always_its_calling_style(small_set):
    (small_set / FAST / "kernel.cu").write_text("// kernel\n")
    (small_set / FAST / "notes.txt").write_text("not a source\n")
    pack(small_set)
    packed = json.loads((small_set / f"{FAST}.json").read_text())
    assert [source["path"] for source in packed["sources"]] == ["kernel.cu", "main.py"]
    assert packed["spec"]["destination_passing_style"] is True
    assert packed["spec"]["entry_point"] == "main.py::run"


def test_packing_round_trip(small_set):
    """Sources -> JSON -> Solution is sources -> Solution."""
    from_folders = Catalog.open(small_set).solutions
    pack(small_set)
    for solution in from_folders.values():
        shutil.rmtree(solution.folder)
    from_json = Catalog.open(small_set).solutions
    assert from_json.keys() == from_folders.keys()
    for name, solution in from_json.items():
        assert solution.hash == from_folders[name].hash


def test_a_source_that_cannot_be_packed_is_named(small_set):
    (small_set / FAST / "solution.toml").unlink()
    with pytest.raises(DerbyError, match="toy_fast/solution.toml: is missing"):
        pack(small_set)


def test_a_wrong_root_is_an_error_and_never_a_new_folder(tmp_path):
    with pytest.raises(DerbyError, match="no trace set"):
        pack(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
