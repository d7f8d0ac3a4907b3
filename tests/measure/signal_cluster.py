"""Signals to a `derby bench --ray`: python tests/measure/signal_cluster.py [--each 20] [--seed 1]

A Ray of this machine with two raylets of one core beside a head without work (protocol cpu-wall). TERM, HUP and INT go
to the driver at random moments, most of them while rows come. Each time it ends with the signal's exit code, all of its
processes have gone, all lines are whole and no key stands twice; the next driver goes on behind the rows that stand.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from kill_cluster import _node, _wait, driver, keys, make_set, matching

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_END_SECONDS = 60.0  # of a driver; its hosts give their cores back within
_GONE_SECONDS = 40.0  # and their processes


def run(folder: Path, each: int, seed: int) -> Counter[str]:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    from ray.cluster_utils import Cluster

    draw = random.Random(seed)
    root, log = make_set(folder, 4000), folder / "driver.log"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    for _ in range(2):
        _node(cluster)
    ended, start = Counter[str](), time.monotonic()
    numbers = list(SIGNALS) * each
    draw.shuffle(numbers)
    process = None
    try:
        for number in numbers:
            log.write_bytes(b"")
            process = driver(root, cluster.address, log)
            _wait(process, root, draw)
            assert process.poll() is None, f"it ended before:\n{log.read_text()}"
            process.send_signal(number)
            code = process.wait(_END_SECONDS)
            # until Python has its handlers the signal itself ends it
            assert code in (128 + number, -number), f"{number.name}: exit code {code}\n{log.read_text()}"
            expect_gone(folder)
            expect_whole(root)
            ended[number.name] += 1
            print(f"{time.monotonic() - start:.0f} s: {dict(ended)}, {len(keys(root))} rows, exit {code}", flush=True)
    finally:
        if process is not None and process.poll() is None:
            process.kill()
        cluster.shutdown()
    return ended


def expect_gone(folder: Path) -> None:
    until = time.monotonic() + _GONE_SECONDS
    while left := matching(str(folder)) + matching("ray::Host"):
        assert time.monotonic() < until, f"processes are left: {left}"
        time.sleep(0.2)


def expect_whole(root: Path) -> None:
    for path in root.glob("traces/**/*.jsonl"):
        assert path.read_bytes()[-1:] in (b"\n", b"") and all(map(json.loads, path.read_text().splitlines()))
    assert all(count == 1 for count in keys(root).values()), "a key stands twice"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(dict(run(Path(scratch), options.each, options.seed)))
