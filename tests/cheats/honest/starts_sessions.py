"""Starts a tool in a session and in a group of its own, as some libraries start their compilers, and ends one."""

import subprocess

import torch

done = []


def run(x, y, factor, out):
    if not done:
        for apart in ({"start_new_session": True}, {"process_group": 0}):
            done.append(subprocess.run(["true"], check=True, **apart))
        slow = subprocess.Popen(["sleep", "60"], start_new_session=True)
        slow.terminate()
        slow.wait()
    torch.add(x, y, alpha=factor, out=out)
