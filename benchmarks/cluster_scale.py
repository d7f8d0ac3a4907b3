"""How much faster another worker makes it: python benchmarks/cluster_scale.py [--author baseline] [--workers 1,2]
[--times 2]

`derby check --ray` of all solutions of an author that run on a CPU, on a Ray of this machine with so many workers of
one core each, in turn (1 2 2 1). Prints seconds on the wall and the machine's load before each run: a figure counts
only if the load was near zero. Every run's answer must be the same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from ray.cluster_utils import Cluster

from kernelderby.catalog import Catalog

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE, _BYTES = 10, 100 << 20  # tries of a raylet that starts too slowly; of an object store


def cluster_of(workers: int) -> Cluster:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": _BYTES})
    for _ in range(workers):
        for left in reversed(range(_PATIENCE)):
            try:
                cluster.add_node(num_cpus=1, object_store_memory=_BYTES)
                break
            except Exception:  # Ray's own is a bare one
                if not left:
                    raise
    return cluster


def seconds(workers: int, names: list[str], timeout: float) -> tuple[float, str]:
    """Of one run, with its last line: how many passed."""
    cluster = cluster_of(workers)
    try:
        words = ["check", "--ray", cluster.address, "--device", "cpu", "--timeout", str(timeout)]
        command = [sys.executable, "-m", "kernelderby.cli", *words, "--solutions", ",".join(names)]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        wall = time.perf_counter() - start
    finally:
        cluster.shutdown()
    counts = re.findall(r"\d+ passed, \d+ failed, \d+ solutions skipped", done.stdout)
    if not counts:
        raise SystemExit(f"derby check: exit {done.returncode}\n{done.stderr[-2000:]}")
    return wall, counts[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--author", default="baseline")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--most", type=int, help="solutions, the first ones")
    parser.add_argument("--timeout", type=float, default=600)
    options = parser.parse_args()
    catalog = Catalog.open(ROOT)
    names = [each.name for each in catalog.solutions.values() if each.author == options.author and each.requires.cpu]
    names = names[: options.most]
    counts = [int(text) for text in options.workers.split(",")]
    walls: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(options.times):
        for count in counts if turn % 2 == 0 else reversed(counts):
            load = os.getloadavg()[0]
            wall, said = seconds(count, names, options.timeout)
            walls[count].append(wall)
            print(f"{count} workers: {wall:.1f} s, {len(names)} solutions, {said}, load before {load:.1f}", flush=True)
    for count in counts:
        best = min(walls[count])
        print(f"{count} workers: {best:.1f} s at best, {min(walls[counts[0]]) / best:.2f} x those of {counts[0]}")


if __name__ == "__main__":
    main()
