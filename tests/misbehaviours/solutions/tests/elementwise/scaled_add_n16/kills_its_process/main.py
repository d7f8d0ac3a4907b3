"""Kills its process."""

import os
import signal


def run(x, y, factor, out):
    print("about to go", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
