"""derby check, bench and doctor on a small set, without a GPU."""

import csv
import json

import pytest

pytest.importorskip("torch")


def test_check_shows_ratios_failures_and_skips(derby, misbehaviours):
    code, out, _ = derby(
        "check", "--root", misbehaviours, "--device", "cpu", "--seeds", 1, "honest", "wrong_shape", "wants_a_library"
    )
    assert code == 1
    rows = [line.split() for line in out.splitlines()]
    assert ["PASS", "rows=0", "seed=0", "1.0000", "1.0000"] in rows
    assert ["FAIL", "small", "seed=0", "1.0000", "wrong_shape"] in rows
    assert "FAILED wrong_shape on small seed=0 and 1 more cases: wrong_shape: out has shape (3, 16), not (4, 16)" in out
    assert "skipped wants_a_library: module no_such_library is not installed" in out


def test_check_json_and_exit_code_of_what_is_right(derby, misbehaviours):
    code, out, _ = derby("check", "--root", misbehaviours, "--device", "cpu", "--seeds", 1, "--json", "honest")
    found = json.loads(out)
    assert code == 0 and {result["status"] for result in found["results"]} == {"passed"}
    assert [result["case"] for result in found["results"]] == ["small seed=0", "rows=0 seed=0", "rows=1 seed=0"]


def test_a_named_solution_that_is_skipped_is_no_success(derby, misbehaviours):
    words = ("check", "--root", misbehaviours, "--device", "cpu", "--seeds", 1)
    code, out, _ = derby(*words, "--solutions", "honest,wants_a_library")
    assert code == 1 and "3 passed, 0 failed, 1 solutions skipped" in out and "FAIL" not in out
    assert derby(*words, "--solutions", "wants_a_library")[0] == 1
    rows = list(csv.DictReader(derby(*words, "honest", "--format", "csv")[1].splitlines()))
    assert [(row["solution"], row["case"], row["status"]) for row in rows] == [
        ("honest", f"{case} seed=0", "passed") for case in ("small", "rows=0", "rows=1")
    ]


def test_names_that_do_not_exist_are_errors_with_near_ones(derby, misbehaviours):
    for arguments in (("check", "honst"), ("bench", "--solutions", "honst")):
        code, _, error = derby(*arguments, "--root", misbehaviours)
        assert code == 1 and "did you mean honest" in error and error.count("\n") == 1


def test_bench_without_a_gpu_points_to_check(derby, misbehaviours, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, error = derby("bench", "--root", misbehaviours)
    assert code == 1 and not out and error.count("\n") == 1 and "derby check" in error
    assert not (misbehaviours / "traces").exists()


def test_doctor_says_why_not(derby, misbehaviours, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = json.loads(derby("doctor", "--root", misbehaviours, "--json")[1])
    assert found["gpu"] is None and found["gpu_missing"] and found["libs"]["torch"]
    assert found["solutions"]["honest"]["on_cpu"] is None
    assert found["solutions"]["honest"]["on_gpu"].startswith("needs a GPU: ")
    assert found["solutions"]["wants_a_library"]["on_cpu"] == "module no_such_library is not installed"
    code, out, _ = derby("doctor", "--root", misbehaviours)
    assert code == 0 and "module no_such_library is not installed" in out
    rows = list(csv.DictReader(derby("doctor", "--root", misbehaviours, "--format", "csv")[1].splitlines()))
    assert {row["solution"]: row["on_cpu"] for row in rows}[
        "wants_a_library"
    ] == "module no_such_library is not installed"


@pytest.mark.parametrize("has_torch", [True, False])
def test_doctor_is_short_with_and_without_torch(derby, checkout, tmp_path, monkeypatch, has_torch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if not has_torch:  # a module of that name that cannot be imported, ahead of the real one
        (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{checkout}")
    code, out, _ = derby("doctor", "--root", checkout, columns=80)
    lines = out.splitlines()
    assert code == 0 and len(lines) <= 40 and max(map(len, lines)) <= 80
    assert "Traceback" not in out and out.count("ModuleNotFoundError") == (0 if has_torch else 1)
