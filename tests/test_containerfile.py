"""scripts/containerfile.py: a Containerfile's steps in a folder, up to the first that fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

FILE = """FROM somewhere
# not a step
ENV PLACE=/opt/place PATH=/opt/place/bin:$PATH
RUN mkdir -p "$PLACE/bin" && printf '#!/bin/sh\\necho told "$@"' > "$PLACE/bin/pip" && chmod +x "$PLACE/bin/pip"
WORKDIR /opt/work
COPY LICENSE NOTICE ./
COPY locks locks
RUN pip install '.[measure]' \\
    rival==1
RUN ls
"""


@pytest.fixture
def image(checkout, tmp_path):
    def run(text, *words):
        (tmp_path / "Containerfile").write_text(text)
        script = checkout / "scripts/containerfile.py"
        command = [sys.executable, script, tmp_path / "image", "--file", tmp_path / "Containerfile", *words]
        return subprocess.run(command, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("words", "installed"),
    [
        ([], ["install .[measure] rival==1"]),
        (["--resolve"], ["install --quiet --dry-run .[measure] rival==1", "install --quiet ."]),
    ],
)
def test_its_steps_run_in_a_folder(image, tmp_path, words, installed):
    done = image(FILE, *words)
    assert done.returncode == 0, done.stderr
    assert [line[5:] for line in done.stdout.splitlines() if line.startswith("told ")] == installed
    assert done.stdout.splitlines()[-3:] == ["LICENSE", "NOTICE", "locks"]
    assert (tmp_path / "image/opt/work/locks/cpu.txt").is_file()
    assert "exists; name a new folder" in image(FILE).stderr


def test_it_ends_at_the_first_that_fails(image):
    done = image(FILE.replace("RUN ls", "RUN test -f none\nRUN echo never"))
    assert done.returncode == 1 and "RUN test -f none: ended with 1" in done.stderr and "never" not in done.stdout


def test_what_apt_would_install_has_to_be_here(image):
    assert image("RUN apt-get update && apt-get install -y git python3-venv\n").returncode == 0
    assert image("RUN apt-get install -y git no-such-thing\n").returncode == 1
