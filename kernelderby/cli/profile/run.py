"""derby profile run: record profiles of solutions on this GPU, or count what its kernels do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import (
    FILE,
    SECONDS,
    Count,
    DerbyCommand,
    check_names,
    definitions_option,
    json_option,
    solutions_option,
    workloads_option,
    written_root_option,
)
from kernelderby.cli.output import say_json, say_line, warn
from kernelderby.store.counts import counted

_DEFAULT_OUT = Path("reports") / "profiles"


@click.command(cls=DerbyCommand)
@solutions_option
@definitions_option
@workloads_option
@click.option(
    "--iterations",
    type=Count(3),
    default=20,
    show_default=True,
    help="Calls in the capture; slow solutions get fewer.",
)
@click.option("--timeout", type=SECONDS, default=600, show_default=True, help="Seconds for each solution and workload.")
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
@written_root_option
@json_option
def command(
    solutions: tuple[str, ...],
    definitions: tuple[str, ...],
    workloads: tuple[str, ...],
    iterations: int,
    timeout: float,
    out: Path | None,
    tool: str,
    harness: str,
    root: Path,
    as_json: bool,
) -> None:
    """Record a profile of each solution on each workload on this GPU: one SQLite file in nsys's schema for each pair,
    in a process of its own, warm-up and correctness check outside the capture."""
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
    solutions, definitions = check_names(catalog, solutions, definitions)
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
    pairs, skipped = plan_profiles(catalog, machine, solutions, definitions, workloads)
    if not pairs:
        raise DerbyError(
            "nothing to profile: "
            + ("; ".join(f"{name}: {why}" for name, why in skipped.items()) or "no solution of these definitions")
        )
    folder = out or root / _DEFAULT_OUT
    folder.mkdir(parents=out is None, exist_ok=True)
    tell = (lambda line: warn([line])) if as_json else say_line
    for name, reason in skipped.items():
        tell(f"skipped {name}: {reason}")
    results = []
    for result in _profiles(catalog, machine, pairs, folder, iterations, timeout, tool, harness, tell):
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
    if any(result.path is None for result in results):
        raise DerbyError(
            "; ".join(
                f"{result.solution} on {result.workload}: {_why(result)}" for result in results if result.path is None
            )
        )


def _profiles(
    catalog: Any,
    machine: Any,
    pairs: Any,
    folder: Path,
    iterations: int,
    timeout: float,
    tool: str,
    harness: str,
    tell: Callable[[str], None],
) -> Iterator[Any]:
    """The results one by one, by nsys where it was asked for and works, by ncu, otherwise by CUPTI."""
    from functools import partial

    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.tools import find_tool
    from kernelderby.measure.record import ncu, nsys
    from kernelderby.measure.record.run import SUFFIX, Around, count_kernels, run_profiles

    around = None
    if tool == "ncu":
        found = find_tool("ncu")
        if found is None:
            raise DerbyError("--with ncu: it is neither on PATH nor in the usual places; install Nsight Compute")
        tell(f"counting with {found}")
        iterations = min(iterations, ncu.MOST_ITERATIONS)
        around = Around(partial(ncu.record, found), ncu.SUFFIX, ncu.count_kernels, call_by_call=True)
    elif tool == "nsys":
        found, problems = nsys.find_working()
        for problem in problems:
            tell(problem)
        if found is None:
            tell(
                "nsys makes no report here; recording with CUPTI instead"
                + (", and our own calls instead of flashinfer-bench's" if harness != "derby" else "")
            )
        else:
            tell(f"recording with {found}")
            if harness == "flashinfer-bench":
                yield from nsys.flashinfer_bench_profiles(found, catalog, machine, pairs, folder, timeout)
                return
            around = Around(partial(nsys.record, found), SUFFIX, count_kernels)
    yield from run_profiles(catalog, machine, pairs, folder, iterations, timeout, around)


def _lines(result: Any) -> list[str]:
    if result.path is None:
        return [f"{result.solution} on {result.workload}: no profile: {_why(result)}"]
    lines = [
        f"{result.path}: {result.bytes / 1e6:.2f} MB, {counted(result.kernels, 'kernel')}"
        + (f" in {counted(result.iterations, 'call')}" if result.iterations else "")
    ]
    return lines + [f"warning: {text}" for text in result.warnings]


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
        f"{fullest} operations); the "
        "recorder lost it: record with another one (--with cupti)"
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
