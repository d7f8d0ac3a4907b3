"""How long `derby rank` takes on many rows: python benchmarks/rank_scale.py [--solutions 5000] [--keep FOLDER]

A set of rms_norm's first 20 shapes and so many solutions, each with a row of protocol 2 a shape: three kinds of time,
five rounds of ten samples (4 kB a row; 5,000 solutions make 100,000 rows and 400 MB). Times are drawn, so no answer
of it says anything. Prints wall and CPU seconds of every form, each in a process of its own.

--million: ten operators of 500 solutions, each row measured in ten sessions, three rounds of four samples (1,000,000
rows, 1.7 GB). Prints what the first reading takes, then list, rank, rank of one operator and the page, and the same
once a row has come to one of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kernelderby.catalog.solutions import read_packed

ROOT = Path(__file__).resolve().parents[1]
OPERATOR, AUTHOR, SHAPES = "rms_norm", "many", 20
FORMS = (["text"], ["json"], ["csv"], ["csv", "--table", "workloads"], ["csv", "--table", "pairs"], ["markdown"])


def make_set(folder: Path, solutions: int) -> None:
    for file in (ROOT / "definitions/norm").glob(f"{OPERATOR}.*"):
        _write(folder / "definitions/norm" / file.name, file.read_text())
    lines = (ROOT / f"workloads/norm/{OPERATOR}.jsonl").read_text().splitlines()[:SHAPES]
    _write(folder / f"workloads/norm/{OPERATOR}.jsonl", "\n".join(lines) + "\n")
    packed = json.loads((ROOT / f"solutions/baseline/norm/{OPERATOR}/{OPERATOR}_baseline.json").read_text())
    hashes = {}
    for number in range(solutions):
        name = f"candidate_{number:05}"
        sources = [each | {"content": f"{each['content']}\n# {number}\n"} for each in packed["sources"]]
        path = folder / f"solutions/{AUTHOR}/norm/{OPERATOR}/{name}.json"
        _write(path, json.dumps(packed | {"name": name, "author": AUTHOR, "sources": sources}))
        hashes[name] = read_packed(path).hash
    traces = folder / f"traces/h200/norm/{OPERATOR}.jsonl"
    traces.parent.mkdir(parents=True)
    recorded = (ROOT / f"traces/h200/norm/{OPERATOR}.jsonl").read_text().splitlines()
    row = next(one for line in reversed(recorded) if "times" in (one := json.loads(line))["measurement"])
    draw = np.random.default_rng(1)
    factors = dict(zip(hashes, draw.lognormal(0.3, 0.3, solutions), strict=True))
    with traces.open("w") as file:
        for line in lines:
            floor = draw.uniform(3, 800)
            for name, own_hash in hashes.items():
                _draw(row["measurement"], floor * factors[name], draw)
                row |= {"workload": json.loads(line)["workload"], "solution": name}
                row["measurement"]["solution_hash"] = own_hash
                row["evaluation"]["performance"]["latency_ms"] = row["measurement"]["latency_us"] / 1e3
                file.write(json.dumps(row) + "\n")


def _draw(own: dict, typical_us: float, draw: np.random.Generator) -> None:
    for times in own["times"].values():
        samples = np.round(typical_us * draw.lognormal(0, 0.02, (5, 10)), 3)
        times |= {"samples_us": samples.tolist(), "median_us": round(float(np.median(samples)), 3)}
    own["latency_us"] = own["times"]["eager"]["median_us"]


def make_million(folder: Path, operators: int = 10, solutions: int = 500, sessions: int = 10) -> int:
    """So many rows: sessions x 20 shapes x solutions x operators."""
    draw = np.random.default_rng(1)
    count = 0
    files = sorted(ROOT.glob("workloads/*/*.jsonl"), key=lambda path: -len(path.read_text().splitlines()))
    for path in files:
        op_type, name = path.parent.name, path.stem
        recorded = ROOT / f"traces/h200/{op_type}/{name}.jsonl"
        packed = ROOT / f"solutions/baseline/{op_type}/{name}/{name}_baseline.json"
        lines = path.read_text().splitlines()[:SHAPES]
        if not recorded.is_file() or not packed.is_file() or len(lines) < SHAPES or operators == 0:
            continue
        operators -= 1
        for file in (ROOT / "definitions" / op_type).glob(f"{name}.*"):
            _write(folder / "definitions" / op_type / file.name, file.read_text())
        _write(folder / f"workloads/{op_type}/{name}.jsonl", "\n".join(lines) + "\n")
        base = json.loads(packed.read_text())
        hashes = {}
        for number in range(solutions):
            own = f"{name}_{number:05}"
            sources = [each | {"content": f"{each['content']}\nNUMBER = {number}\n"} for each in base["sources"]]
            target = folder / f"solutions/{AUTHOR if number % 2 else 'others'}/{op_type}/{name}/{own}.json"
            author = AUTHOR if number % 2 else "others"
            _write(target, json.dumps(base | {"name": own, "author": author, "sources": sources}))
            hashes[own] = read_packed(target).hash
        every = [json.loads(line) for line in recorded.read_text().splitlines()]
        row = next(one for one in reversed(every) if "times" in one["measurement"])
        row["measurement"]["environment"].pop("clocks", None)
        target = folder / f"traces/h200/{op_type}/{name}.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w") as out:
            for session in range(sessions):
                row["measurement"]["session"] = f"session {session}"
                row["evaluation"]["timestamp"] = f"2026-11-{1 + session:02}T10:00:00+00:00"
                for line in lines:
                    floor_us = draw.uniform(300, 8000)
                    row["workload"] = json.loads(line)["workload"]
                    for own, own_hash in hashes.items():
                        typical_us = floor_us * draw.lognormal(0.3, 0.3)
                        times = row["measurement"]["times"] = {}
                        for kind in ("eager", "graph", "busy"):
                            spans = np.round(typical_us * draw.lognormal(0, 0.02, 12), 3)
                            samples = spans.reshape(3, 4).tolist()
                            times[kind] = {"median_us": round(float(np.median(spans)), 3), "samples_us": samples}
                        row["solution"] = own
                        row["measurement"]["solution_hash"] = own_hash
                        row["measurement"]["latency_us"] = times["eager"]["median_us"]
                        own_ms = times["eager"]["median_us"] / 1e3
                        row["measurement"]["reference_latency_us"] = times["eager"]["median_us"]
                        row["evaluation"]["performance"] = {
                            "latency_ms": own_ms,
                            "reference_latency_ms": own_ms,
                            "speedup_factor": 1.0,
                        }
                        out.write(json.dumps(row) + "\n")
                        count += 1
    return count


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def measure(folder: Path, form: list[str]) -> str:
    words = [sys.executable, "-m", "kernelderby.cli", "rank", "--root", str(folder), "--format", *form]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{' '.join(form):22} {wall:6.2f} s wall {cpu:6.2f} s CPU {len(done.stdout) / 1e6:6.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=int, default=5000)
    parser.add_argument("--keep", type=Path, help="make the set here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "set"
        make_set(folder, options.solutions)
        size = sum(file.stat().st_size for file in folder.glob("traces/**/*.jsonl"))
        print(f"{SHAPES * options.solutions} rows of {options.solutions} solutions, {size / 1e6:.0f} MB")
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for form in FORMS:
            print(measure(folder, form), flush=True)


if __name__ == "__main__":
    main()
