"""Starts a process when it is loaded and waits for it, as a compiler is started."""

import subprocess
import sys

import torch

version = subprocess.run([sys.executable, "--version"], capture_output=True, text=True, check=True).stdout


def run(x, y, factor, out):
    assert version
    torch.add(x, y, alpha=factor, out=out)
