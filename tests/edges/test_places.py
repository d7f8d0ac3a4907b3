"""Files of any size, folders that are missing or unreadable, settings of a machine."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from mutating import run
from test_strangers import DEFINITION, TRACES, WORKLOADS, D

from kernelderby.errors import DerbyError
from kernelderby.measure.tune import table
from kernelderby.store import files

SOLUTION = f"solutions/alice/toy/{D}/toy_fast/solution.toml"


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("file", [DEFINITION, WORKLOADS, TRACES, SOLUTION, "profiles/published_importance.csv"])
def test_a_file_of_ten_gigabytes(small_set, file):
    """It has no blocks; whoever reads it whole takes all memory."""
    path = small_set / file
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as big:
        big.truncate(10 * 2**30)
    for verb in (("list",), ("report", "--markdown")):
        assert "cannot be read (10,737,418,240 bytes, and" in run(*verb, "--root", small_set).err
    assert "broken  " in run("pack", "--check", "--root", small_set).out


def test_a_line_that_is_longer_than_any_row(small_set):
    with (small_set / TRACES).open("ab") as rows:
        rows.truncate(rows.tell() + (65 << 20))
    assert "bytes, more than any line can need; remove it; left out" in run("list", "--root", small_set).err


def test_a_file_of_the_kernel_that_never_ends(tmp_path):
    (tmp_path / "endless").symlink_to("/proc/kmsg")
    if not os.access("/proc/kmsg", os.R_OK):
        pytest.skip("/proc/kmsg is of root")
    assert files.read_bytes(tmp_path / "endless") == b""


def test_too_little_memory_is_one_line(small_set, monkeypatch):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr("kernelderby.api.trace_set.listing", fails)
    assert "list: needs more memory than the bound" in run("list", "--root", small_set).err


PLACES = ["traces", "solutions", "workloads", "profiles", "traces/h200", "workloads/toy"]


@pytest.mark.parametrize("part", ["traces", "solutions", "definitions", "workloads", "profiles"])
def test_folders_in_folders_a_thousand_deep(small_set, part):
    """os.walk() calls itself for each, and a checkout may hold them."""
    names, place = ["a"] * 1200, os.open(small_set, os.O_RDONLY)
    for name in (*part.split("/"), *names):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=place)
        inner = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    for verb in ("list", "report", "verify"):
        assert "recursion" not in run(verb, "--root", small_set).err
    assert run("pack", "--check", "--root", small_set).code in (0, 1)
    subprocess.run(["rm", "-rf", small_set / part], check=True)  # pytest would call itself, too


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["file", "nowhere", "pipe"])
def test_a_folder_that_is_none(small_set, place, kind):
    """A link to a disk that is not mounted is no empty set. A plain file inside a folder is ignored."""
    path = small_set / place
    if path.exists():
        path.rename(small_set / "aside")
    path.parent.mkdir(exist_ok=True)
    {"file": Path.touch, "nowhere": lambda each: each.symlink_to("/nowhere/at/all"), "pipe": os.mkfifo}[kind](path)
    told = f"{path}: is no folder; mend or remove it"
    verb = ("list",) if place != "traces" else ("rank",)
    if place != "traces/h200":
        assert told in run(*verb, "--root", small_set).err and told in run("pack", "--check", "--root", small_set).out


@pytest.mark.parametrize("place", ["definitions/toy", "traces/h200", "solutions/alice", "traces", "solutions"])
def test_a_folder_behind_a_symlink_is_told(small_set, place):
    """Globbing passes over it in silence."""
    (small_set / place).rename(small_set / "elsewhere")
    (small_set / place).symlink_to(small_set / "elsewhere")
    told = f"{small_set / place}: is a symlink to a folder, which is not followed; put the folder itself there"
    assert told in run("list", "--root", small_set).err and told in run("pack", "--check", "--root", small_set).out


def test_sources_that_cannot_be_seen_are_no_smaller_solution(small_set):
    (small_set / "csrc").mkdir()
    (small_set / SOLUTION).parent.joinpath("csrc").symlink_to(small_set / "csrc")
    assert "csrc: is a symlink to a folder, which is not followed" in run("list", "--root", small_set).err


def test_a_folder_that_cannot_be_listed(small_set, monkeypatch):
    """As root nothing is forbidden, so the answer is."""
    real = os.scandir

    def scandir(path="."):
        if str(path).endswith("traces/h200"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "traces/h200: cannot be looked into (Permission denied)" in run("list", "--root", small_set).err


def test_a_folder_that_nobody_may_enter(small_set):
    (small_set / "traces/h200").chmod(0)
    try:
        if os.access(small_set / "traces/h200", os.R_OK):
            pytest.skip("as root nothing is forbidden")
        assert "traces/h200: cannot be looked into (Permission denied)" in run("list", "--root", small_set).err
    finally:
        (small_set / "traces/h200").chmod(stat.S_IRWXU)


def test_lists_are_those_of_a_glob(checkout):
    told = []
    for part, ending in (("definitions", ".json"), ("solutions", ".json"), ("traces", ".jsonl")):
        found = files.files_under(checkout / part, ending, told.append)
        assert found == sorted((checkout / part).rglob(f"*{ending}")) and found
    assert told == []


SETTINGS = [
    ({"MPLBACKEND": "nonsense"}, b""),
    ({"MPLCONFIGDIR": "/dev/null"}, b""),
    ({"HOME": "/proc"}, b""),
    ({}, b"backend: module://evil\ntext.usetex: True\nnonsense: 3\n"),
]


@pytest.mark.parametrize(("settings", "matplotlibrc"), SETTINGS)
def test_a_picture_is_the_same_whatever_the_settings(small_set, tmp_path, settings, matplotlibrc):
    """Settings of the user, and of a foreign folder in which the command starts."""
    pytest.importorskip("matplotlib")
    if matplotlibrc:
        (tmp_path / "matplotlibrc").write_bytes(matplotlibrc)
    words = ["rank", D, "--root", small_set, "--format", "csv", "--plot", "race.png"]
    code = "import sys; from kernelderby.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2]), **settings}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == "derby: race.png: written\n"


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_two_pictures_of_one_answer_are_the_same_bytes(small_set, tmp_path, monkeypatch, kind):
    pytest.importorskip("matplotlib")
    drawn = []
    for date in ("1", "2"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        path = tmp_path / f"{date}.{kind}"
        assert run("rank", D, "--root", small_set, "--format", "csv", "--plot", path).code == 0
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("settings", "matplotlibrc", "words"),
    [
        ({"SOURCE_DATE_EPOCH": "abc"}, b"", "cannot be drawn"),
        ({}, b"\xff\xfe\0", "matplotlib does not start"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_one_line(small_set, tmp_path, settings, matplotlibrc, words):
    pytest.importorskip("matplotlib")
    if matplotlibrc:
        (tmp_path / "matplotlibrc").write_bytes(matplotlibrc)
    arguments = ["rank", D, "--root", small_set, "--format", "csv", "--plot", "race.svg"]
    environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2]), **settings}
    done = subprocess.run(
        [sys.executable, "-c", "from kernelderby.cli import main; main()", *map(str, arguments)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "FOUND = " + "[" * 10_000,
        "FOUND = " + "-" * 100_000 + "1",
        "FOUND = {1: {'date': 'd', 'table': {}}}",
        "FOUND = {'g': {'date': b'd', 'table': {}}}",
        "FOUND = {'g': {'date': 'd', 'table': {'k': 1}}}",
        "FOUND = {'g': {'date': 'd', 'table': {'k': {'x': [1]}}}}",
        "FOUND = {[]: 1}",
        "FOUND = '\0'",
    ],
)
def test_a_tuned_table_of_other_things(tmp_path, text):
    (tmp_path / "tuned.py").write_text(text)
    with pytest.raises(DerbyError, match=r"tuned.py: FOUND.*; (restore|mend)"):
        table.read(tmp_path / "tuned.py")


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name), lambda path: path.write_bytes(b"\xff")]
)
def test_a_tuned_table_that_is_no_file(tmp_path, make):
    make(tmp_path / "tuned.py")
    with pytest.raises(DerbyError, match=r"tuned.py: cannot be read"):
        table.read(tmp_path / "tuned.py")


@pytest.mark.parametrize("file", [TRACES, WORKLOADS])
def test_a_file_of_another_version_is_given_up_quickly(small_set, file):
    """run() looks at the time: naming the fault of a line takes a hundred times as long as reading it."""
    path = small_set / file
    line = (
        path.read_text()
        .splitlines()[0]
        .replace('"uuid": "', '"uuid": "\\u0007')
        .replace('"status": "passed"', '"status": "x"')
    )
    path.write_text(f"{line}\n" * 20_000)
    said = run("list", "--root", small_set).err
    assert "must be" in said or "is unknown" in said
    assert f"{file}:1: " in said and "19999 other lines of it too; left out" in said
