"""NVIDIA's compute-sanitizer around one call of a solution: out of bounds, races in shared memory, uninitialised reads,
barriers that not all threads reach. One line per place, with the kernel and its source line.

Its tools take ten to a hundred times as long as the kernel. Torch gives each tensor its own allocation; otherwise an
access past the end of one tensor would be inside the next.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelderby.catalog import Definition, Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.machine.tools import find_tool
from kernelderby.measure.record.records import ProfileRequest
from kernelderby.measure.record.run import ProcessFailed, run_bounded, worker_command
from kernelderby.measure.wire.process import worker_environment
from kernelderby.rows.row import Status
from kernelderby.store.counts import counted

Job = tuple[Definition, tuple[Solution, ...], tuple[Case, ...]]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_MOST = 1000  # maximum number of errors that a tool prints
_MISSING = (
    "--sanitize: no compute-sanitizer on the PATH, in $CUDA_HOME or /usr/local/cuda; it is part of the CUDA toolkit, "
    "or: pip install nvidia-cuda-sanitizer-api"
)
_LINE = re.compile(r"^=========(?P<indent> *)(?P<text>.*)$")
_FINDING = re.compile(
    r"Invalid |Uninitialized |Barrier error|(Error|Warning): (Potential )?(Race|RAW|WAR|WAW)|Potential |Misaligned |"
    r"Divergent |Deadlock |Program hit |Leaked |Malloc/Free|Out-of-range |Unused "
)
# "at kernel(int *)+0x70 in file.cu:34"; older versions: "at 0x70 in file.cu:34:kernel(int *)".
_AT = re.compile(
    r"\bat (?:0x[0-9a-f]+ in )?(?P<kernel>[^+\s][^+]*?)(?:\+0x[0-9a-f]+)?(?: in (?P<file>\S+:\d+))?(?: \[|$)"
)
_OLD = re.compile(r"\bat 0x[0-9a-f]+ in (?P<file>[^\s:]+:\d+):(?P<kernel>.+)$")
_KERNEL = re.compile(r"(?:void )?((?:[^(<]|<(?:[^<>]|<[^<>]*>)*>)+)")  # without its parameters
_FRAME = re.compile(r"Device Frame: ?(?P<kernel>.+?)(?:\+0x[0-9a-f]+)?(?: in (?P<file>\S+:\d+))?$")


@dataclass(frozen=True, slots=True)
class SanitizerFinding:
    """what: in the tool's words. where: kernel and source line, also of the other access in a race. example: thread and
    address of the first occurrence. count: number of occurrences."""

    what: str
    where: str
    example: str = ""
    count: int = 1

    def __str__(self) -> str:
        times = f" ({counted(self.count, 'time')})" if self.count > 1 else ""
        at = f"{self.where}: " if self.where else ""
        return f"{at}{self.what}{times}" + (f", {self.example}" if self.example else "")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """One solution on one case under one tool, in the form of a check's result."""

    definition: str
    solution: str
    case: str
    status: str
    message: str
    why: tuple[str, ...] = ()
    matched_ratio: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_sanitizer() -> Path:
    """The sanitizer's path. DerbyError without one."""
    found = find_tool("compute-sanitizer")
    if found is None:
        raise DerbyError(_MISSING)
    return found


def chosen_cases(jobs: Iterable[Job], failed: Collection[tuple[str, str]]) -> list[tuple[Definition, Solution, Case]]:
    """One case for each solution: the first that failed (solution, label), otherwise the smallest."""
    pairs = []
    for definition, solutions, cases in jobs:
        for solution in solutions:
            wrong = [case for case in cases if (solution.name, case.label) in failed]
            full = [case for case in cases if all(case.sizes.values())] or list(cases)
            smallest = min(full, key=lambda case: math.prod(case.sizes.values()))
            pairs.append((definition, solution, wrong[0] if wrong else smallest))
    return pairs


def sanitized(
    sanitizer: Path,
    root: Path,
    pairs: Sequence[tuple[Definition, Solution, Case]],
    device: str,
    timeout: float,
    told: Callable[[Sanitized], None] = lambda _: None,
) -> Iterator[Sanitized]:
    """Runs each solution under each of TOOLS. Compiled code is kept for the next tool, and for nobody else."""
    for definition, solution, case in pairs:
        with tempfile.TemporaryDirectory(prefix="kernelderby-sanitize-") as folder:
            names = str(root.resolve()), definition.name, solution.name
            words = worker_command(ProfileRequest(*names, case.to_json(), device), Path(folder))
            for tool in TOOLS:
                status, message, why = _under(sanitizer, tool, words, Path(folder), timeout)
                label = f"{case.label} under {tool}"
                found = Sanitized(definition.name, solution.name, label, status, message, why)
                told(found)
                yield found


def _under(
    sanitizer: Path, tool: str, words: list[str], folder: Path, timeout: float
) -> tuple[str, str, tuple[str, ...]]:
    """Status, message, and a line for each finding."""
    log = folder / f"{tool}.log"
    options = ["--tool", tool, "--log-file", str(log), "--print-limit", str(_MOST), "--target-processes", "all"]
    options += ["--show-backtrace", "device", "--check-exit-code", "no"]
    reason = ""
    try:
        run_bounded([str(sanitizer), *options, *words], _environment(folder), timeout)
    except ProcessFailed as ended:
        reason, status = str(ended), ended.status
    text = log.read_text(errors="replace") if log.is_file() else ""
    if found := findings(text):
        return tool, counted(len(found), "place"), tuple(map(str, found))
    if reason:
        return str(status), reason, ()
    if "SUMMARY: 0 " not in text:  # only an explicit summary means that nothing was found
        said = [line.strip("= ") for line in text.splitlines() if "Error" in line]
        return str(Status.CRASHED), f"{tool} looked at nothing: {said[-1] if said else 'it wrote no summary'}", ()
    return str(Status.PASSED), "", ()


def _environment(folder: Path) -> dict[str, str]:
    given = worker_environment()
    lines = f"{given.get('NVCC_APPEND_FLAGS', '')} -lineinfo".strip()
    return given | {
        "NVCC_APPEND_FLAGS": lines,  # or a finding names no line of a CUDA source
        "TRITON_DISABLE_LINE_INFO": "0",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def findings(text: str) -> list[SanitizerFinding]:
    """The findings in a log of any of the tools, each place once."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        told = found["text"].strip() if found else ""
        if told and _FINDING.match(told) and len(found["indent"] if found else "") < 4:
            blocks.append([told])
        elif told and blocks and blocks[-1] and len(found["indent"] if found else "") >= 4:
            blocks[-1].append(told)
        elif not told and blocks:
            blocks.append([])
    every: dict[tuple[str, str], SanitizerFinding] = {}
    for block in filter(None, blocks):
        one = _finding(block)
        known = every.get((one.what, one.where))
        count = 1 + (known.count if known else 0)
        every[one.what, one.where] = SanitizerFinding(one.what, one.where, (known or one).example, count)
    return list(every.values())


def _finding(block: list[str]) -> SanitizerFinding:
    head, *rest = block
    what, _, access = head.partition(" at ") if "Race" in head or "hazard" in head else (head, "", "")
    places = [_place(f"at {access}")] if access else []
    for line in rest:
        if line.startswith(("at ", "and ")) and " access at " in f" {line}":
            what += f", {line.partition(' at ')[0]}"
        if line.startswith(("at ", "in ")) or " access at " in f" {line}":
            places.append(_place(line))
    frames = [_place(line) for line in rest if line.startswith("Device Frame")]
    own = [each for each in frames if each and each not in places]
    example = " ".join(line for line in rest if line.startswith(("by thread", "Address", "Access", "and is")))
    where = " and ".join(dict.fromkeys(filter(None, places)))
    return SanitizerFinding(what.rstrip(". "), f"{where}, called in {own[-1]}" if own else where, example)


def _place(line: str) -> str:
    """A place such as "saxpy kernel.cu:41"."""
    found = _FRAME.search(line) or _OLD.search(line) or _AT.search(line)
    if found is None:
        return ""
    named = _KERNEL.match(found["kernel"])
    kernel = named[1].strip() if named else found["kernel"]
    return f"{kernel} {os.path.basename(found['file'])}" if found["file"] else kernel
