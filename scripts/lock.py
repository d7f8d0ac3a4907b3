"""python scripts/lock.py: writes locks/, what `make` installs with the hash of every file, for Python 3.11 and newer.

Versions come from constraints.txt, what else is needed from pyproject.toml. Needs uv on the PATH, and an index (or
$UV_FIND_LINKS) that has torch's CPU build too. After a change of constraints.txt or pyproject.toml: run it, commit all.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
BUILD = "hatchling\neditables\n"  # they build this package, without an environment of their own
_ENTRY = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)


def compiled(words: list[str], overrides: str = "", **environment: str) -> list[str]:
    """Entries of a requirements file: version, markers, hashes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "overrides.txt").write_text(overrides)
        (Path(folder) / "build.in").write_text(BUILD)
        (Path(folder) / "pip.in").write_text("pip\n")
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--allow-unsafe"]
        command += ["--generate-hashes", "--no-annotate", "--no-header", "--no-emit-find-links", "--no-emit-index-url"]
        command += ["-c", "constraints.txt", "--override", f"{folder}/overrides.txt"]
        command += [word.format(folder=folder) for word in words]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=-1, text=True, env=os.environ | environment)
    entries = [entry for entry in _ENTRY.split(done.stdout) if entry[:1].isalnum()]
    assert entries
    return entries


def version(name: str) -> str:
    return re.search(rf"^{name}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


def write(name: str, about: str, first: str, entries: list[str]) -> None:
    text = f"# {about} Made by scripts/lock.py.\n{first}{''.join(entries)}"
    (LOCKS / f"{name}.txt").write_text(text)


def main() -> None:
    LOCKS.mkdir(exist_ok=True)
    both = ["pyproject.toml", "{folder}/build.in", "--extra", "measure", "--extra", "dev"]
    cpu = compiled(both, f"torch=={version('torch')}+cpu\n")
    gpu = compiled([*both, "--extra", "gpu"], UV_FIND_LINKS="")  # a CPU build is taken for the newer one
    common = [entry for entry in cpu if entry in gpu]
    write("common", "What both kinds of machines need.", "", common)
    # torch first: an index without that build is to be found out before anything is fetched.
    write("cpu", "A machine without a GPU.", "", [entry for entry in cpu if entry not in gpu] + ["-r common.txt\n"])
    write("gpu", "A machine with a GPU.", "", [entry for entry in gpu if entry not in cpu] + ["-r common.txt\n"])
    write("pip", "The environment's pip.", "", [*compiled(["{folder}/pip.in"])])


if __name__ == "__main__":
    main()
