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
    loaded = subprocess.run([sys.executable, "-X", "importtime", "-m", "kernelderby.cli", "--help"],
                            capture_output=True, text=True, check=True).stderr
    for heavy in ("torch", "numpy", "rich", "kernelderby.cli.rank", "kernelderby.catalog"):
        assert f" {heavy}\n" not in loaded


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_exists_and_has_help(derby, name):
    code, out, err = derby(name, "--help")
    assert code == 0, err
    assert ("--root" in out and "--json" in out) or "Commands:" in out  # a group has them on its verbs


@pytest.mark.parametrize(("typed", "said"), [("bnch", "did you mean bench"), ("ranks", "did you mean rank"),
                                             ("xyzzy", "there are doctor, pack")])
def test_an_unknown_verb_suggests_near_names(derby, typed, said):
    code, out, err = derby(typed)
    assert code == 1 and out == ""
    assert err.count("\n") == 1 and err.startswith("derby: ") and said in err


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


def test_pack_json(derby, small_set):
    (small_set / MAIN).write_text((small_set / MAIN).read_text() + "\n")
    code, out, _ = derby("pack", "--check", "--json", "--root", small_set)
    found = json.loads(out)
    assert code == 1 and found["check"] is True and "toy_fast.json" in found["changes"][0]


def test_roofline_text(derby, small_set):
    """Workload 2: 36,000 bytes at 4.8 TB/s = 0.0075 us; 8,000 flops at 67 TFLOP/s = 0.000119 us; 8/36 flops a byte."""
    code, out, _ = derby("roofline", D, "--root", small_set)
    assert code == 0
    assert "1000      4000            0.0075           0.000119        0.222  memory" in out
    assert "4.8 TB/s" in out and "datasheet" in out


def test_roofline_json(derby, small_set):
    found = json.loads(derby("roofline", "--json", "--gpu", "NVIDIA H200", "--root", small_set)[1])
    assert found["gpu"] == "h200" and "datasheet" in found["source"]
    row = found["definitions"][D][1]
    assert (row["rows"], row["elements"], row["regime"]) == (1000, 4000, "memory")
    assert row["memory_us"] == pytest.approx(0.0075)


def test_roofline_writes_into_a_page_and_only_between_its_markers(derby, small_set, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- derby roofline --gpu h200 -->\nold\n<!-- /derby -->\nafter\n")
    code, out, _ = derby("roofline", "--root", small_set, "--write", page)
    assert code == 0 and "written" in out
    text = page.read_text()
    assert text.startswith("before\n<!-- derby roofline --gpu h200 -->\n") and text.endswith("<!-- /derby -->\nafter\n")
    assert "old" not in text and "| 1000 | 4000 | 0.0075 |" in text
    assert "is up to date" in derby("roofline", "--root", small_set, "--write", page)[1]
    assert page.read_text() == text


@pytest.mark.parametrize(("text", "said"), [
    ("nothing", "is missing"), ("<!-- derby roofline -->\n", "has no <!-- /derby -->"),
    ("<!-- derby roofline -->\n<!-- derby rank -->\n<!-- /derby -->", "has no <!-- /derby -->"),
    ("<!-- derby roofline -->\n<!-- /derby -->\n" * 2, "stands 2 times"), ("<!-- derby rooflines -->", "is missing")])
def test_a_page_without_its_markers_stays_as_it_is(derby, small_set, tmp_path, text, said):
    page = tmp_path / "page.md"
    page.write_text(text)
    code, _, err = derby("roofline", "--root", small_set, "--write", page)
    assert code == 1 and str(page) in err and said in err
    assert page.read_text() == text


@pytest.mark.parametrize(("arguments", "said"), [
    (["--gpu", "h20O"], "did you mean h20"), (["scale_rows_h5"], f"did you mean {D}"),
    (["--gpu", "a100"], None), (["--gpu", "h20"], "float32, for which h20 has no peak")])
def test_roofline_errors(derby, small_set, arguments, said):
    code, _, err = derby("roofline", *arguments, "--root", small_set)
    assert (code, err) == (0, "") if said is None else code == 1 and said in err


def test_roofline_of_a_workload_without_cost(derby, small_set):
    path = small_set / f"workloads/toy/{D}.jsonl"
    path.write_text(path.read_text().replace('"cost"', '"costs"'))
    code, _, err = derby("roofline", "--root", small_set)
    assert code == 1 and "cost: is missing; run derby pack" in err


def test_export(derby, small_set, tmp_path):
    pytest.importorskip("torch")
    assert derby("pack", "--root", small_set)[0] == 0
    (tmp_path / "dataset/definitions").mkdir(parents=True)
    code, out, _ = derby("export", tmp_path / "dataset", "--root", small_set)
    assert code == 0 and "toy_fast.json: solution" in out and ".safetensors" in out
    assert json.loads(derby("export", tmp_path / "dataset", "--json", "--root", small_set)[1]) == {"copied": []}
