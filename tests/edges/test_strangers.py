"""Strange surroundings of a command: no stdout, no home, very long names, places that do not exist."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutating import run

from kernelderby.errors import DerbyError
from kernelderby.store import locate

D = "scale_rows_h4"
DEFINITION, WORKLOADS, TRACES = f"definitions/toy/{D}.json", f"workloads/toy/{D}.jsonl", f"traces/h200/toy/{D}.jsonl"


def edit(path, change, line=0):
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    data = json.loads(lines[line])
    change(data)
    lines[line] = json.dumps(data)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("closed", [">&- 2>&-", "| head -c 9"])
def test_streams_that_are_closed(small_set, closed):
    """No traceback, and no message goes where the tables belong."""
    words = f'exec "$0" -m kernelderby.cli list --root "$1" {closed}'
    done = subprocess.run(["bash", "-c", words, sys.executable, small_set], capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr


def test_a_full_disk_behind_stdout_is_said(small_set):
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "kernelderby.cli", "rank", "--root", str(small_set)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left on device; look at" in done.stderr


def test_a_user_without_a_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # its message about an unknown user
    monkeypatch.chdir(tmp_path)
    assert locate.own_copy() is None and locate.is_set(locate.find_set())
    monkeypatch.setattr(locate, "_INSTALLED", tmp_path)
    with pytest.raises(DerbyError, match="there is no home"):
        locate.writable_set(tmp_path)


def test_a_working_directory_that_was_removed(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert locate.is_set(locate.find_set()) and run("list", "--root", locate.find_set()).code == 0


def test_a_measuring_command_leaves_a_working_directory_that_was_removed(monkeypatch, tmp_path):
    """oneMKL ended it without a word of ours."""
    from kernelderby.measure.wire.early import leave_folder_that_is_gone

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    leave_folder_that_is_gone()
    assert Path.cwd() == Path("/")
    monkeypatch.chdir(tmp_path)
    leave_folder_that_is_gone()
    assert Path.cwd() == tmp_path


def test_a_root_that_leads_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for verb in ("list", "rank", "pack", "report"):
        assert "no trace set" in run(verb, "--root", tmp_path / "loop").err


@pytest.mark.parametrize("place", ["/", ".", "pipe", "loop"])
def test_a_page_goes_to_a_file_or_nowhere(small_set, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    assert re.search("cannot be written|is a folder; name a file", run("report", place, "--root", small_set).err)
    assert sorted(os.listdir()) == ["loop", "pipe", "set"]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (WORKLOADS, lambda line: line.update(definition="y" * 10**6), "255 letters at most"),
        (TRACES, lambda line: line.update(solution="y" * 10**6), "255 letters at most"),
        (DEFINITION, lambda one: one["inputs"]["x"]["shape"].append("y" * 10**6), "is no axis"),
        (DEFINITION, lambda one: one["tolerances"][0].update(atol="\ud800"), "tolerances[0].atol: must be"),
        (TRACES, lambda line: line["measurement"]["samples_us"][0].__setitem__(0, 1e-300), "1e-06 to 1e+12 us"),
        (TRACES, lambda line: line["measurement"]["samples_us"][0].__setitem__(0, 1e300), "1e-06 to 1e+12 us"),
        (TRACES, lambda line: line["evaluation"]["performance"].update(latency_ms=1e-300), "1e-09 to 1e+09 ms"),
    ],
)
def test_beyond_measure_is_one_line_that_fits_a_screen(small_set, file, change, words):
    edit(small_set / file, change)
    said = run("rank", "--root", small_set).err
    assert words in said and said.count(f"{file.rpartition('/')[2]}:") == 1
    assert all(len(line) < 2100 for line in said.splitlines())


def test_the_name_of_a_file_moves_no_cursor(small_set, monkeypatch):
    """run() looks for control characters."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # without torch, which takes its time
    strange = small_set / "definitions/toy/\x1b[31mred.json"
    strange.write_text("{}")
    assert "[31mred.json: name: is missing" in run("list", "--root", small_set).err
    assert "broken  " in run("pack", "--check", "--root", small_set).out


@pytest.mark.parametrize("verb", [("list", "zzz"), ("rank",), ("rank", D), ("roofline", D), ("show", D)])
def test_what_was_left_out_is_told_beside_the_error_that_it_caused(small_set, verb):
    (small_set / DEFINITION).write_text("{}")
    lines = run(*verb, "--root", small_set).err.splitlines()
    assert 1 <= len(lines) <= 2 and sum("name: is missing" in line for line in lines) == 1


def test_a_picture_of_no_times_is_said(small_set, tmp_path):
    """Rows, but the workloads that they are of were left out."""
    (small_set / WORKLOADS).write_text("{}\n")
    outcome = run("report", "--picture", tmp_path / "x.svg", "--root", small_set)
    assert outcome.code == 1 and "--picture: the set holds no recorded times" in outcome.err


def test_many_unknown_names_are_not_all_listed():
    assert "and 999 more" not in run("rank", "zzzz").err and len(run("rank", "zzzz").err) < 1000
    assert "`derby show` lists them" in run("rank", "rms_norm", "--workloads", "zzzz").err


def test_ctrl_c_among_the_imports_is_no_traceback():
    """Also during the import of the command itself: its entry point comes first."""
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
import runpy
runpy.run_module("kernelderby.__main__", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -2 and done.stderr == ""
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert 'derby = "kernelderby.__main__:main"' in project.read_text()


def test_a_library_that_cannot_be_loaded_is_said(small_set, monkeypatch):
    """NumPy fails so when memory is short or half of it is installed."""

    def broken(*_):
        raise ImportError("numpy:\nfailed to map segment from shared object", name="numpy")

    monkeypatch.setattr("kernelderby.api.trace_set.rankings_answer", broken)
    outcome = run("rank", "--root", small_set)
    assert (
        outcome.code == 1 and outcome.err.count("\n") == 1 and "numpy: cannot be loaded (numpy: failed" in outcome.err
    )
