"""The command: help without imports, errors in one line, each verb of pack, roofline and export on a small set."""

import json
import subprocess
import sys

import pytest

from kernelderby import cli

D = "scale_rows_h4"
MAIN = f"solutions/alice/toy/{D}/toy_fast/main.py"


def test_help_lists_every_verb_and_imports_none(derby):
    code, out, _ = derby("--help")
    assert code == 0
    for name in cli.VERBS:
        assert f"\n  {name} " in out
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kernelderby.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    for heavy in ("torch", "numpy", "rich", "kernelderby.cli.rank", "kernelderby.catalog"):
        assert f" {heavy}\n" not in loaded


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_exists_and_has_help(derby, name):
    code, out, err = derby(name, "--help")
    assert code == 0, err
    machines = {"report": "--markdown", "prompt": "--gpu", "mcp": "--root"}.get(name, "--json")  # they have no tables
    assert ("--root" in out and machines in out) or "Commands:" in out  # a group has them on its verbs


@pytest.mark.parametrize("verb", [*cli.VERBS, "new operator", "new solution", "profile run", "profile compare"])
def test_help_fits_a_narrow_terminal(derby, verb):
    assert max(map(len, derby(*verb.split(), "--help", columns=80)[1].splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "said"),
    [("bnch", "did you mean bench"), ("ranks", "did you mean rank"), ("xyzzy", "there are doctor, pack")],
)
def test_an_unknown_verb_suggests_near_names(derby, typed, said):
    code, out, err = derby(typed)
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("derby: ") and said in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["rank", "x", "--shape", "T=9"],
        ["shapes", "qwen3-8b", "--tp", "9"],
        ["shapes", "qwen3-8b", "--tokens", "9"],
        ["check", "--seeds", "9"],
        ["profile", "kernels", "x.json", "--window", "9:"],
        ["profile", "kernels", "x.json", "--range", "x", "--repetition", "9"],
    ],
)
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_that_nothing_can_hold_is_one_line(derby, arguments, digits):
    code, out, err = derby(*(word.replace("9", "9" * digits) for word in arguments))
    assert (code, out) == (1, "") and err.count("\n") == 1 and "a number of 100 digits or more; write a smaller" in err


@pytest.mark.parametrize("arguments", [["pack"], ["roofline"], ["export", "."], ["rank"]])
def test_a_wrong_root_is_one_line_and_no_folder(derby, tmp_path, arguments):
    code, _, err = derby(*arguments, "--root", tmp_path / "typo")
    assert code == 1
    assert err.count("\n") == 1 and "typo" in err and "Traceback" not in err
    assert not (tmp_path / "typo").exists()


def test_pack_check_is_quiet_about_a_fresh_set(derby, small_set):
    code, out, _ = derby("pack", "--check", "--root", small_set)
    assert code == 0 and "everything is fresh" in out


def test_pack_check_lists_what_is_stale_and_pack_mends_it(derby, small_set):
    (small_set / MAIN).write_text((small_set / MAIN).read_text() + "\n")
    code, out, _ = derby("pack", "--check", "--root", small_set)
    assert code == 1 and "toy_fast.json: does not match toy_fast/" in out and "run derby pack" in out
    code, out, _ = derby("pack", "--root", small_set)
    assert code == 0 and "wrote  " in out
    assert derby("pack", "--check", "--root", small_set)[0] == 0


def test_pack_check_finds_a_stale_cost(derby, small_set):
    pytest.importorskip("torch")
    path = small_set / f"workloads/toy/{D}.jsonl"
    path.write_text(path.read_text().replace('"elements": 8', '"elements": 9'))
    code, out, _ = derby("pack", "--check", "--root", small_set)
    assert code == 1 and f"{D}.jsonl" in out


def test_pack_without_torch_says_what_it_left_out(derby, small_set, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = derby("pack", "--check", "--root", small_set)
    assert code == 0
    assert "blobs and costs were not checked: torch and safetensors not installed; pip install" in err
    assert json.loads(derby("pack", "--json", "--root", small_set)[1])["left_out"].startswith("blobs and costs")


def test_pack_names_stale_files_as_json(derby, small_set):
    (small_set / MAIN).write_text((small_set / MAIN).read_text() + "\n")
    code, out, _ = derby("pack", "--check", "--json", "--root", small_set)
    found = json.loads(out)
    assert code == 1 and found["check"] is True and "toy_fast.json" in found["changes"][0]


def test_export_copies_solutions_and_inputs_into_a_dataset(derby, small_set, tmp_path):
    pytest.importorskip("torch")
    assert derby("pack", "--root", small_set)[0] == 0
    (tmp_path / "dataset/definitions").mkdir(parents=True)
    code, out, _ = derby("export", tmp_path / "dataset", "--root", small_set)
    assert code == 0 and "toy_fast.json: solution" in out and ".safetensors" in out
    assert json.loads(derby("export", tmp_path / "dataset", "--json", "--root", small_set)[1]) == {"copied": []}
