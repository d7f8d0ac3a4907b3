"""derby merge: every row once, in order, whatever the order of the folders; contradictions set aside."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.merge import merge
from kernelderby.errors import DerbyError
from kernelderby.store.appended import CLAIMS, lock_bytes

FILE = "traces/h200/toy/scale_rows_h4.jsonl"


def other(tmp_path, small_set, name, edit=lambda row: None, lines=slice(None)):
    folder = tmp_path / name
    rows = [json.loads(line) for line in (small_set / FILE).read_text().splitlines()][lines]
    for row in rows:
        edit(row)
    path = folder / FILE
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def moved(session, timestamp):
    def edit(row):
        row["evaluation"]["timestamp"] = timestamp
        row["measurement"]["session"] = session

    return edit


def test_each_row_once_and_again_nothing(small_set, tmp_path):
    before = (small_set / FILE).read_text()
    same = other(tmp_path, small_set, "same")
    assert [(each.added, each.conflicts) for each in merge(small_set, [same]).files] == [(0, 0)]
    assert (small_set / FILE).read_text() == before
    theirs = other(tmp_path, small_set, "theirs", moved("elsewhere", "2099-01-01T00:00:00+00:00"))
    merge(small_set, [theirs])
    merged = (small_set / FILE).read_text()
    assert merged.startswith(before) and len(merged.splitlines()) == 2 * len(before.splitlines())
    merge(small_set, [theirs, same])
    assert (small_set / FILE).read_text() == merged


def test_the_order_of_the_folders_does_not_matter_and_older_rows_do_not_win(small_set, tmp_path):
    old = other(tmp_path, small_set, "old", moved("old", "2001-01-01T00:00:00+00:00"))
    new = other(tmp_path, small_set, "new", moved("new", "2099-01-01T00:00:00+00:00"))
    twin = shutil.copytree(small_set, tmp_path / "twin")
    merge(small_set, [old, new])
    merge(twin, [new])
    merge(twin, [old])
    assert (small_set / FILE).read_text() == (twin / FILE).read_text()
    lines = (small_set / FILE).read_text().splitlines()
    assert json.loads(lines[0])["measurement"]["session"] == "old"
    assert json.loads(lines[-1])["measurement"]["session"] == "new"


def test_a_contradiction_is_set_aside_once(small_set, tmp_path):
    def edit(row):
        row["measurement"]["host_us"] = 123.0
        row["measurement"].setdefault("session", "s")

    for line in (small_set / FILE).read_text().splitlines():
        assert json.loads(line)["measurement"]["session"]
    theirs = other(tmp_path, small_set, "theirs", edit, slice(0, 1))
    before = (small_set / FILE).read_text()
    for expected in (1, 0):
        (found,) = merge(small_set, [theirs]).files
        assert (found.added, found.conflicts) == (0, expected)
    assert (small_set / FILE).read_text() == before
    (aside,) = (small_set / f"{FILE}.conflicts").read_text().splitlines()
    assert json.loads(aside)["measurement"]["host_us"] == 123.0
    assert len(Catalog.open(small_set).traces()) == len(before.splitlines())


def test_three_folders_in_any_order_and_twice_are_one_set(small_set, tmp_path):
    """Rows of one machine each; the third contradicts the second in a row and has rows of another protocol."""

    def of_protocol(row):
        moved("third", "2003-01-01T00:00:00+00:00")(row)
        row["measurement"]["protocol"] = "cuda-events"

    def contradicts(row):
        moved("second", "2002-01-01T00:00:00+00:00")(row)
        row["measurement"]["host_us"] = 0.001

    one = other(tmp_path, small_set, "one", moved("one", "2001-01-01T00:00:00+00:00"))
    two = other(tmp_path, small_set, "two", moved("second", "2002-01-01T00:00:00+00:00"))
    three = other(tmp_path, small_set, "three", of_protocol)
    with (three / FILE).open("a") as file:
        file.write((other(tmp_path, small_set, "four", contradicts, slice(0, 1)) / FILE).read_text())
    own = len((small_set / FILE).read_text().splitlines())
    results = set()
    for order in itertools.permutations([one, two, three]):
        twin = Path(shutil.copytree(small_set, tmp_path / "-".join(each.name for each in order)))
        (found,) = merge(twin, order).files
        assert (found.added, found.known, found.conflicts) == (3 * own, 0, 1)
        merged = (twin / FILE).read_text(), (twin / f"{FILE}.conflicts").read_text()
        (found,) = merge(twin, order[::-1]).files
        assert (found.added, found.conflicts) == (0, 0)
        assert merged == ((twin / FILE).read_text(), (twin / f"{FILE}.conflicts").read_text())
        results.add(merged)
    ((text, aside),) = results
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 4 * own and len(aside.splitlines()) == 1
    assert sum(row["measurement"]["protocol"] == "cuda-events" for row in rows) == own


def test_what_is_no_row_is_told_and_what_cannot_be_merged_refused(small_set, tmp_path):
    theirs = other(tmp_path, small_set, "theirs", moved("elsewhere", "2099-01-01T00:00:00+00:00"), slice(0, 1))
    with (theirs / FILE).open("a") as file:
        file.write("{broken\n")
    assert "is no row" in merge(small_set, [theirs]).warnings[0]
    with pytest.raises(DerbyError, match="is the set itself"):
        merge(small_set, [small_set])
    with pytest.raises(DerbyError, match="has no traces"):
        merge(small_set, [tmp_path / "nothing"])
    with (small_set / FILE).open("r+") as file:
        assert lock_bytes(file.fileno(), CLAIMS + 5, 1)
        with pytest.raises(DerbyError, match="a run measures into it"):
            merge(small_set, [theirs])


def test_a_folder_above_sets_is_refused(small_set, tmp_path):
    other(tmp_path, small_set, "above/theirs", moved("elsewhere", "2099-01-01T00:00:00+00:00"))
    before = (small_set / FILE).read_text()
    with pytest.raises(DerbyError, match="is not at <gpu>/<op_type>/<operator>.jsonl"):
        merge(small_set, [tmp_path / "above"])
    assert (small_set / FILE).read_text() == before
