"""Exploits and honest solutions, in real processes: what each ends as, and that nothing of the run is touched.

`make test` takes a few of each class, `make cheats` all, also those that wait for the judge's patience or a time-out
(SLOW).

exploits/*.py: STATUS holds the statuses that may end it, CLASS what it tries, NEEDS the fence that stops it, LEAST_US
what a row that passed must not claim less than; honest/*.py pass. The operator is that of tests/misbehaviours. Each
group is measured by a runner in a process of its own, so that an exploit which reaches the runner ends that one and not
pytest.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from kernelderby.measure.fence import landlock, seccomp

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(900)  # the first of them waits for all runs, each of which has 300 s

HERE = Path(__file__).resolve().parent
MEASURING = HERE.parent / "measure"
DEFINITION = "scaled_add_n16"
SOURCES = {path.stem: path for folder in ("exploits", "honest") for path in sorted((HERE / folder).glob("*.py"))}
EVERY_HONEST = [path.stem for path in sorted((HERE / "honest").glob("*.py"))]
GROUP = 30  # exploits that run side by side
SECRET = "of-the-user"
# Of a_secret_in_a_number and of a_secret_in_its_times: as whole numbers, the latter's first digits alone.
AS_DIGITS = [str(int.from_bytes(each, "big"))[:12] for each in (b"the password is hunter2", b"hunter2")]
AS_HASH = "(log 5ec2e"  # of a_secret_in_a_hash
AS_NOTE = f"{AS_DIGITS[1][:6]} records"  # of a_secret_in_its_notes
MARK = "DERBY_TESTS_CHEATS"  # in the environment of all that a run starts

RUN = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from measuring import measure
from kernelderby.measure.judge import doubt

doubt._PATIENCE = (0.1, 0.5)  # what hides 30 ms does so after two seconds too
measure(Path(sys.argv[2]), sys.argv[3:], workloads=("8",), rounds=2, iterations=4, timeout_seconds=12)
"""
# Where no worker is forked, as on a GPU.
STARTED = "from kernelderby.measure.wire import start\n\nstart._fork_server = lambda device, environment: None\n" + RUN


def constants(name: str) -> dict[str, object]:
    """CLASS, STATUS and NEEDS, without running the file."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(SOURCES[name].read_text()).body
        if isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "")
        in ("CLASS", "STATUS", "NEEDS", "GRAPH", "LEAST_US", "LARGE", "ALONE", "KNOWN", "SLOW", "REPLACED")
    }


EVERY = {name: constants(name) for name in SOURCES if name not in EVERY_HONEST}
HONEST = [name for name in EVERY_HONEST if os.environ.get("DERBY_TESTS_ALL") or not constants(name).get("SLOW")]
IN_EVERY_RUN = ("forges_a_row", "kills_its_parent", "a_message_that_cannot_be_written", "a_daemon_that_stays")
SHARE = 4  # `make test` takes a share of the exploits in each class, and those with which all others are compared


def chosen() -> dict[str, dict[str, object]]:
    if os.environ.get("DERBY_TESTS_ALL"):
        return EVERY
    found, seen = {}, Counter[str]()
    for name, each in EVERY.items():
        if each.get("SLOW"):
            continue
        seen[str(each["CLASS"])] += 1
        if seen[str(each["CLASS"])] % SHARE == 1 or name in IN_EVERY_RUN:
            found[name] = each
    return found


EXPLOITS = chosen()


def add_solution(root: Path, name: str) -> None:
    folder = root / f"solutions/tests/elementwise/{DEFINITION}/{name}"
    folder.mkdir(parents=True)
    text = SOURCES[name].read_text()
    (folder / "main.py").write_text(text)
    into = "out)" in next(line for line in text.splitlines() if line.startswith("def run("))
    (folder / "solution.toml").write_text(
        f'name = "{name}"\ndefinition = "{DEFINITION}"\nauthor = "tests"\nlanguage = "python"\n'
        f'entry_point = "main.py::run"\ndestination_passing_style = {str(into).lower()}\n'
        f'target_hardware = ["any"]\ndescription = "{name}"\n\n[requires]\ncpu = true\n'
    )


def rows_of(root: Path) -> dict[str, dict]:
    path = root / f"traces/cpu/elementwise/{DEFINITION}.jsonl"
    return {row["solution"]: row for row in map(json.loads, path.read_text().splitlines())}


def run(root: Path, names: list[str], program: str = RUN) -> subprocess.CompletedProcess:
    sys.path.insert(0, str(MEASURING))
    import shutil

    from measuring import MISBEHAVIOURS

    if not root.exists():
        for part in ("definitions", "workloads"):
            shutil.copytree(MISBEHAVIOURS / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in names:
        add_solution(root, name)
    return subprocess.run(
        [sys.executable, "-c", program, str(MEASURING), str(root), *names],
        text=True,
        capture_output=True,
        timeout=300,
        start_new_session=True,
        env={**os.environ, "SOME_TOKEN": SECRET, "XDG_CACHE_HOME": str(root / "cache"), MARK: str(root)},
    )


def left_of(root: Path) -> list[Path]:
    """Processes that a run of this set has started and that stay: who was killed goes when it has a processor."""
    until = time.monotonic() + 30
    while (staying := living_of(root)) and time.monotonic() < until:
        time.sleep(0.1)
    return staying


def living_of(root: Path) -> list[Path]:
    staying = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={root}".encode() in path.read_bytes():
                staying.append(path)
        except OSError:
            continue
    return staying


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Every exploit's and honest solution's row, and what runs on when all runs have ended."""
    names, rows, staying = [*EXPLOITS, *HONEST], {}, []
    for start in range(0, len(names), GROUP):
        root = tmp_path_factory.mktemp("cheats") / "set"
        done = run(root, names[start : start + GROUP])
        assert done.returncode == 0, f"the runner of {names[start : start + GROUP]}: {done.stderr[-3000:]}"
        rows |= rows_of(root)
        staying += left_of(root)
    return rows, staying


@pytest.fixture(scope="module")
def found(ended):
    return ended[0]


def test_there_are_enough():
    assert len(EVERY) >= 197 and len(EVERY_HONEST) >= 23
    assert {each["CLASS"] for each in EXPLOITS.values()} == {each["CLASS"] for each in EVERY.values()}


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_ends_as_it_should(found, name):
    has = {"landlock": landlock.version() > 0, "seccomp": seccomp.has_seccomp(), None: True}
    has["x86_64"] = has["seccomp"] and platform.machine() == "x86_64"
    if not has[EXPLOITS[name].get("NEEDS")]:
        pytest.skip(f"this kernel has no {EXPLOITS[name]['NEEDS']}")
    row, log = found[name], found[name]["evaluation"]["log"]
    assert row["measurement"]["status"] in EXPLOITS[name]["STATUS"], log
    assert row["measurement"]["status"] != "passed" or eager_us(row) >= EXPLOITS[name].get("LEAST_US", 0)
    if "NEEDS" in EXPLOITS[name] and row["measurement"]["status"] in ("build_failed", "raised"):
        assert log.startswith(("PermissionError", "ConnectionRefusedError")), (
            "it is the kernel that refuses, and no mistake of the exploit's"
        )


def eager_us(row: dict) -> float:
    return row["measurement"]["times"]["eager"]["median_us"]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_one_passes(found, name):
    row = found[name]
    assert row["measurement"]["status"] != "passed" or eager_us(row) >= constants(name).get("LEAST_US", 0)
    assert row["measurement"]["status"] == "passed", row["evaluation"]["log"]


def test_rows_hold_text_that_can_be_read(found):
    log = found["a_message_that_cannot_be_written"]["evaluation"]["log"]
    assert re.fullmatch(r"ValueError \(log [0-9a-f]{12}\)", log)


def test_nothing_of_the_user_gets_out(found):
    said = [name for name, each in EXPLOITS.items() if each["CLASS"] == "something gets out"]
    assert len(said) >= (5 if len(EXPLOITS) == len(EVERY) else 2)
    for name in said:
        text = json.dumps(found[name])
        assert not any(each in text for each in ("hunter2", *AS_DIGITS, AS_HASH, AS_NOTE)), name


def test_nothing_outlives_its_run(ended):
    assert not ended[1], "a_daemon_that_stays stays"


def test_rows_that_somebody_else_wrote_are_set_aside(tmp_path):
    root = tmp_path / "set"
    names = ["writes_its_output", "forges_a_row", "kills_its_parent"]
    done = run(root, names, STARTED)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (root / f"traces/cpu/elementwise/{DEFINITION}.jsonl").read_text()
    assert "2099-" not in lines
    rows = rows_of(root)
    assert set(rows) == set(names)
    assert rows["writes_its_output"]["measurement"]["status"] == "passed"
    for name in names[1:]:
        assert rows[name]["measurement"]["status"] in EXPLOITS[name]["STATUS"]
