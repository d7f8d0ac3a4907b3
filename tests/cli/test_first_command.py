"""The first output of a newcomer: one line for each operator, whether there is a GPU, and all of it soon."""

from __future__ import annotations

import importlib.util
import resource
import shutil
import subprocess
import sys

import pytest

from kernelderby.measure.machine import environment
from kernelderby.report.checks import checks_answer

pytest.importorskip("torch")


class Result:
    why = ()

    def __init__(self, definition, status="passed"):
        self.definition, self.solution, self.case, self.status = definition, f"{definition}_one", "small", status
        self.message, self.matched_ratio = "out: 0.5 of the elements match", 1.0

    def to_json(self):
        return {}


def test_many_operators_are_a_line_each_and_failures_say_how_to_repeat_them():
    results = [Result("a"), Result("b", "wrong_values"), Result("c"), Result("d")]
    answer = checks_answer("CPU", results, {"x": "needs a GPU: none", "y": "needs a GPU: none"}, {}, "ab" * 8, 0, False)
    text = answer.to_text(80, False)
    assert sum(line.startswith(("PASS", "FAIL")) for line in text.splitlines()) == 4
    assert "FAILED b_one on small: wrong_values: out: 0.5 of the elements match" in text
    assert f"derby check b_one --secret {'ab' * 8}" in text and "needs a GPU (2)" in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize(
    ("version", "devices", "missing"),
    [
        (
            "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
            (),
            "built without CUDA",
        ),
        (
            "__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
            ("none*",),
            "for CUDA 12.8",
        ),
        ("__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ("null",), None),
        ("__version__ = '2.9.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", (), None),
    ],
)
def test_no_torch_is_imported_to_see_that_there_is_no_gpu(tmp_path, monkeypatch, version, devices, missing):
    """Where the files do not tell, a process has to look."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "version.py").write_text(version)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    found = importlib.util.spec_from_file_location("torch", package / "__init__.py")
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: found if name == "torch" else None)
    monkeypatch.setattr(environment, "_DEVICES", devices)
    seen = environment.without_gpu()
    assert (seen is None) == (missing is None) and (missing is None or missing in seen.gpu_missing)


def test_a_check_of_one_baseline_imports_torch_once_in_each_of_two_processes(checkout):
    """Four seconds of CPU on a machine that does nothing else; here with room for one that does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "kernelderby", "check", "rms_norm_baseline"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 8


def test_doctor_answers_a_script(checkout, derby):
    code, out, _ = derby("doctor", "--has-gpu", "--root", checkout)
    assert (code == 0) == ("no CUDA GPU" not in out) and out.count("\n") == 1
    assert "doctor --has-gpu" in (checkout / "scripts/bench.sh").read_text()


def test_a_quick_check_takes_one_case_of_each_operator(small_set, derby):
    if shutil.which("nvidia-smi"):
        pytest.skip("a check on a GPU takes the workloads")
    whole = derby("check", "--json", "--root", small_set)[1]
    quick = derby("check", "--quick", "--json", "--root", small_set)[1]
    assert quick.count('"case"') < whole.count('"case"')


def test_a_shape_that_nobody_measured_has_neighbours(checkout, derby):
    code, out, err = derby("rank", "rms_norm", "--shape", "num_tokens=64,hidden_size=4096", "--root", checkout)
    assert code == 0 and "is not measured; nearest: " in err and "x away" in err and "derby_rms_norm" in out
    measured = derby("rank", "rms_norm", "--shape", "num_tokens=2500,hidden_size=1024", "--root", checkout)[2]
    assert "is measured" in measured
    assert derby("rank", "--shape", "num_tokens=64", "--root", checkout)[0] == 2
    assert "no axis 'rows'" in derby("rank", "rms_norm", "--shape", "rows=64", "--root", checkout)[2]


def test_options_of_those_who_keep_the_docs_are_not_in_the_help(derby):
    assert "--write" not in derby("rank", "--help")[1] and "--block" not in derby("profile", "stages", "--help")[1]


def test_a_set_without_solutions_says_what_is_missing(small_set, derby):
    shutil.rmtree(small_set / "solutions")
    code, out, _ = derby("check", "--root", small_set)
    assert code == 1 and "nothing to check: no solution of this operator here; `derby new solution NAME" in out


def test_a_set_answers_a_check(small_set):
    import kernelderby

    answer = kernelderby.open(small_set).check(device="cpu")
    assert repr(answer).startswith("Answer(list of ") and {each.status for each in answer.value} == {"passed"}
