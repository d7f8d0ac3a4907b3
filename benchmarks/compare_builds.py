"""Two or more builds of one solution against each other, in turn: for work on a kernel, before its rows are recorded.

    python benchmarks/compare_builds.py derby_moe_sm90 HEAD~3 . --workloads 901 14107 --rounds 4

A build is a git revision (the solution's folder as it was then), "." (as it is now) or any folder of sources. All run
in this one process and share one GPU, A B A B, on the same inputs; each is checked against the definition first. A
ratio is a build's time over the first one's, round by round: median, least and most over the rounds. Absolute times
differ from one start to the next by several per cent (clocks, temperature); ratios of one start do not. Nothing is
written: `derby bench` records. Without a GPU: the small size, by the wall clock, to see that the builds run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from kernelderby.catalog import Catalog, Solution
from kernelderby.catalog.selection import select_workloads
from kernelderby.catalog.solutions import SOURCE_SUFFIXES
from kernelderby.errors import DerbyError
from kernelderby.measure.clock.timing import find_protocol, make_timer
from kernelderby.measure.judge.cases import case_of_workload, small_cases
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.executor import local_check, local_race
from kernelderby.rows.measurement import Status

CHECKOUT = Path(__file__).resolve().parent.parent


def build(solution: Solution, name: str) -> Solution:
    """The solution with the sources that `name` stands for. DerbyError if there are none."""
    if name == ".":
        return solution
    if Path(name).is_dir():  # the shared files as they are now
        common = {file: solution.sources[file] for file in solution.common}
        files = common | {
            file.relative_to(name).as_posix(): file.read_text(encoding="utf-8")
            for file in sorted(Path(name).rglob("*"))
            if file.suffix in SOURCE_SUFFIXES
        }
    else:
        with tempfile.TemporaryDirectory() as scratch:
            files = {}
            if archived := archive(name, "definitions", "solutions"):
                subprocess.run(["tar", "-x", "-C", scratch], input=archived, check=True)
                then = Catalog.open(scratch).solutions.get(solution.name)
                files = then.sources if then else {}
    if solution.entry_point.partition("::")[0] not in files:
        raise DerbyError(f"{name}: is no folder and no revision with the sources of {solution.name}")
    return replace(solution, sources=files)


def archive(revision: str, *folders: str) -> bytes:
    """A tar file of the folders as they were then; nothing where git fails."""
    return subprocess.run(["git", "-C", CHECKOUT, "archive", revision, "--", *folders], capture_output=True).stdout


def compare(
    definition, module, candidates: dict[str, Candidate], maker: InputMaker, timer, rounds: int, iterations: int
) -> dict[str, list[float]]:
    """Build -> the median of each round in us; a build that is wrong ends the comparison with a DerbyError."""
    races = {}
    for name, candidate in candidates.items():
        verdict = local_check(candidate, module, maker)
        if verdict.status is not Status.PASSED:
            raise DerbyError(f"{name}: {maker.case.label}: {verdict.status}: {verdict.message}")
        races[name] = local_race(candidate, module, maker, timer)
    medians: dict[str, list[float]] = {name: [] for name in races}
    for number in range(rounds):
        for name, race in races.items():
            turn = race.turn(number, iterations)
            if turn.verdict.status is not Status.PASSED:
                raise DerbyError(f"{name}: {maker.case.label}: {turn.verdict.status}: {turn.verdict.message}")
            medians[name].append(statistics.median(turn.eager.spans_us))
    return medians


def row(label: str, medians: dict[str, list[float]]) -> str:
    first, *others = medians
    cells = [f"{statistics.median(medians[first]):10.1f}"]
    for name in others:
        ratios = [mine / its for mine, its in zip(medians[name], medians[first], strict=True)]
        cells.append(
            f"{statistics.median(medians[name]):10.1f} {statistics.median(ratios):.3f} "
            f"[{min(ratios):.3f}, {max(ratios):.3f}]"
        )
    return f"{label:>48}  " + "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("solution")
    parser.add_argument("builds", nargs="+", help="git revisions, folders, or . for the working tree")
    parser.add_argument("--workloads", nargs="*", default=[], help="as for derby bench")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8)
    arguments = parser.parse_args()
    catalog = Catalog.open(CHECKOUT)
    solution = catalog.solution(arguments.solution)
    definition = catalog.definition(solution.definition)
    module = load_definition_module(definition)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    candidates = {
        name: Candidate(
            load_solution(definition, build(solution, name)), solution.destination_passing_style, definition
        )
        for name in arguments.builds
    }
    if device.type == "cuda":
        cases = [
            case_of_workload(definition, workload)
            for workload in select_workloads(catalog.workloads(definition.name), arguments.workloads)
        ]
    else:
        cases = small_cases(definition, module.SMALL_AXES, [{}], seeds=1)
    protocol, note = find_protocol(device)
    timer = make_timer(protocol, device)
    where = torch.cuda.get_device_name(0) if device.type == "cuda" else "a CPU"
    print(f"{solution.name} on {where}, {protocol} {note}")
    print(f"{'us, ratio to the first [least, most]':>48}  " + "  ".join(f"{name[-32:]:>10}" for name in candidates))
    for case in cases:
        maker = InputMaker(definition, module, case, device, CHECKOUT)
        print(
            row(
                case.label[-48:],
                compare(definition, module, candidates, maker, timer, arguments.rounds, arguments.iterations),
            ),
            flush=True,
        )


if __name__ == "__main__":
    try:
        main()
    except DerbyError as error:
        raise SystemExit(f"compare_builds: {error}") from None
