"""The commands that the README shows: each is run as it stands, on a machine without a GPU, on a copy of the operators
that they name. DERBY_TESTS_ALL=1 runs them on a copy of the whole set."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
DERBY = [*dict.fromkeys(line for line in COMMANDS if line.startswith("derby "))]
# Need a GPU; without one they are a line that says so. flashinfer-bench's own says it in a traceback.
NEED_GPU = ("derby bench", "derby serve-bench", "derby gate", "derby tune", "derby profile run", "flashinfer-bench run")
# The library that `derby export --wheel` builds: nvcc takes a second for that of QUICK, half a minute for SLOW.
QUICK, SLOW = "moe_count_and_sort", () if "DERBY_TESTS_ALL" in os.environ else ("derby_unified_attention_sm90",)
SAYS = dict.fromkeys(NEED_GPU, "GPU") | {"derby verify": "sealed"}  # the set has no sealed session


@pytest.fixture(scope="module")
def copy(tmp_path_factory, checkout):
    """A copy of the set that commands may write to, and a dataset to export into, with rows to merge."""
    root, unnamed = tmp_path_factory.mktemp("readme") / "set", unnamed_operators(Catalog.open(checkout))

    def left_out(folder, names):
        return [each for each in names if each.partition(".")[0] in {*unnamed, *SLOW}]

    for name in ("definitions", "workloads", "solutions", "traces", "blob", "profiles"):
        if (checkout / name).is_dir():
            shutil.copytree(checkout / name, root / name, ignore=left_out)
    for path in root.glob("solutions/*/template/solution.toml"):  # names operators, with a reason, a line each
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if line.partition(" =")[0] not in unnamed))
    (root / "certificates/machine_code").mkdir(parents=True)
    name = f"certificates/machine_code/derby_{QUICK}.json"  # one: each costs builds
    shutil.copy(checkout / name, root / name)
    texts = json.loads((checkout / "certificates/texts.json").read_text())
    texts["hashes"] = {name: each for name, each in texts["hashes"].items() if has_solution(root, name)}
    (root / "certificates/texts.json").write_text(json.dumps(texts))
    (root / "dataset" / "definitions").mkdir(parents=True)
    shutil.copytree(root / "traces" / "h200" / "norm", root / "dataset" / "traces" / "h200" / "norm")
    return root


def has_solution(root, name):
    return any(root.glob(f"solutions/*/*/*/{name}.json"))


def unnamed_operators(catalog):
    """Operators that no command names, neither by themselves nor by a solution of theirs."""
    if "DERBY_TESTS_ALL" in os.environ:
        return set()
    words = {word for line in DERBY for word in re.split("[ ,]", line)}
    named = {solution.definition for name, solution in catalog.solutions.items() if name in words}
    return set(catalog.definitions) - words - named - {QUICK}


def test_the_readme_shows_every_verb():
    from kernelderby import cli

    assert {line.split()[1] for line in DERBY} >= set(cli.VERBS)


def test_make_targets_exist(checkout):
    makefile = (checkout / "Makefile").read_text()
    targets = [line.split()[1] for line in COMMANDS if line.startswith("make ")]
    assert targets and all(f"\n{target}:" in makefile for target in targets)


@pytest.mark.parametrize("line", DERBY)
def test_command_runs(line, copy):
    words = shlex.split(line.replace("$FIB_DATASET_PATH", str(copy / "dataset")))
    done = subprocess.run(
        [sys.executable, "-m", "kernelderby.cli", *words[1:]],
        cwd=copy,
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    if words_said := [said for start, said in SAYS.items() if line.startswith(start)]:
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and words_said[0] in done.stderr, done.stderr
    else:
        assert done.returncode == 0, done.stderr or done.stdout
    if "--wheel" in words and shutil.which("nvcc"):
        (wheel,) = (copy / "dist").glob("*.whl")
        assert any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist())


def test_flashinfer_bench_takes_the_line():
    """Its options are parsed by its own parser; the run itself needs a GPU."""
    from flashinfer_bench.cli import main

    (line,) = [line for line in COMMANDS if line.startswith("flashinfer-bench ")]
    help_text = subprocess.run(
        [sys.executable, "-c", f"from {main.__name__} import cli; cli()", "run", "--help"],
        capture_output=True,
        text=True,
    ).stdout
    assert all(word in help_text for word in shlex.split(line) if word.startswith("--")), help_text
