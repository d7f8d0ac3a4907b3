"""How long `derby rank` takes on many rows: python benchmarks/rank_scale.py [--solutions 5000] [--keep FOLDER]

The set has rms_norm's first 20 shapes and the given number of solutions, each with a row of protocol 2 for each shape:
three kinds of time, five rounds of ten samples (4 kB a row; 5,000 solutions make 100,000 rows and 400 MB). Times are
drawn at random, so the answers themselves mean nothing. Prints wall and CPU seconds and memory of every form, each in a
process of its own.

--million: ten operators of 500 solutions, each row measured in ten sessions, three rounds of four samples (1,000,000
rows, 1.9 GB). Prints the times of list, rank, rank of one operator and the page: first from the lines, then from the
columns, then after a row was added to one of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kernelderby.catalog.solutions import read_packed

ROOT = Path(__file__).resolve().parents[1]
OPERATOR, AUTHOR, SHAPES = "rms_norm", "many", 20
MILLION = (["list"], ["list"], ["rank"], ["rank"], ["rank", OPERATOR], ["rank", OPERATOR])
FORMS = (["text"], ["json"], ["csv"], ["csv", "--table", "workloads"], ["csv", "--table", "pairs"], ["markdown"])


def make_set(folder: Path, solutions: int) -> None:
    _make_operator(folder, ROOT / f"workloads/norm/{OPERATOR}.jsonl", solutions, 1, (5, 10))


def make_million(folder: Path, operators: int = 10, solutions: int = 500, sessions: int = 10) -> None:
    files = sorted(ROOT.glob("workloads/*/*.jsonl"), key=lambda path: -len(path.read_text().splitlines()))
    for path in [path for path in files if _has_all(path)][:operators]:
        _make_operator(folder, path, solutions, sessions, (3, 4))


def _make_operator(folder: Path, workloads: Path, solutions: int, sessions: int, samples: tuple[int, int]) -> None:
    """sessions x 20 shapes x solutions rows, each of which agrees with all that is checked of a row. samples: rounds,
    and calls in each."""
    draw = np.random.default_rng(1)
    op_type, name = workloads.parent.name, workloads.stem
    lines = workloads.read_text().splitlines()[:SHAPES]
    for file in (ROOT / "definitions" / op_type).glob(f"{name}.*"):
        _write(folder / "definitions" / op_type / file.name, file.read_text())
    _write(folder / f"workloads/{op_type}/{name}.jsonl", "\n".join(lines) + "\n")
    hashes = _make_solutions(folder, op_type, name, solutions)
    recorded = [json.loads(line) for line in _recorded(op_type, name).read_text().splitlines()]
    row = next(one for one in reversed(recorded) if "times" in one["measurement"])
    row["measurement"]["environment"].pop("clocks", None)
    row["measurement"].pop("setup", None)
    target = folder / f"traces/h200/{op_type}/{name}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as out:
        for session in range(sessions):
            row["measurement"]["session"] = f"session {session}"
            row["evaluation"]["timestamp"] = f"2026-10-{1 + session:02}T10:00:00+00:00"
            for line in map(json.loads, lines):
                row["workload"] = line["workload"]
                floor_us = max(draw.uniform(300, 8000), _least_us(line.get("cost") or {}))
                for own, own_hash in hashes.items():
                    row["solution"], row["measurement"]["solution_hash"] = own, own_hash
                    _draw_row(row, floor_us * draw.lognormal(0.3, 0.3), draw, samples)
                    out.write(json.dumps(row) + "\n")


def _least_us(cost: dict) -> float:
    """The time that a GPU of 1e15 flops and 4e12 bytes a second needs for the work of a shape."""
    moved = cost.get("bytes_read", 0) + cost.get("bytes_written", 0)
    return max(sum(cost.get("flops", {}).values()) / 1e15, moved / 4e12) * 1e6


def _recorded(op_type: str, name: str) -> Path:
    return ROOT / f"traces/h200/{op_type}/{name}.jsonl"


def _has_all(workloads: Path) -> bool:
    """An operator with enough shapes, recorded rows and a baseline."""
    op_type, name = workloads.parent.name, workloads.stem
    packed = ROOT / f"solutions/baseline/{op_type}/{name}/{name}_baseline.json"
    has_shapes = len(workloads.read_text().splitlines()) >= SHAPES
    return has_shapes and _recorded(op_type, name).is_file() and packed.is_file()


def _make_solutions(folder: Path, op_type: str, name: str, count: int) -> dict[str, str]:
    """Name -> hash, of two authors."""
    base = json.loads((ROOT / f"solutions/baseline/{op_type}/{name}/{name}_baseline.json").read_text())
    hashes = {}
    for number in range(count):
        own, author = f"{name}_{number:05}", AUTHOR if number % 2 else "others"
        sources = [each | {"content": f"{each['content']}\nNUMBER = {number}\n"} for each in base["sources"]]
        target = folder / f"solutions/{author}/{op_type}/{name}/{own}.json"
        _write(target, json.dumps(base | {"name": own, "author": author, "sources": sources}))
        hashes[own] = read_packed(target).hash
    return hashes


# Shares of the eager time: the GPU is not busy longer than the graph takes, and the call encloses everything.
_KINDS = {"eager": 1.0, "graph": 0.9, "busy": 0.8}
_WALL, _HOST = 1.2, 0.1


def _draw_row(row: dict, typical_us: float, draw: np.random.Generator, samples: tuple[int, int]) -> None:
    spans = typical_us * draw.lognormal(0, 0.02, samples)
    own, times = row["measurement"], {}
    for kind, share in _KINDS.items():
        of_kind = np.round(spans * share, 3)
        times[kind] = {"median_us": round(float(np.median(of_kind)), 3), "samples_us": of_kind.tolist()}
    eager_us = times["eager"]["median_us"]
    own |= {"times": times, "latency_us": eager_us, "reference_latency_us": eager_us}
    own |= {"wall_us": round(eager_us * _WALL, 3), "host_us": round(eager_us * _HOST, 3)}
    own_ms = eager_us / 1e3
    row["evaluation"]["performance"] = {"latency_ms": own_ms, "reference_latency_ms": own_ms, "speedup_factor": 1.0}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def measure(folder: Path, words: list[str]) -> str:
    command = [sys.executable, "-m", "kernelderby.cli", *words, "--root", str(folder)]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, cwd=ROOT)
        _, status, used = os.wait4(process.pid, 0)
        size = out.seek(0, os.SEEK_END)
    wall, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
    failed = f" exit {os.waitstatus_to_exitcode(status)}" if status else ""
    return (
        f"{' '.join(words):32} {wall:6.2f} s wall {cpu:6.2f} s CPU {used.ru_maxrss / 1e6:5.2f} GB "
        f"{size / 1e6:6.1f} MB{failed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=int, default=5000)
    parser.add_argument("--million", action="store_true", help="a million rows of ten operators")
    parser.add_argument("--keep", type=Path, help="make the set here, or take the one that is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "set"
        if not (folder / "traces").is_dir():
            make_million(folder) if options.million else make_set(folder, options.solutions)
        rows = sum(file.read_bytes().count(b"\n") for file in folder.glob("traces/**/*.jsonl"))
        size = sum(file.stat().st_size for file in folder.glob("traces/**/*.jsonl"))
        print(f"{rows} rows, {size / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        if not options.million:
            for form in FORMS:
                print(measure(folder, ["rank", "--format", *form]), flush=True)
            return
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        page = f"{scratch}/report.html"
        for _ in range(2):  # the first reading, and after a row has come to one file
            for words in (*MILLION, ["report", page]):
                print(measure(folder, words), flush=True)
            print(f"the page: {Path(page).stat().st_size / 1e6:.1f} MB")
            _append_one(folder / f"traces/h200/norm/{OPERATOR}.jsonl")


def _append_one(traces: Path) -> None:
    """Appends the last row once more, with a timestamp one second later."""
    row = json.loads(traces.read_bytes().rpartition(b"\n{")[2].join((b"{", b"")))
    row["evaluation"]["timestamp"] = "2026-11-01T10:00:00+00:00"
    with traces.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
