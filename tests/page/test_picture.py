"""The README's picture: of the traces, whole, escaped, fresh."""

from xml.etree import ElementTree

import pytest
from full_set import SCRIPT

from kernelderby.page.build import build_page
from kernelderby.page.picture import picture

RACE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    return [each.text for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_the_picture_in_the_docs_is_fresh(built, checkout):
    shown = (checkout / "docs" / "images" / "race.svg").read_text()
    assert shown == picture(built.model, RACE), "stale: python scripts/screenshots.py --svg"


def test_every_operator_and_solution_is_named(built):
    words = texts(picture(built.model, "rms_norm"))
    race = next(race for race in built.model.races if race.definition == "rms_norm" and race.is_default)
    for name in race.solutions:
        assert any(word.startswith(name) for word in words)
    for operator in built.model.operators:
        assert operator.name[:27] in " ".join(words) or not operator.races


def test_names_are_escaped(full_page):
    drawn = picture(full_page.model)
    assert "<script" not in drawn and any(SCRIPT[:8] in word for word in texts(drawn))


def test_a_command_draws_it(derby, small_set, tmp_path):
    file = tmp_path / "race.svg"
    code, _, err = derby("report", "--picture", file, "--root", small_set)
    assert code == 0 and err == f"derby: {file}: written\n"
    assert file.read_text() == picture(build_page(small_set).model)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--picture", "x.svg", "--race", "scale_rows"], "did you mean"),
        (["--race", "scale_rows_h4"], "--race goes with --picture"),
        (["out.html", "--picture", "x.svg"], "leave out"),
        (["--picture", "x.png"], "x.png: is written as SVG; end the name in .svg"),
    ],
)
def test_wrong_words_write_no_picture(derby, small_set, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    code, _, err = derby("report", *words, "--root", small_set)
    assert code in (1, 2) and says in err and not (tmp_path / "x.svg").exists()
