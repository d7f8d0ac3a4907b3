"""Processors, memory, devices and interfaces, as libraries do when they are imported."""

import os
import pathlib
import platform
import socket

import torch

seen = [pathlib.Path(f"/proc/{name}").read_text() for name in ("cpuinfo", "meminfo", "self/status", "self/maps")]
seen += [os.listdir("/dev"), os.sched_getaffinity(0), platform.uname(), socket.if_nameindex(), socket.gethostname()]
for name in ("urandom", "zero", "null"):
    with open(f"/dev/{name}", "rb") as file:
        seen.append(file.read(4))


def run(x, y, factor, out):
    torch.add(x, y, alpha=factor, out=out)
