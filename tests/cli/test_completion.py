"""The shell's completion knows operators, solutions and GPUs of the set; help has examples; errors speak as a wheel."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kernelderby
from kernelderby import DerbyError
from kernelderby.store import locate


def completed(root, line):
    """The completions that the shell gets for the last word of a line."""
    environment = {
        **os.environ,
        "_DERBY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
        "DERBY_ROOT": str(root),
    }
    done = subprocess.run([sys.executable, "-m", "kernelderby"], env=environment, capture_output=True, text=True)
    return [each.removeprefix("plain,") for each in done.stdout.split()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("derby show sc", ["scale_rows_h4"]),
        ("derby rank --solutions toy_fast,toy_b", ["toy_fast,toy_baseline"]),
        ("derby explain toy_", ["toy_baseline", "toy_fast"]),
        ("derby gate toy_f", ["toy_fast"]),
        ("derby rank --gpu h200", ["h200"]),
        ("derby expl", ["explain"]),
        ("derby show nothing", []),
        ("derby bench mine", ["file,mine"]),
    ],
)
def test_names_of_the_set(small_set, line, offered):
    assert completed(small_set, line) == offered


@pytest.mark.parametrize("verb", ["prompt", "explain", "gate", "mcp"])
def test_help_has_examples(derby, verb):
    assert f"derby {verb} " in derby(verb, "--help", columns=80)[1].split("Options")[0].split("\n", 1)[1]


def test_a_wheel_names_itself_where_an_extra_is_missing(monkeypatch, tmp_path):
    assert locate.install_words("measure") == "pip install -e '.[measure]'"  # this is a checkout
    monkeypatch.setattr(locate, "__file__", str(tmp_path / "site-packages/kernelderby/store/locate.py"))
    assert locate.install_words("measure") == "pip install 'kernelderby[measure]'"


def test_answers_are_short_and_draw(small_set, tmp_path):
    pytest.importorskip("matplotlib")
    found = kernelderby.open(small_set)
    assert repr(found.rank("scale_rows_h4")) == "Answer(tuple of 1)"
    assert repr(found.show("scale_rows_h4")) == "Answer(Contract)"
    picture = found.rank("scale_rows_h4").plot(tmp_path / "race.svg")
    assert "<svg" in Path(picture).read_text()
    with pytest.raises(DerbyError, match="has no picture"):
        found.show("scale_rows_h4").plot(tmp_path / "none.svg")


def test_the_image_holds_what_the_package_needs(checkout):
    """Every file that it copies is there, and all that the package takes along is copied."""
    lines = (checkout / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((checkout / name).exists() for name in copied)
    taken = {"kernelderby", "definitions", "workloads", "solutions", "traces", "profiles", "pyproject.toml"}
    build = tomllib.loads((checkout / "pyproject.toml").read_text())
    assert build["tool"]["hatch"]["build"]["hooks"]["custom"] == {}  # hatchling then reads hatch_build.py
    taken |= {"hatch_build.py", build["project"]["readme"], *build["project"]["license-files"]}
    assert taken <= set(copied)
