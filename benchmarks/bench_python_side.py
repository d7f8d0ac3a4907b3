"""The Python side's own speed, on any CPU machine: `python benchmarks/bench_python_side.py`, exit 1 past a limit.

Limits: `derby --help` in 0.15 s, loading and ranking a set of 10,000 traces in 2 s, one of 100,000 traces of 5,000
solutions in 12 s, `derby roofline` over every shape of this checkout in 2 s, and no import of torch outside measure/.
Times are medians of whole processes, interpreter start included; of the largest sets, one run.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.rows.measurement import Measurement, Status

DERBY = [sys.executable, "-c", "from kernelderby.cli import main; main()"]
HELP_LIMIT_S = 0.15
RANK_LIMIT_S = 2.0
LARGE_RANK_LIMIT_S = 12.0
# Definitions, workloads, solutions of each, times that each was measured; and how often the command is timed.
SETS = (
    ((1, 20, 10, 50), RANK_LIMIT_S, 5),
    ((10, 20, 10, 5), RANK_LIMIT_S, 5),
    ((50, 20, 100, 1), LARGE_RANK_LIMIT_S, 1),
    ((250, 20, 20, 1), LARGE_RANK_LIMIT_S, 1),
)
ROOFLINE_LIMIT_S = 2.0
CHECKOUT = Path(__file__).resolve().parent.parent
REPEATS = 5
ROUNDS, SAMPLES = 5, 20
WITHOUT_TORCH = (
    "catalog",
    "catalog.pack",
    "hardware",
    "roofline.operators",
    "roofline.listing",
    "rank",
    "rank.by_importance",
    "report.text",
    "report.markdown",
    "report.ranking.tables",
    "report.roofline.answer",
    "report.importance",
    "profile.sources",
    "cli",
    "cli.rank",
    "cli.roofline",
)
HEAVY = ("torch", "triton", "flashinfer_bench", "flashinfer", "safetensors")


def write_set(root: Path, definitions: int, workloads: int, solutions: int, history: int) -> int:
    """Writes a trace set with these numbers of each; every solution is measured `history` times on each workload.
    Returns the number of rows."""
    shapes = {}
    for name in (names := [f"operator_{number}" for number in range(definitions)]):
        write(
            root / f"definitions/synthetic/{name}.json",
            {
                "name": name,
                "op_type": "synthetic",
                "axes": {"seq_len": {"type": "var"}},
                "inputs": {"x": {"shape": ["seq_len"], "dtype": "float32"}},
                "outputs": {"y": {"shape": ["seq_len"], "dtype": "float32"}},
                "reference": "def run(x):\n    return x\n",
            },
        )
        shapes[name] = [
            {"uuid": f"{name}-{index}", "axes": {"seq_len": 1 << index}, "inputs": {"x": {"type": "random"}}}
            for index in range(workloads)
        ]
        cost = {"flops": {"float32": 10**6}, "bytes_read": 10**7, "bytes_written": 10**6}
        write(
            root / f"workloads/synthetic/{name}.jsonl",
            *({"definition": name, "workload": shape, "cost": cost} for shape in shapes[name]),
        )
        for index in range(solutions):
            solution = f"solution_{index}_of_{name}"
            write(
                root / f"solutions/someone/synthetic/{name}/{solution}.json",
                {
                    "name": solution,
                    "definition": name,
                    "author": "someone",
                    "spec": {
                        "language": "python",
                        "entry_point": "main.py::run",
                        "destination_passing_style": False,
                        "target_hardware": ["cpu"],
                    },
                    "sources": [{"path": "main.py", "content": f"def run(x):\n    return x + {index}\n"}],
                },
            )
    catalog = Catalog.open(root)
    for name in names:
        hashes = {each.name: each.hash for each in catalog.solutions_of(name)}
        write(root / f"traces/h200/synthetic/{name}.jsonl", *traces(name, shapes[name], hashes, history))
    return definitions * workloads * solutions * history


def traces(definition: str, shapes: list[dict], hashes: dict[str, str], history: int):
    generator = random.Random(definition)
    drawn = [[[generator.gauss(0, 0.5) for _ in range(SAMPLES)] for _ in range(ROUNDS)] for _ in range(50)]
    for run in range(history):
        for shape in shapes:
            for place, (solution, solution_hash) in enumerate(sorted(hashes.items())):
                samples = tuple(tuple(round(50 + place + each, 3) for each in own) for own in generator.choice(drawn))
                yield Measurement(
                    definition=definition,
                    workload=shape,
                    solution=solution,
                    status=Status.PASSED,
                    gpu="NVIDIA H200",
                    protocol="cupti-span",
                    timestamp=f"2026-01-{run % 28 + 1:02d}T00:00:00+00:00",
                    latency_us=statistics.median(sample for samples_ in samples for sample in samples_),
                    samples_us=samples,
                    solution_hash=solution_hash,
                    session=f"session-{run}",
                    environment={"driver": "580.1", "commit": "0123456"},
                ).to_trace()


def write(path: Path, *lines: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def median_seconds(*arguments: str, repeats: int = REPEATS) -> float:
    """Median time of whole `derby` processes, after one run more, so that bytecode is compiled and files are cached."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run([*DERBY, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def heavy_imports() -> list[str]:
    """Heavy modules that come in if everything outside measure/ is imported; there must be none."""
    imports = "; ".join(f"import kernelderby.{module}" for module in WITHOUT_TORCH)
    code = f"{imports}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def main() -> int:
    results = [("derby --help", median_seconds("--help"), HELP_LIMIT_S)]
    for shape, limit, repeats in SETS:
        with tempfile.TemporaryDirectory() as folder:
            rows = write_set(Path(folder), *shape)
            seconds = median_seconds("rank", "--root", folder, repeats=repeats)
            title = f"derby rank: {rows} traces, {shape[0]} definitions x {shape[1]} workloads x {shape[2]} solutions"
            results.append((title, seconds, limit))
    catalog = Catalog.open(CHECKOUT)
    shapes = sum(len(catalog.workloads(name)) for name in catalog.definitions)
    for arguments in (["--gpu", "h20,xpu-a", "--shapes"], ["--gpu", "h200", "--traces"]):
        title = f"derby roofline {' '.join(arguments)}: {len(catalog.definitions)} definitions, {shapes} shapes"
        results.append((title, median_seconds("roofline", "--root", str(CHECKOUT), *arguments), ROOFLINE_LIMIT_S))
    for title, seconds, limit in results:
        print(f"{title:<80} {seconds:6.3f} s  limit {limit:.1f} s  {'ok' if seconds < limit else 'TOO SLOW'}")
    heavy = heavy_imports()
    print(
        f"{'heavy imports outside measure/':<80} {', '.join(heavy) or 'none':>8}  limit none   "
        f"{'TOO MANY' if heavy else 'ok'}"
    )
    return int(bool(heavy) or any(seconds >= limit for _, seconds, limit in results))


if __name__ == "__main__":
    sys.exit(main())
