"""Tests of Triton kernels without a GPU: some need Triton's interpreter, some its compiler, no process has both.

Triton reads TRITON_INTERPRET when it is imported. Tests marked `interpreted` therefore run in a second process, one for
those of a file, and appear in the first with the outcome they had there (conftest.py). Tests marked `compiled` run in
the first.
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


def run_interpreted(node_ids, root):
    """Runs tests in the interpreter: node id -> [outcome, what pytest says of a failure].

    A test that does not appear in the answer was not reached; the answer's "" then holds the end of what was printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        # One thread: the interpreter's operations are too small to share.
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", REPORT: str(report)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *node_ids]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
        outcomes = json.loads(report.read_text()) if report.exists() else {}
    return {**outcomes, "": ["failed", done.stdout[-4000:] + done.stderr[-2000:]]}


def exact_casts():
    """Makes the interpreter round to fp8 and bfloat16, and multiply bfloat16, as the hardware does.

    Triton 3.7's own conversion loses the carry when a value rounds up to a power of two (1.97 becomes 1 in fp8) and
    truncates to bfloat16."""
    import numpy
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    from kernelderby.measure.worker.interpreter import multiply_bfloat16_right, take_whole_numbers

    multiply_bfloat16_right()
    take_whole_numbers()
    types = {tl.float8e4nv: (torch.float8_e4m3fn, numpy.uint8), tl.bfloat16: (torch.bfloat16, numpy.uint16)}
    convert = interpreter._convert_float

    def convert_exactly(data, source, target, rounding_mode):
        if source != tl.float32 or target not in types:
            return convert(data, source, target, rounding_mode)
        narrow, bits = types[target]
        values = torch.from_numpy(numpy.ascontiguousarray(data, dtype=numpy.float32))
        return values.to(narrow).view(torch.uint8).numpy().view(bits).reshape(data.shape)

    interpreter._convert_float = convert_exactly
