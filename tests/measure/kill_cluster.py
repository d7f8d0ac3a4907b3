"""Kills of a Ray cluster's parts while `derby bench --ray` runs: python tests/measure/kill_cluster.py [--kills 60]

A local cluster of two raylets in processes beside a head without work, on the CPU (protocol cpu-wall). Again and again
a driver is started, and at a random moment it, a process that measures, an actor or a raylet gets SIGKILL; a raylet
comes back. The run is begun anew until nothing is left. In the end every key (solution, code, workload, GPU, protocol)
has exactly one row that stands, every line is whole, and nothing that was started still runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

TRIES = 3  # of a crash, until it counts
SOLUTIONS = ("honest", "raises", "wrong_shape")
SET = Path(__file__).resolve().parent.parent / "misbehaviours"


def make_set(folder: Path, workloads: int) -> Path:
    root = Path(shutil.copytree(SET, folder / "set", ignore=shutil.ignore_patterns("__pycache__")))
    path = root / "workloads/elementwise/scaled_add_n16.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    lines = []
    for number in range(workloads):
        line["workload"] |= {"uuid": f"00000000-0000-0000-0000-{number:012}", "axes": {"rows": number % 64 + 1}}
        line.pop("cost", None)
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))
    return root


def driver(root: Path, address: str, log: Path) -> subprocess.Popen[bytes]:
    words = (
        f"bench --ray {address} --gpu cpu --root {root} --rounds 1 --most-rounds 1 --iterations 2 --timeout 300".split()
    )
    with log.open("ab") as out:
        command = [sys.executable, "-m", "kernelderby.cli", *words, "--solutions", ",".join(SOLUTIONS)]
        return subprocess.Popen(command, stdout=out, stderr=out)


def matching(text: str) -> list[int]:
    """Processes of this user whose command line holds a text."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if text in (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(each.name))
            except OSError:
                continue
    return [pid for pid in found if pid != os.getpid()]


def run(folder: Path, kills: int, workloads: int, seed: int) -> dict[str, int]:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    from ray.cluster_utils import Cluster

    draw = random.Random(seed)
    root, log = make_set(folder, workloads), folder / "driver.log"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    nodes = [_node(cluster) for _ in range(2)]
    killed, start = Counter[str](), time.monotonic()
    process = driver(root, cluster.address, log)
    try:
        while True:
            is_killing = sum(killed.values()) < kills
            if is_killing:
                _wait(process, root, draw)
            else:
                process.wait(7200)
            if process.poll() is None:
                what = draw.choice(("driver", "measuring process", "actor", "raylet"))
                killed[what] += _kill(what, process, cluster, nodes, draw, folder)
                print(f"{time.monotonic() - start:.0f} s: {dict(killed)}, {len(keys(root))} rows", flush=True)
            if process.poll() is not None:
                if not unmeasured(root, workloads):
                    break
                process = driver(root, cluster.address, log)
    finally:
        process.kill()
        process.wait()
        cluster.shutdown()
    expect_whole(root, workloads)
    time.sleep(5)
    assert not matching(str(folder)), "processes are left"
    return dict(killed)


def _wait(process: subprocess.Popen[bytes], root: Path, draw: random.Random) -> None:
    """One time in four at any moment, else until rows come and some moments more."""
    rows, until = len(keys(root)), time.monotonic() + 120
    if draw.random() < 0.75:
        while len(keys(root)) == rows and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(draw.uniform(0, 6))


def _node(cluster: Any) -> Any:
    """A node of one core. Ray gives a raylet 30 s to start; a machine that does other work may need more."""
    for _ in range(10):
        try:
            return cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        except Exception as error:  # Ray's own is a bare Exception
            print(f"a raylet did not start: {error}", flush=True)
    raise RuntimeError("no raylet starts here")


def _kill(what: str, process: Any, cluster: Any, nodes: list[Any], draw: random.Random, folder: Path) -> bool:
    """False where there was none at that moment."""
    if what == "driver":
        process.kill()
        process.wait()
        return True
    if what == "raylet":
        cluster.remove_node(nodes.pop(draw.randrange(2)), allow_graceful=False)
        nodes.append(_node(cluster))
        return True
    pids = matching("ray::Host") if what == "actor" else matching("kernelderby.measure.cluster")
    if what != "actor":
        pids = [pid for pid in pids if str(folder) in _command(pid)]
    for pid in pids[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def keys(root: Path) -> Counter[tuple[str, ...]]:
    found = Counter[tuple[str, ...]]()
    for path in root.glob("traces/**/*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut short by a kill: the next run mends it
            own = row["measurement"]
            if own["environment"].get("tries", TRIES) < TRIES:
                continue  # a crash: another try is to come, by rule
            gpu = row["evaluation"]["environment"]["hardware"]
            found[row["solution"], own["solution_hash"], row["workload"]["uuid"], gpu, own["protocol"]] += 1
    return found


def unmeasured(root: Path, workloads: int) -> int:
    return workloads * len(SOLUTIONS) - len(keys(root))


def expect_whole(root: Path, workloads: int) -> None:
    for path in root.glob("traces/**/*.jsonl"):
        assert all(map(json.loads, path.read_text().splitlines())), f"{path}: a line is cut short"
    found = keys(root)
    assert len(found) == workloads * len(SOLUTIONS), f"{len(found)} keys of {workloads * len(SOLUTIONS)}"
    doubled = [key for key, count in found.items() if count > 1]
    assert not doubled, f"doubled: {doubled}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--workloads", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        start = time.monotonic()
        print(run(Path(scratch), options.kills, options.workloads, options.seed))
        print(f"{options.workloads * len(SOLUTIONS)} rows, none lost, none doubled, {time.monotonic() - start:.0f} s")
