"""Verbs that run code of a set, for notebooks. The command runs in a separate process behind its fences (SECURITY.md);
its JSON is the answer."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kernelderby.authoring.scratch import is_file
from kernelderby.catalog import Catalog, Workload
from kernelderby.errors import DerbyError
from kernelderby.report.answer import Answer
from kernelderby.report.checks import checks_answer
from kernelderby.report.gate import gate_answer
from kernelderby.rows.checked import CheckResult
from kernelderby.statistics.gate import Gated

_RENAMED = {"timeout_seconds": "timeout", "most": "most_starts"}


def verb_json(
    words: Sequence[str],
    root: Path,
    names: Sequence[str] = (),
    *,
    timeout: float | None = None,
    begun: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    **process: Any,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Runs a verb on a set. Returns its JSON and its lines on stderr. names: words that are never options. begun:
    called with the process. process: arguments of Popen. DerbyError with the last line if the verb fails;
    TimeoutExpired."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    command = [sys.executable, "-m", "kernelderby", *words, "--root", str(root), "--json", "--", *names]
    with subprocess.Popen(
        command, stdin=nothing, stdout=pipe, stderr=pipe, text=True, errors="replace", **process
    ) as started:
        try:
            begun(started)
            answer, lines = started.communicate(timeout=timeout)
        except BaseException:
            started.kill()
            raise
    told = tuple(line.removeprefix("derby: ") for line in lines.strip().splitlines())
    try:
        found = json.loads(answer)
    except ValueError:
        raise DerbyError(told[-1] if told else f"derby {words[0]} ended with code {started.returncode}") from None
    return dict(found), told


def options_of(given: Mapping[str, Any]) -> list[str]:
    """`--name value` for each value, `--name` for a true flag. A false flag, None and "" give nothing."""
    words = []
    for name, value in given.items():
        option = f"--{_RENAMED.get(name, name).replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not False and value not in (None, ""):
            words.append(f"{option}={value}")
    return words


def repeated(**values: Iterable[str]) -> list[str]:
    return [f"--{name}={each}" for name, some in values.items() for each in some]


def words_of_check(
    solutions: Sequence[str], definitions: Sequence[str], operator: str | None, shapes: Sequence[str]
) -> list[str]:
    """The words of `derby check` with a FILE.py or shapes of one operator. DerbyError for words that contradict each
    other."""
    has_file = any(map(is_file, solutions))
    if not has_file and not shapes:
        if operator is not None:
            raise DerbyError("operator= goes with a FILE.py or shapes; name it in definitions=")
        return [*map(_no_option, solutions), *repeated(definitions=definitions)]
    of = list(dict.fromkeys([*definitions, *([operator] if operator else [])]))
    if len(of) > 1:
        raise DerbyError("a FILE.py and shapes are of one operator; give one of each")
    if has_file:
        return [*map(_no_option, solutions), *repeated(**{"for": of}, shape=shapes)]
    if not solutions and not of:
        raise DerbyError("shapes: of which operator? give operator=")
    return [*map(_no_option, solutions or of), *repeated(shape=shapes)]


def _no_option(name: str) -> str:
    if name.startswith("-"):
        raise DerbyError(f"{name!r:.80}: is no name of a solution, operator or FILE.py; give another one")
    return name


def check(catalog: Catalog, words: Sequence[str], fresh: int = 0, **options: Any) -> Answer[Sequence[CheckResult]]:
    """words: names, FILE.py and choices, as for `derby check`."""
    found, told = verb_json(["check", *words, *options_of({"fresh": fresh or None, **options})], catalog.root)
    results = msgspec.convert(found["results"], list[CheckResult], strict=False)
    given = found["device"], results, found["skipped"], found["broken"], found["secret"], fresh
    asked = " ".join(words) if any(map(is_file, words)) else ""
    return replace(checks_answer(*given, asked=asked), warnings=told)


def bench(
    catalog: Catalog,
    solutions: Sequence[str],
    definitions: Sequence[str],
    workloads: Sequence[str],
    settings: Mapping[str, Any],
) -> list[str]:
    """Runs `derby bench`. Returns the operators of the rows that it wrote."""
    words = repeated(solutions=solutions, definitions=definitions, workloads=workloads)
    found, _ = verb_json(["bench", *words, *options_of(settings)], catalog.root)
    return sorted({str(row["definition"]) for row in found["rows"]})


def gate(
    catalog: Catalog, base: str, candidate: str, workloads: Sequence[str], least: float = 0.01, **options: Any
) -> Answer[Sequence[Any]]:
    words = ["gate", _no_option(base), _no_option(candidate), *repeated(workloads=workloads)]
    found, told = verb_json([*words, *options_of({"least": 100 * least, **options})], catalog.root)
    known = {each.uuid: each for name in catalog.definitions for each in catalog.workloads(name)}
    gated = [_gated_one(known[row["uuid"]], row) for row in found["workloads"]]
    names = found["base"], found["candidate"]
    return replace(gate_answer(names, found["machine"], least, gated, found["notes"]), warnings=told)


def _gated_one(workload: Workload, row: dict[str, Any]) -> Any:
    from kernelderby.measure.run.gate import GatedWorkload

    def share(name: str, unknown: float = math.inf) -> float:
        percent = row[f"{name}_percent"]
        return unknown if percent is None else percent / 100

    gated = row["base_us"] and Gated(
        row["verdict"],
        *(share("change"), share("low", -math.inf), share("high"), share("noise"), share("detectable")),
        *(row["starts"], row["base_us"], row["candidate_us"]),
    )
    return GatedWorkload(workload, row["verdict"], row["time"] or "", gated, row["failure"] or "")
