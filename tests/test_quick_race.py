"""benchmarks/quick_race.py on the CPU: it draws fresh shapes, times solutions in turn, and tells of wrong ones."""

import json
import subprocess
import sys


def race(checkout, *words):
    command = [sys.executable, checkout / "benchmarks/quick_race.py", "rms_norm", "--rounds", "2", *map(str, words)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def test_two_solutions_are_timed_on_fresh_shapes(checkout, tmp_path):
    names = ["torch_rms_norm", "rms_norm_baseline"]
    done = race(checkout, "--fresh", 3, "--solutions", ",".join(names), "--out", tmp_path / "times.jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["us"].keys() == set(names) and not row["odd"] for row in rows), rows
    assert done.stdout.splitlines()[-1].startswith("rms_norm: torch_rms_norm, best of the others over it on 3 shapes: ")
    again = race(checkout, "--fresh", 1, "--solutions", ",".join(names), "--out", tmp_path / "again.jsonl")
    assert again.returncode == 0
    assert json.loads((tmp_path / "again.jsonl").read_text())["shape"] == rows[0]["shape"]


def test_who_cannot_run_is_told_and_the_others_go_on(checkout):
    done = race(checkout, "--fresh", 1, "--solutions", "rms_norm_baseline,vllm_rms_norm")
    assert done.returncode == 0, done.stderr
    assert "vllm_rms_norm: " in done.stderr + done.stdout
