"""derby check, bench and doctor on a small set, without a GPU."""

import csv
import json
import os
import shutil
import subprocess
import sys

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
    assert "FAILED wrong_shape on small seed=0 and 1 more case: wrong_shape: out has shape (3, 16), not (4, 16)" in out
    assert "skipped wants_a_library: module no_such_library is not installed" in out


def test_check_json_and_exit_code_of_what_is_right(derby, misbehaviours):
    code, out, _ = derby("check", "--root", misbehaviours, "--device", "cpu", "--seeds", 1, "--json", "honest")
    found = json.loads(out)
    assert code == 0 and {result["status"] for result in found["results"]} == {"passed"}
    assert [result["case"] for result in found["results"]] == ["small seed=0", "rows=0 seed=0", "rows=1 seed=0"]


def test_a_named_solution_that_is_skipped_is_no_success(derby, misbehaviours):
    words = ("check", "--root", misbehaviours, "--device", "cpu", "--seeds", 1)
    code, out, _ = derby(*words, "--solutions", "honest,wants_a_library")
    assert code == 1 and "3 passed, 0 failed, 1 solution skipped" in out and "FAIL" not in out
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


def test_doctor_says_why_not(derby, misbehaviours, asked_once):
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
    assert code == 0 and len(lines) <= 45 and max(map(len, lines)) <= 80
    assert "Traceback" not in out and out.count("ModuleNotFoundError") == (0 if has_torch else 1)


@pytest.mark.parametrize("verb", [["check", "honest"], ["bench"], ["tune", "honest"], ["profile", "run"]])
def test_without_torch_it_is_one_line(misbehaviours, checkout, tmp_path, verb):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = subprocess.run(
        [sys.executable, "-m", "kernelderby.cli", *verb, "--root", misbehaviours],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{checkout}", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "torch" in done.stderr and "Traceback" not in done.stderr and len(done.stderr) < 300


RETURN = "return x + factor * y"


def spoil(root, old, new):
    """Changes the definition's code."""
    path = root / "definitions/elementwise/scaled_add_n16.py"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (RETURN, "raise ValueError('of the reference')", "run raises ValueError: of the reference"),
        (RETURN, "return x, y", "run: returned 2 outputs, not 1"),
        (RETURN, "return x[:, :1]", "run: out has shape"),
        ("SMALL_AXES =", "import no_such_module\n\nSMALL_AXES =", "does not load: "),
        ("SMALL_AXES =", "SMALLER =", "has no SMALL_AXES"),
    ],
)
def test_what_a_definition_does_wrong_is_no_solution_s_failure(derby, misbehaviours, old, new, said):
    spoil(misbehaviours, old, new)
    code, out, err = derby("check", "--root", misbehaviours, "--device", "cpu", "honest", "raises")
    assert code == 1 and "FAILED" not in out and "Traceback" not in err
    [line] = [line for line in out.splitlines() if "BROKEN" in line]
    assert line.startswith("- BROKEN definition scaled_add_n16: ") and "scaled_add_n16.py" in line and said in line


def test_bench_leaves_out_what_a_definition_cannot_judge(misbehaviours):
    from measuring import CPU

    from kernelderby.catalog import Catalog
    from kernelderby.measure.run.plan import Settings, make_plan
    from kernelderby.measure.run.progress import Observer
    from kernelderby.measure.run.runner import Runner

    notes = []

    class Noting(Observer):
        def note(self, line):
            notes.append(line)

    spoil(misbehaviours, RETURN, "raise ValueError('of the reference')")
    catalog, settings = Catalog.open(misbehaviours), Settings(rounds=2, most_rounds=2, iterations=2, timeout_seconds=60)
    plan = make_plan(catalog, CPU, settings, ["honest"], workloads=["8"])
    assert Runner(catalog, CPU, settings, Noting()).run(plan) == []
    [note] = [note for note in notes if "left out" in note]
    assert "rows=8" in note and "scaled_add_n16.py: run raises ValueError: of the reference" in note


def test_a_solution_does_not_reach_the_next_one_of_its_author_on_a_cpu(misbehaviours, monkeypatch):
    """a_spoiler would break honest after it in the same process."""
    from kernelderby.catalog import Catalog
    from kernelderby.measure.machine.probe import find_machine
    from kernelderby.measure.run import checks

    folder = misbehaviours / "solutions/tests/elementwise/scaled_add_n16"
    shutil.copytree(folder / "honest", folder / "a_spoiler")
    config = folder / "a_spoiler/solution.toml"
    config.write_text(config.read_text().replace('"honest"', '"a_spoiler"'))
    main = folder / "a_spoiler/main.py"
    main.write_text(main.read_text() + "\n\nimport builtins\n\nbuiltins.spoiled = True\n")
    honest = folder / "honest/main.py"
    honest.write_text(
        honest.read_text().replace(
            "def run(", "import builtins\n\nSPOILED = hasattr(builtins, 'spoiled')\n\n\ndef run(", 1
        )
        + "\n\n_run = run\n\n\ndef run(*arguments):\n    if SPOILED:\n        raise ValueError('spoiled')\n"
        "    return _run(*arguments)\n"
    )
    catalog, machine = Catalog.open(misbehaviours), find_machine(misbehaviours, "cpu")
    started = []
    start = checks.WorkerProcess.__init__

    def counted(self, *arguments, **options):
        started.append(options)
        start(self, *arguments, **options)

    monkeypatch.setattr(checks.WorkerProcess, "__init__", counted)
    monkeypatch.setattr(checks, "_lanes", lambda: 1)
    plan = checks.plan_checks(catalog, machine, ["a_spoiler", "honest"])
    results = checks.run_checks(catalog, machine, plan, 60, lambda result: None)
    assert [result.status for result in results] == ["passed"] * 6, results
    # a process each
    assert len(started) == 2
