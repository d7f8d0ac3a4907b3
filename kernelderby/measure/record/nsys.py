"""NVIDIA's nsys: finds it, tests whether it can finish a report here, and runs it within bounds around a command."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.errors import DerbyError
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.machine.tools import find_tools
from kernelderby.measure.record.run import ProcessFailed, Profiled, ProfileJob, count_kernels, run_bounded
from kernelderby.measure.wire.process import worker_environment
from kernelderby.rows.measurement import Status

# Without osrt, sampling and backtraces: their streams are gigabytes that nobody here reads.
TRACE = ("--trace", "cuda,nvtx", "--cuda-graph-trace", "node")
QUIET = ("--sample", "none", "--cpuctxsw", "none", "--backtrace", "none")
CAPTURE_RANGE = ("--capture-range", "cudaProfilerApi", "--capture-range-end", "stop")
# If a signal ends a process, as flashinfer-bench may do, the report has only the data saved before.
SAVE_OFTEN = ("--cuda-flush-interval", "500")  # ms
STREAM_LIMIT_BYTES = 2 << 30  # a runaway stream is stopped, and says so
_TRIAL_SECONDS, _EXPORT_SECONDS = 60, 600


def find_working() -> tuple[Path | None, list[str]]:
    """The first nsys that can make a report, and why the ones before it (or all) cannot."""
    problems: list[str] = []
    for nsys in find_tools("nsys"):
        problem = trial(nsys) and trial(nsys)  # on a busy machine an import was seen to fail, once
        if problem is None:
            return nsys, problems
        problems.append(f"{nsys}: {problem}")
    return None, problems or ["nsys is neither on PATH nor in the usual places"]


def trial(nsys: Path) -> str | None:
    """Profiles `true`, which takes seconds. Gives the reason if this makes no .nsys-rep."""
    with tempfile.TemporaryDirectory(prefix="kernelderby-nsys-") as folder:
        try:
            run_bounded(
                [str(nsys), "profile", "--trace", "nvtx", *QUIET, "--output", f"{folder}/trial", "true"],
                dict(os.environ, TMPDIR=folder),
                _TRIAL_SECONDS,
            )
        except (ProcessFailed, OSError) as error:
            return str(error).splitlines()[0]
        if Path(folder, "trial.nsys-rep").is_file():
            return None
        if Path(folder, "trial.qdstrm").is_file():
            return "leaves a .qdstrm that it cannot import, so it makes no report"
        return "makes no report"


def record(
    nsys: Path,
    words: list[str],
    environment: dict[str, str],
    timeout: float,
    path: Path,
    capture: tuple[str, ...] = CAPTURE_RANGE,
) -> None:
    """Runs the command under nsys and exports to `path` (.sqlite); the .nsys-rep for the GUI lies beside it.

    Ended if nsys, the command or the export fails, or if its stream exceeds STREAM_LIMIT_BYTES.
    """
    report = path.with_suffix(".nsys-rep")
    with tempfile.TemporaryDirectory(prefix="kernelderby-nsys-", dir=path.parent) as folder:
        made = Path(folder, "report.nsys-rep")
        run_bounded(
            [str(nsys), "profile", *TRACE, *QUIET, *capture, "--output", str(made.with_suffix("")), *words],
            dict(environment, TMPDIR=folder),
            timeout,
            lambda: _too_large(Path(folder)),
        )
        if not made.is_file():
            left = ", ".join(sorted(os.listdir(folder))) or "nothing"
            raise ProcessFailed(Status.CRASHED, f"{nsys} left no report, only {left}")
        made.replace(report)
    path.unlink(missing_ok=True)
    run_bounded(
        [str(nsys), "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(path), str(report)],
        environment,
        _EXPORT_SECONDS,
    )
    if not path.is_file():
        raise ProcessFailed(Status.CRASHED, f"{nsys} export made no {path.name}")


def _too_large(folder: Path) -> str | None:
    if sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= STREAM_LIMIT_BYTES:
        return None
    return f"nsys's stream grew past {STREAM_LIMIT_BYTES >> 20} MiB and was stopped; use fewer iterations"


def flashinfer_bench_profiles(
    nsys: Path, catalog: Catalog, machine: Machine, pairs: list[ProfileJob], out: Path, timeout: float
) -> Iterator[Profiled]:
    """`flashinfer-bench run` of each pair under nsys, on a view of the set that has this workload only.

    It calls no cudaProfilerStart, so its warm-up, checks and reference are in the report too.
    """
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = shutil.which("flashinfer-bench", path=places)
    if command is None:
        raise DerbyError(
            "flashinfer-bench is not on PATH; pip install flashinfer-bench, or leave out --harness flashinfer-bench"
        )
    with exclusive(machine, catalog.root):
        for pair in pairs:
            path = out / f"{pair.stem}_flashinfer-bench.sqlite"
            result = Profiled(pair.solution.name, workload_label(pair.workload))
            if missing := missing_inputs(catalog.root, pair.workload):
                result.status = Status.RAISED
                result.message = f"{missing}: is missing; fetch the dataset's blobs, or make them with `derby pack`"
                yield result
                continue
            with tempfile.TemporaryDirectory(prefix="kernelderby-set-") as folder:
                view_of_set(catalog.root, Path(folder), pair.definition, [pair.workload])
                words = [command, "run", "--local", folder]
                words += ["--definitions", pair.definition.name, "--solutions", pair.solution.name]
                try:
                    record(nsys, [*words, *accepting(pair.definition)], worker_environment(), timeout, path, SAVE_OFTEN)
                    result.kernels = count_kernels(path)
                    result.path, result.bytes = path, path.stat().st_size
                    result.warnings = untimed(Path(folder))
                except ProcessFailed as ended:
                    result.status, result.message = ended.status, str(ended)
                except DerbyError:
                    result.status = Status.CRASHED
                    result.message = f"nsys saw no kernel of flashinfer-bench's processes; {path} has none"
            yield result


def accepting(definition: Definition) -> list[str]:
    """Options with which flashinfer-bench accepts everything that the loosest tolerance of the definition accepts. It
    has one tolerance for all outputs, and does not time a solution outside it."""
    found = definition.tolerances
    if not found:
        return []
    values = {
        "--atol": max(each.atol for each in found),
        "--rtol": max(each.rtol for each in found),
        "--required-matched-ratio": min(each.required_matched_ratio for each in found),
    }
    return [word for option, value in values.items() for word in (option, f"{value:g}")]


def untimed(folder: Path) -> list[str]:
    """Why the file holds no timed call, by the rows that flashinfer-bench wrote; empty if it holds some."""
    rows = [line for path in (folder / "traces").rglob("*.jsonl") for line in path.read_text().splitlines()]
    if not rows:
        return ["flashinfer-bench wrote no row: the file may hold no timed call"]
    found = [json.loads(row)["evaluation"] for row in rows]
    return [
        f"flashinfer-bench says {each['status']}: the file holds its checks and no timed call"
        for each in found
        if each and each["status"] != "PASSED"
    ]


def missing_inputs(root: Path, workload: Workload) -> Path | None:
    """A missing file of inputs, without which flashinfer-bench runs nothing and exits without an error."""
    paths = (root / spec["path"] for spec in workload.inputs.values() if spec["type"] == "safetensors")
    return next((path for path in paths if not path.is_file()), None)


def view_of_set(root: Path, folder: Path, definition: Definition, workloads: list[Workload]) -> None:
    """Makes copies of the set's definitions and solutions, a link to its blobs, and a workloads/ with these lines
    only."""
    for part in ("definitions", "solutions"):
        if (root / part).is_dir():
            shutil.copytree(root / part, folder / part)
    if (root / "blob").is_dir():
        (folder / "blob").symlink_to((root / "blob").resolve(), target_is_directory=True)
    lines = folder / "workloads" / definition.op_type / f"{definition.name}.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text("".join(json.dumps(workload.raw) + "\n" for workload in workloads), encoding="utf-8")
