"""derby profile run: record profiles of solutions on this GPU, or count what its kernels do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from kernelderby.cli import options
from kernelderby.cli.options import FILE, SECONDS, Count, DerbyCommand, Wanted
from kernelderby.cli.output import say_json, say_line, warn
from kernelderby.store.counts import counted

_DEFAULT_OUT = Path("reports") / "profiles"


@click.command(cls=DerbyCommand)
@options.choice_options("solutions", "definitions", "workloads")
@click.option("--iterations", type=Count(3), default=20, help="Calls in the capture; slow solutions get fewer.")
@click.option("--timeout", type=SECONDS, default=600, help="Seconds for each solution and workload.")
@click.option("--out", type=FILE, help=f"Folder of the profiles (default: {_DEFAULT_OUT} under the root).")
@click.option(
    "--with",
    "tool",
    type=click.Choice(["cupti", "nsys", "ncu"]),
    default="cupti",
    show_default=True,
    help="The recorder. If nsys cannot make a report, CUPTI records instead, and a line says so. ncu reads the "
    "hardware counters of every kernel of three calls (.ncu.csv).",
)
@click.option(
    "--harness",
    type=click.Choice(["derby", "flashinfer-bench"]),
    default="derby",
    show_default=True,
    help="The program that makes the recorded calls; flashinfer-bench needs nsys.",
)
@options.written_root_option
@options.json_option
def command(
    choice: Wanted, out: Path | None, tool: str, harness: str, root: Path, as_json: bool, **limits: Any
) -> None:
    """Record a profile of each solution on each workload on this GPU.

    Each pair gives one SQLite file in nsys's schema. It runs in a process of its own; warm-up and correctness check
    are not in the file."""
    from kernelderby.catalog import Catalog
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.environment import without_gpu
    from kernelderby.measure.machine.probe import find_machine
    from kernelderby.measure.record.run import plan_profiles
    from kernelderby.measure.wire.early import begin_judging

    if not without_gpu():
        if out is not None and out.parent.is_dir():
            out.mkdir(exist_ok=True)
        begin_judging(root, [out or root / _DEFAULT_OUT.parts[0]], has_tool=tool != "cupti")

    catalog = Catalog.open(root)
    choice = choice.resolved(catalog)
    if harness == "flashinfer-bench" and tool != "nsys":
        raise DerbyError(
            "--harness flashinfer-bench: CUPTI cannot look into another program's processes; add --with nsys"
        )
    if out is not None and not out.parent.is_dir():
        raise DerbyError(f"--out {out}: {out.parent} does not exist; create it first")
    machine = find_machine(root, "cuda")
    if machine.gpu is None:
        raise DerbyError(
            f"{machine.gpu_missing}, so nothing can be profiled; the other `derby profile` verbs read "
            "profiles that were recorded elsewhere"
        )
    pairs, skipped = plan_profiles(catalog, machine, *choice[:3])
    if not pairs:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise DerbyError(f"nothing to profile: {reasons or 'no solution of these operators'}")
    folder = out or root / _DEFAULT_OUT
    folder.mkdir(parents=out is None, exist_ok=True)
    tell = (lambda line: warn([line])) if as_json else say_line
    for name, reason in skipped.items():
        tell(f"skipped {name}: {reason}")
    results, of = [], (catalog, machine, pairs, folder)
    for result in _profiles(of, tool=tool, harness=harness, tell=tell, **limits):
        results.append(result)
        if result.path is not None and tool != "ncu":
            result.warnings += _lost_calls(result.path, result.iterations)
        if not as_json:
            for line in _lines(result):
                say_line(line)
            if result.path is not None:
                _show_stages(result, root) if tool != "ncu" else _show_counters(result.path)
    if as_json:
        say_json({"gpu": machine.name, "skipped": skipped, "profiles": results})
    failed = [f"{each.solution} on {each.workload}: {_why(each)}" for each in results if each.path is None]
    if failed:
        raise DerbyError("; ".join(failed))


def _profiles(
    of: Any, tool: str, harness: str, tell: Callable[[str], None], iterations: int, timeout: float
) -> Iterator[Any]:
    """The results one by one, by nsys where it was asked for and works, by ncu, otherwise by CUPTI. of: the catalog,
    the machine, pairs of solution and workload, the folder."""
    from functools import partial

    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.tools import find_tool
    from kernelderby.measure.record import ncu, nsys
    from kernelderby.measure.record.run import SUFFIX, OuterProfiler, count_kernels, run_profiles

    around = None
    if tool == "ncu":
        found = find_tool("ncu")
        if found is None:
            raise DerbyError("--with ncu: it is neither on PATH nor in the usual places; install Nsight Compute")
        tell(f"counting with {found}")
        iterations = min(iterations, ncu.MOST_ITERATIONS)
        around = OuterProfiler(partial(ncu.record, found), ncu.SUFFIX, ncu.count_kernels, call_by_call=True)
    elif tool == "nsys":
        found, problems = nsys.find_working()
        for problem in problems:
            tell(problem)
        if found is None:
            calls = ", and our own calls instead of flashinfer-bench's" if harness != "derby" else ""
            tell(f"nsys makes no report here; recording with CUPTI instead{calls}")
        else:
            tell(f"recording with {found}")
            if harness == "flashinfer-bench":
                yield from nsys.flashinfer_bench_profiles(*(found, *of, timeout))
                return
            around = OuterProfiler(partial(nsys.record, found), SUFFIX, count_kernels)
    yield from run_profiles(*(*of, iterations, timeout, around))


def _lines(result: Any) -> list[str]:
    if result.path is None:
        return [f"{result.solution} on {result.workload}: no profile: {_why(result)}"]
    calls = f" in {counted(result.iterations, 'call')}" if result.iterations else ""
    line = f"{result.path}: {result.bytes / 1e6:.2f} MB, {counted(result.kernels, 'kernel')}{calls}"
    return [line, *(f"warning: {text}" for text in result.warnings)]


def _why(result: Any) -> str:
    return f"{result.status}: {result.message.splitlines()[0] if result.message else 'no reason given'}"


def _lost_calls(path: Path, calls: int) -> list[str]:
    """A warning where GPU work of some calls is missing. nsys 2023.4.4 was seen to lose all but 13 of 400 kernels, from
    a CUTLASS kernel on, and to say nothing (on an H200, driver 580)."""
    from kernelderby.errors import DerbyError
    from kernelderby.profile.pace import pace_of
    from kernelderby.profile.sources import open_profile
    from kernelderby.profile.stages.walk import INVOCATION

    if not calls:  # another harness's
        return []
    try:
        repetitions = pace_of(open_profile(path), INVOCATION).repetitions
    except DerbyError as error:  # no ranges at all
        return [str(error)]
    fullest = max((each.operations for each in repetitions), default=0)
    whole = sum(each.operations > fullest / 2 for each in repetitions)  # routing may change what a call launches
    if whole == calls:
        return []
    return [
        f"{calls - whole} of {counted(calls, 'call has', 'calls have')} no or little GPU work in the file (others: "
        f"{fullest} operations); the recorder lost it: record with another one (--with cupti)"
    ]


def _show_stages(result: Any, root: Path) -> None:
    """`derby profile stages` of the file. A solution without stages is a line, not the end of the run."""
    from kernelderby.cli.profile.stages import command as stages
    from kernelderby.errors import DerbyError

    try:
        stages.main([str(result.path), "--solution", result.solution, "--root", str(root)], standalone_mode=False)
    except DerbyError as error:
        say_line(f"no stage table: {error}")


def _show_counters(path: Path) -> None:
    from kernelderby.cli.profile.counters import command as counters

    counters.main([str(path)], standalone_mode=False)
