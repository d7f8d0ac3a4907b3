"""Profiles of full size on any CPU machine: `python benchmarks/bench_profile_scale.py`, exit 1 past a limit.

Writes an nsys export (schema 3.16) with 2 million kernels, as many launches and 0.9 million NVTX ranges to a temporary
folder, and reads it in a process of its own each time: the sums, a walk over all spans with their ranges, the kernel
table, and the stage table of a pipeline two of whose stages share a kernel. Processor time is what is compared with the
limits, because a busy machine stretches the time on the wall; one thread does the work, so on a quiet machine both are
the same. Peak memory is the process's resident set, interpreter and imports included.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "tests" / "profile"))

from make_nsys import Export, global_id  # noqa: E402

OPERATIONS = 2_000_000
LIMITS = {"derby profile kernels": (6.0, 400.0), "derby profile stages": (10.0, 300.0)}  # s, MB
SOLUTION = "triton_fused_v2"
PROCESS, THREAD = 4242, 4243

# One invocation of that solution's pipeline as a profile shows it: (range, kernel, ns). Both GEMMs are one kernel.
GEMM = "void cutlass::device_kernel<GemmUniversal<GroupProblemShape<Shape<int, int, int>>, Mainloop<(int)128>>>(Params)"
STARTS = "void get_group_gemm_starts<__nv_fp8_e4m3, __nv_bfloat16, float>(int *, T1 **, T1 **, T2 **)"
PIPELINE = (
    ("routing", "void moe_fused_gate_kernel<float, (int)8>(void *, void *, float *, int *)", 21_800),
    ("permute", "compute_problem_sizes(const int *, int *, int *, int *, int, long, long)", 12_900),
    ("permute", "compute_expert_offsets(const int *, int *, int *, int)", 3_200),
    ("permute", "compute_arg_sorts(const int *, int *, int *, int *, int, int)", 27_400),
    ("permute", "void shuffleRowsKernel<__nv_fp8_e4m3>(const T1 *, const int *, T1 *, long, long)", 58_200),
    ("permute", "void shuffleRowsKernel<float>(const T1 *, const int *, T1 *, long, long)", 21_500),
    ("experts", STARTS, 2_700),
    ("experts", GEMM, 2_194_900),
    ("experts", "swiglu_quant_kernel", 146_900),
    ("experts", STARTS, 2_700),
    ("experts", GEMM, 68_900),
    ("combine", "void apply_shuffle_mul_sum_kernel<__nv_bfloat16>(const T1 *, T1 *, const int *, const T1 *)", 61_400),
    ("check", "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int)", 5_000),
)
EVERY_COPY = 100  # invocations


def write_export(path: Path, operations: int) -> None:
    with Export(path, "2024") as export:
        export.kernel(PIPELINE[0][1], 1, 2)  # one row each through the slow way makes the tables and strings
        export.memcpy(8, 4096, 1, 2)
        export.call("cudaLaunchKernel_v7000", 1, 2, None)
        export.nvtx("invocation", 1, 2)
        names = [export.string(name) for _, name, _ in PIPELINE]
        called = export.string("cudaLaunchKernel_v7000")
        process, thread = global_id(PROCESS), global_id(PROCESS, THREAD)
        invocations = operations // len(PIPELINE)
        insert(
            export.connection,
            "CUPTI_ACTIVITY_KIND_KERNEL",
            (
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "correlationId",
                "globalPid",
                "demangledName",
                "shortName",
                "registersPerThread",
                "gridX",
                "blockX",
                "dynamicSharedMemory",
                "gridId",
            ),
            (
                (
                    start,
                    start + length,
                    0,
                    1,
                    7,
                    launch,
                    process,
                    names[place],
                    names[place],
                    168,
                    132,
                    384,
                    200_000,
                    launch,
                )
                for launch, place, start, length, _ in timeline(invocations)
            ),
        )
        insert(
            export.connection,
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "copyKind"),
            (
                (start - 900, start - 100, 0, 1, 7, invocations * len(PIPELINE) + launch, process, 4096, 8)
                for launch, place, start, _, _ in timeline(invocations)
                if place == 0 and launch % (EVERY_COPY * len(PIPELINE)) == 1
            ),
        )
        insert(
            export.connection,
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
            ((call, call + 900, 0, thread, launch, called, 0) for launch, _, _, _, call in timeline(invocations)),
        )
        insert(
            export.connection,
            "NVTX_EVENTS",
            ("start", "end", "eventType", "text", "globalTid", "domainId"),
            ((start, end, 59, name, thread, 0) for name, start, end in ranges(invocations)),
        )


def insert(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Iterator[tuple]) -> None:
    """Columns that are NOT NULL and not given are 0."""
    needed = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[3] and row[1] not in columns]
    names = ", ".join(f'"{name}"' for name in (*columns, *needed))
    values = ", ".join(["?"] * len(columns) + ["0"] * len(needed))
    connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)


def timeline(invocations: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(correlation id, place in the pipeline, GPU start, duration, start of the launch) of every kernel."""
    launch, clock, host = 0, 1_000_000_000, 900_000_000
    for invocation in range(invocations):
        for place, (_, _, length) in enumerate(PIPELINE):
            launch += 1
            length += (invocation * 7919 + place) % 997
            yield launch, place, clock, length, host
            clock += length + 1_000
            host += 3_000
        host = max(host, clock - 100_000)


def ranges(invocations: int) -> Iterator[tuple[str, int, int]]:
    """One range an invocation, and one around the launches of each step in it."""
    first = step = None
    for launch, place, _, _, call in timeline(invocations):
        name = PIPELINE[place][0]
        if place == 0:
            first = step = call - 500
        last = place + 1 == len(PIPELINE)
        if last or PIPELINE[place + 1][0] != name:
            yield name, step, call + 1_000
            step = call + 1_500
        if last:
            yield f"invocation {launch // len(PIPELINE) % 50}", first - 100, call + 1_200


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak resident MB of a process. SystemExit with its output when it fails."""
    start = time.perf_counter()
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(arguments)}\n{output.decode(errors='replace')}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024  # kB on Linux


def reading(path: Path, expression: str) -> list[str]:
    opening = f"from kernelderby.profile.sources import open_profile\nprofile = open_profile({str(path)!r})\n"
    return ["-c", opening + expression]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--keep", type=Path, help="write the export here and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "scale.sqlite"
        path.unlink(missing_ok=True)
        start = time.perf_counter()
        write_export(path, options.operations)
        print(
            f"{options.operations:,} operations, {path.stat().st_size / 1e6:.0f} MB, written in "
            f"{time.perf_counter() - start:.1f} s"
        )
        derby = ["-c", "from kernelderby.cli import main; main()", "profile"]
        walk = "assert sum(1 for span in profile.spans() if span.ranges)\nassert profile.unlinked_launches == 1"
        results = [
            (title, *measured(arguments))
            for title, arguments in (
                ("sums and API sums", reading(path, "assert profile.sums() and profile.api_sums()")),
                ("all spans with their ranges", reading(path, walk)),
                ("derby profile kernels", [*derby, "kernels", str(path)]),
                ("derby profile stages", [*derby, "stages", str(path), "--solution", SOLUTION]),
            )
        ]
    broken = False
    for title, seconds, processor, megabytes in results:
        most_s, most_mb = LIMITS.get(title, (float("inf"), float("inf")))
        much = processor > most_s or megabytes > most_mb
        broken |= much
        limit = f"limit {most_s:.0f} s, {most_mb:.0f} MB {'TOO MUCH' if much else 'ok'}" if title in LIMITS else ""
        print(
            f"{title:<28} processor {processor:5.2f} s ({seconds:6.2f} s in all) {megabytes:4.0f} MB  {limit}".rstrip()
        )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
