"""NVIDIA's ncu around a profiling worker: hardware counters of every kernel of a few calls, as ncu's own CSV.

ncu runs each kernel alone, several times, with cold caches and without fixed clocks. So its times differ from those of
`derby bench` and of a recording.
"""

from __future__ import annotations

import csv
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.measure.record.run import ProcessFailed, run_bounded
from kernelderby.rows.measurement import Status

SUFFIX = ".ncu.csv"
MOST_ITERATIONS = 3  # calls; counters hardly vary, and each kernel runs some ten times
# Names for Volta and all later architectures. profile/counters.py reads them.
METRICS = (
    "device__attribute_display_name",
    "gpu__time_duration.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
    "l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block",
)


def record(ncu: Path, words: list[str], environment: dict[str, str], timeout: float, path: Path) -> None:
    """Runs the command under ncu, which counts between cudaProfilerStart and cudaProfilerStop, and writes its CSV.
    Ended if ncu or the command fails, or nothing was counted.
    """
    options = ["--profile-from-start", "off", "--nvtx", "--clock-control", "none", "--cache-control", "all"]
    options += ["--target-processes", "application-only"]  # not the compilers that it starts, which would be very slow
    form = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(path)]
    path.unlink(missing_ok=True)
    try:
        run_bounded([str(ncu), *options, *form, "--metrics", ",".join(METRICS), *words], environment, timeout)
        if path.is_file() and count_kernels(path):
            return
        ended = ProcessFailed(Status.CRASHED, f"{ncu} counted nothing")
    except ProcessFailed as error:
        ended = error
    # ncu's log has the reason in place of the table.
    said = [line for line in path.read_text().splitlines() if "==ERROR==" in line] if path.is_file() else []
    path.unlink(missing_ok=True)
    raise ProcessFailed(ended.status, f"{ended}: {said[0]}" if said else str(ended))


def count_kernels(path: Path) -> int:
    """The rows of ncu's table, one per kernel. ncu's own lines (==PROF== ...) precede it, and its first row has the
    units."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DerbyError(f"{path}: cannot be read ({error}); profile again") from None
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    return sum(bool(row and row[0]) for row in csv.reader(lines[start + 1 :]))
