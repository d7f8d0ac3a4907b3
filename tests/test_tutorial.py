"""docs/tutorial.md, run literally: every console line in order, every file as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


def test_the_tutorial_ends_in_a_ranking(checkout, tmp_path):
    text = (checkout / "docs/tutorial.md").read_text()
    blocks = re.findall(r"^```(console|python file=(\S+))\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    script = ["set -e", f'derby() {{ "{sys.executable}" -m kernelderby "$@"; }}']
    for kind, file, body in blocks:
        script.append(body if kind == "console" else f"cat > {file} <<'END_OF_FILE'\n{body}END_OF_FILE")
    environment = {**os.environ, "PYTHONPATH": str(checkout), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ranking = done.stdout[done.stdout.rindex("Over all workloads") :]
    assert "swiglu_reference" in ranking and "swiglu_torch" in ranking
    assert "unpaired" not in ranking  # three rounds in turn
    assert not re.search(r"^FAIL", done.stdout, re.MULTILINE)
