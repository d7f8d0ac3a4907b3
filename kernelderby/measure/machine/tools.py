"""Finds external tools: on PATH, in the CUDA toolkit, or in the folders of NVIDIA's installers."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from glob import glob
from pathlib import Path

TOOLKIT = "/usr/local/cuda"
# Tools with their own folders, best folder first. The nsys inside Nsight Compute is made for ncu and often lacks the
# importer of its streams.
PLACES = {
    "nsys": (
        "/opt/nvidia/nsight-systems*/bin/nsys",
        "/opt/nvidia/nsight-systems*/*/bin/nsys",
        "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-systems*/target-linux-*/nsys",
        "/usr/local/cuda-*/bin/nsys",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    ),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda-*/bin/ncu"),
    "compute-sanitizer": (
        "/usr/local/cuda-*/bin/compute-sanitizer",
        f"{sys.prefix}/lib/python*/site-packages/nvidia/*/bin/compute-sanitizer",
    ),
}


def find_tools(name: str) -> Iterator[Path]:
    """Every executable of that name: on PATH, in $CUDA_HOME, $CUDA_PATH and /usr/local/cuda, and in its PLACES, the
    newest version first in each. An executable with several names comes once."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), TOOLKIT]
    found = [name, *(f"{home}/bin/{name}" for home in toolkits if home)]
    for place in PLACES.get(name, ()):
        found += sorted(glob(place), key=_natural, reverse=True)
    seen: set[Path] = set()
    for text in filter(None, map(shutil.which, found)):
        path = Path(text)
        if path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def find_tool(name: str) -> Path | None:
    """The first one."""
    return next(find_tools(name), None)


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts version 2025.10 after 2025.9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]
