"""benchmarks/compare_builds.py as a process, on the CPU: it runs builds, refuses wrong ones and unknown names."""

import subprocess
import sys

import pytest

FOLDER = "solutions/baseline/norm/rms_norm/rms_norm_baseline"


@pytest.fixture
def compare(checkout):
    def run(*builds):
        return subprocess.run(
            [
                sys.executable,
                checkout / "benchmarks/compare_builds.py",
                "rms_norm_baseline",
                *map(str, builds),
                "--rounds",
                "2",
                "--iterations",
                "2",
            ],
            cwd=checkout,
            capture_output=True,
            text=True,
        )

    return run


def test_two_builds_get_a_row(compare):
    found = compare(".", FOLDER)
    assert found.returncode == 0, found.stderr
    heading, names, row = found.stdout.splitlines()
    assert heading.startswith("rms_norm_baseline on a CPU, cpu-wall") and names.endswith("rms_norm/rms_norm_baseline")
    assert row.split()[:2] == ["small", "seed=0"] and "[" in row


def test_a_wrong_build_ends_it(compare, checkout, tmp_path):
    source = (checkout / FOLDER / "main.py").read_text()
    (tmp_path / "main.py").write_text(
        source + "\n\nright = run\n\n\ndef run(x, weight, eps, output):\n"
        "    right(x, weight, eps, output)\n    output.mul_(2)\n"
    )
    found = compare(".", tmp_path)
    assert found.returncode == 1 and "wrong" in found.stderr and found.stderr.count("\n") == 1


def test_an_unknown_build_is_an_error(compare):
    found = compare("no-such-revision")
    assert found.returncode == 1
    assert found.stderr == (
        "compare_builds: no-such-revision: is no folder and no revision with the sources of rms_norm_baseline\n"
    )
