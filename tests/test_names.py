"""Names from the folders alone, a wrong one refused before anything is imported, and aliases in every verb."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.solutions import read_packed
from kernelderby.errors import DerbyError
from kernelderby.profile.recorded import solution_of
from kernelderby.store.names import is_strange, names_in

FAST = "solutions/alice/toy/scale_rows_h4/toy_fast"
ALIAS = "toy_swift"


@pytest.fixture
def aliased(small_set):
    file = small_set / FAST / "solution.toml"
    file.write_text(f'aliases = ["{ALIAS}"]  # prose: toy_prose\n{file.read_text()}')
    return small_set


def test_names_are_those_that_the_catalog_reads(checkout):
    catalog = Catalog.open(checkout)
    assert set(names_in(checkout, "operator")) == {*catalog.definitions}
    # A definition without a baseline has its reference as a solution, which no file holds.
    assert {*catalog.solutions} - set(names_in(checkout, "solution")) <= {
        f"{each}_reference" for each in catalog.definitions
    }
    assert set(names_in(checkout, "solution")) <= {*catalog.solutions}


@pytest.mark.parametrize(
    ("name", "strange"),
    [
        ("toy_fats", True),
        ("toy_fas", True),
        ("toy_prose", True),
        ("toy_fast", False),
        ("scale_rows_h4_reference", False),
        (ALIAS, False),
        ("a.py", False),
    ],
)
def test_what_is_surely_no_name(aliased, name, strange):
    assert is_strange(aliased, name) is strange


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "toy_fats"), "did you mean toy_fast"),
        (("rank", "--solutions", "toy_fas"), "did you mean toy_fast"),
        (("gate", "toy_fats", "toy_fast"), "did you mean toy_fast"),
        (("tune", "toy_fats"), "did you mean toy_fast"),
        (("check", "none.py", "--for", "scale_rows_h4"), "does not exist"),
        (("bench", "none.py", "--for", "scale_rows_h4", "--device", "cpu"), "does not exist"),
        (("bench", "--for", "scale_rows_h4", "--shape", "row=3"), "did you mean rows"),
        (("new", "operator", "mine", "x:bf17[T]"), "no dtype 'bf17'"),
    ],
)
def test_a_slip_waits_for_no_import(small_set, words, said):
    """A tenth of a second where reading the set and numpy took half of one, torch two."""
    code = (
        "import sys; sys.argv[0] = 'derby'\nfrom kernelderby.cli import main\n"
        "try: main()\nfinally: print([each for each in ('numpy', 'torch') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words, "--root", small_set], capture_output=True, text=True)
    assert said in done.stderr
    assert "torch" not in done.stdout and (done.stdout == "[]\n" or "toy" not in words[1])
    assert done.returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ("rank", "--solutions", f"{ALIAS},toy_baseline"),
        ("rank", "scale_rows_h4", "--baseline", ALIAS),
        ("rank", "--importance", "--solutions", ALIAS),
        ("explain", ALIAS, "--no-compile"),
        ("bench", "--solutions", ALIAS, "--device", "cpu", "--dry-run"),
        ("bench", "--for", "scale_rows_h4", "--solutions", ALIAS, "--device", "cpu", "--dry-run"),
        ("show", "scale_rows_h4"),
    ],
)
def test_an_alias_finds_its_solution_in_every_verb(aliased, derby, words):
    if words[0] == "bench":
        pytest.importorskip("torch")
    code, out, err = derby(*words, "--root", aliased)
    if words[1] == "--importance":  # this set has none: the name alone is asked about
        assert "published_importance" in err
        return
    assert code == 0, err
    assert "toy_fast" in out or "2 to measure" in out
    if words[0] == "show":
        assert f"Also called {ALIAS}" in out


def test_an_alias_is_one_name_more_of_one_solution(aliased):
    catalog = Catalog.open(aliased)
    assert [each.name for each in catalog.solutions_named(("toy_fast", ALIAS))] == ["toy_fast"]
    assert solution_of(catalog, aliased / f"reports/profiles/{ALIAS}_rows8.sqlite") == "toy_fast"
    with pytest.raises(DerbyError, match=f"did you mean {ALIAS}"):
        catalog.solution(f"{ALIAS}s")


def test_an_alias_that_another_solution_has_is_refused(aliased):
    other = aliased / "solutions/baseline/toy/scale_rows_h4/toy_baseline/solution.toml"
    other.write_text(f'aliases = ["Toy_Fast"]\n{other.read_text()}')
    catalog = Catalog.open(aliased)
    assert [*catalog.solutions] == ["toy_fast"]
    assert any("aliases" in each and "has it too" in each for each in catalog.warnings)


def test_an_alias_hides_no_solution(aliased):
    """Its author's folder is read first, and it would take the place of a rival."""
    file = aliased / FAST / "solution.toml"
    file.write_text(file.read_text().replace(ALIAS, "Toy_Baseline", 1))
    catalog = Catalog.open(aliased)
    assert [*catalog.solutions] == ["toy_baseline"] == [catalog.solution("toy_baseline").name]
    assert any("aliases" in each and "has it too" in each for each in catalog.warnings)
    file.write_text(file.read_text().replace("Toy_Baseline", "toy_fast", 1))
    assert len(Catalog.open(aliased).solutions) == 2, "its own name once more takes nothing from anybody"


def test_an_alias_is_packed(aliased, derby):
    assert derby("pack", "--root", aliased)[0] == 0
    assert read_packed(aliased / f"{FAST}.json").aliases == (ALIAS,)
