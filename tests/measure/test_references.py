"""The reference's outputs, computed once for all who race on the same contents; which of their calls are compared."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from measuring import CPU, DEFINITION, MISBEHAVIOURS, copied_set, measure

from kernelderby.catalog import Catalog
from kernelderby.measure.judge import exchange as room
from kernelderby.rows.measurement import Status

torch = pytest.importorskip("torch")
from kernelderby.measure.judge.checksums import checksum  # noqa: E402
from kernelderby.measure.judge.exchange import References  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker  # noqa: E402
from kernelderby.measure.run.verify import verify  # noqa: E402

CATALOG = Catalog.open(MISBEHAVIOURS)


def module():
    """A reference that gives back its input, and counts."""
    calls = []
    return SimpleNamespace(run=lambda x, y, factor: calls.append(None) or x, calls=calls)


def given(value):
    return {"x": torch.full((2, 16), value), "y": torch.zeros(2, 16), "factor": 1.0}


def asked(references, one, inputs):
    return references.of(CATALOG.definition(DEFINITION), one, inputs, checksum(inputs))["out"]


def test_the_same_contents_are_computed_once_and_others_anew():
    references, one = References(), module()
    assert [float(asked(references, one, given(value))[0, 0]) for value in (1.0, 1.0, 2.0, 1.0)] == [1, 1, 2, 1]
    assert len(one.calls) == 2


def test_what_is_kept_outlives_inputs_that_are_written_over():
    references, one, inputs = References(), module(), given(1.0)
    asked(references, one, inputs)
    inputs["x"].fill_(7.0)
    assert float(asked(references, one, given(1.0))[0, 0]) == 1.0
    assert float(asked(references, one, inputs)[0, 0]) == 7.0


def test_it_keeps_no_more_than_it_may(monkeypatch):
    monkeypatch.setattr(room, "_KEPT_BYTES", 2 * 2 * 16 * 4)
    references, one = References(), module()
    for value in (1.0, 2.0, 3.0, 3.0, 2.0, 1.0):
        asked(references, one, given(value))
    assert len(one.calls) == 4, "the oldest of three has gone"
    references.clear()
    asked(references, one, given(2.0))
    assert len(one.calls) == 5


def test_all_who_race_are_compared_on_the_same_calls_until_somebody_is_out():
    references = References()
    drawn = references.drawn("1/graph", 10)
    assert sorted(drawn) == list(range(10))
    assert references.drawn("1/graph", 10) == drawn
    assert any(references.drawn(f"{number}/graph", 10) != drawn for number in range(2, 6))
    references.redraw()
    assert any(references.drawn(f"{number}/graph", 10) != drawn for number in (1, 1)) or drawn == list(range(10))
    assert References().drawn("many", 1000) != References().drawn("many", 1000), "and by nothing that a seed could tell"


def test_the_cost_of_some_rows_is_the_least_of_all_who_race():
    """A solution that keeps a GPU busy while its rows are compared would have fewer calls compared."""
    references = References()
    for seconds in (0.5, 0.002, 3.0):
        references.rows_took(seconds)
    assert references.rows_seconds == 0.002


def test_solutions_of_one_author_get_contents_of_their_own(tmp_path, monkeypatch):
    """Two processes can write and read /dev/shm: the second one would find the answers there."""
    seen, refresh = {}, InputMaker.refresh

    def refreshed(self, inputs, variant):
        refresh(self, inputs, variant)
        seen.setdefault(variant, set()).add(inputs["x"].sum().item())

    monkeypatch.setattr(InputMaker, "refresh", refreshed)
    root = copied_set(tmp_path)
    [own] = root.glob("solutions/tests/**/honest")
    for author, name in (("tests", "second"), ("others", "third")):
        folder = shutil.copytree(own, root / "solutions" / author / Path(*own.parts[-3:-1]) / name)
        text = (folder / "solution.toml").read_text().replace('"honest"', f'"{name}"')
        (folder / "solution.toml").write_text(text.replace('"tests"', f'"{author}"'))
    rows = measure(root, ["honest", "second", "third"], ("rows=8",), CPU, sealed=True)
    assert {row.solution: row.environment.get("draw") for row in rows} == {"honest": None, "second": 1, "third": None}
    of_turns = [each for variant, each in seen.items() if variant.split("/")[1:2] in (["eager"], ["graph"])]
    counts = {len(each) for each in of_turns}  # 1: only the fastest two made another turn
    assert {2} <= counts <= {1, 2}, "one of each author's first, and of the second"
    assert not verify(root / "traces")[0].problems


def test_a_race_computes_each_reference_once_and_redraws_when_one_is_out(tmp_path, monkeypatch):
    computed, redrawn = [], []
    of, redraw = room.reference_outputs, References.redraw
    monkeypatch.setattr(room, "reference_outputs", lambda *args: computed.append(checksum_of(args[2])) or of(*args))
    monkeypatch.setattr(References, "redraw", lambda self: redrawn.append(None) or redraw(self))
    rows = measure(copied_set(tmp_path), ["honest", "cached_output", "changes_an_input"], ("rows=8",), CPU)
    assert {row.solution: row.status for row in rows}["honest"] is Status.PASSED
    assert len(computed) == len(set(computed)), "no contents twice"
    assert len(redrawn) > 1


def checksum_of(inputs):
    return tuple(sorted(checksum(inputs).items()))
