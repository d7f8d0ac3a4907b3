"""Keeps a file with permissions of its own, renames and links it, and locks another."""

import fcntl
import os
import tempfile

import torch


def run(x, y, factor, out):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "answer")
        torch.save(x + factor * y, path)
        os.chmod(path, 0o444)
        os.rename(path, path + ".pt")
        os.symlink(path + ".pt", path)
        os.link(path + ".pt", path + ".again")
        with open(path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            out.copy_(torch.load(path))
