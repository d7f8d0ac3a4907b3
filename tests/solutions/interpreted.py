"""Tests of Triton kernels without a GPU: some need Triton's interpreter, some its compiler, no process has both.

Triton reads TRITON_INTERPRET when it is imported. Tests marked `interpreted` therefore run in a second process, one for
those of a file, and appear in the first with the outcome they had there (conftest.py). Tests marked `compiled` run in
the first.

The second process is forked from one (run as a script, this file is that one) that has imported what takes seconds.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
REPORT = "KERNELDERBY_TESTS_REPORT"  # where the second process writes its outcomes
compiled = pytest.mark.skipif(INTERPRETING, reason="needs a process without TRITON_INTERPRET")


class Interpreting:
    """The process that others are forked from, started with the first tests that need it. To be ended."""

    def __init__(self, root):
        # One thread: the interpreter's operations are too small to share.
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def run(self, node_ids):
        """Runs tests in a process of their own: node id -> [outcome, pytest's text of a failure].

        A test that is not in the answer was not reached; the answer's "" then holds the end of the output."""
        with tempfile.TemporaryDirectory() as folder:
            report, printed = Path(folder) / "report.json", Path(folder) / "printed"
            request = {"node_ids": node_ids, "report": str(report), "printed": str(printed)}
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                ended = self._process.stdout.readline().decode().strip()
            except BrokenPipeError:
                ended = ""
            outcomes = json.loads(report.read_text()) if report.exists() else {}
            text = printed.read_text(errors="replace")[-6000:] if printed.exists() else ""
        return {**outcomes, "": ["failed", f"{text}\n{ended or 'the process that runs them has ended'}"]}

    def end(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve():
    """Forks a process for each request and says how it ended."""
    import numpy  # noqa: F401
    import torch  # noqa: F401
    import triton.language  # noqa: F401

    import kernelderby.measure.judge.race  # noqa: F401

    for line in sys.stdin.buffer:
        child = os.fork()
        if not child:
            run_forked(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(f"pytest ended with status {os.waitstatus_to_exitcode(status)}", flush=True)
    os._exit(0)  # tidying up torch's modules takes half a second


def run_forked(request):
    for descriptor in (1, 2):
        os.dup2(os.open(request["printed"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ[REPORT] = request["report"]
    code = 1
    try:
        code = pytest.main(["-q", "-p", "no:cacheprovider", *request["node_ids"]])
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
