"""Compares sealed sessions with the rows of a set (`derby verify`). Nothing here measures or needs torch."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.measure.judge.secret import is_drawn, of_workload
from kernelderby.measure.run.seal import (
    FOLDER,
    NAMESPACE,
    SUFFIX,
    commitment,
    entry_hash,
    run_signature_tool,
    sha256,
    signature_of,
)
from kernelderby.rows.row import Status
from kernelderby.rows.verified import SealDefect, SealProblem, Verified
from kernelderby.store.bounds import reading
from kernelderby.store.fields import expect_keys_once, lines_of
from kernelderby.store.files import files_under, read_bytes


class _OwnSession(Struct):
    session: str | None = None


class _OfSession(Struct):
    """A row, as far as its session."""

    measurement: _OwnSession


@dataclass(slots=True)
class _Rows:
    """of: session -> (file, hash of the line) -> row. defects: session -> those of the lines' places. unread: why files
    could not be read."""

    of: defaultdict[str, dict[tuple[str, str], dict[str, Any]]]
    defects: defaultdict[str, Counter[SealDefect]]
    unread: list[str]


def verify(place: Path, key: Path | None = None) -> list[Verified]:
    """place: a .seal file, or a folder of a set with some beneath it. DerbyError if there is none."""
    found = [place] if place.is_file() else []
    if place.is_dir():
        found = files_under(place.resolve(), SUFFIX, lambda _: None)
    if not found:
        told = "" if place.exists() else "does not exist, so it "
        raise DerbyError(f"{place}: {told}holds no sealed session; `derby bench --sealed` writes one")
    opened = [_opened(path) for path in found]
    sessions = frozenset(each.session for each, _ in opened)
    rows = cache(partial(_rows, sessions))  # read once per set, for all of its sessions
    return [_verified(each, entries, key, rows) for each, entries in opened]


def _opened(path: Path) -> tuple[Verified, list[dict[str, Any]]]:
    verified, entries = Verified(path), list[dict[str, Any]]()
    try:
        with reading(path):
            entries = _chained(path, verified.problems)
        verified.session = str(entries[0].get("session")) if entries else ""
    except DerbyError as problem:
        verified.problems.append(_unreadable(str(problem)))
    return verified, entries


def _verified(
    verified: Verified, entries: list[dict[str, Any]], key: Path | None, rows: Callable[[Path], _Rows]
) -> Verified:
    path = verified.path
    if not entries or entries[0].get("kind") != "begin":
        verified.problems.append(SealProblem(SealDefect.NO_COMMITMENT))
        return verified
    first, last = entries[0], entries[-1]
    verified.commitment = str(first.get("commitment"))
    sealed = [entry for entry in entries if entry.get("kind") == "row"]
    verified.rows = len(sealed)
    if last.get("kind") != "end":
        verified.problems.append(SealProblem(SealDefect.NO_END))
    else:
        secret = str(last.get("secret"))
        # Of a secret of several lines, the first ones could be told as the session's: one commitment, many secrets.
        if not is_drawn(secret) or commitment(verified.session, secret) != verified.commitment:
            verified.problems.append(SealProblem(SealDefect.OTHER_SECRET))
        if last.get("rows") != len(sealed):
            verified.problems.append(SealProblem(SealDefect.ROW_COUNT, len(sealed), str(last.get("rows"))))
    verified.problems += _against_rows(path, first, last, sealed, rows)
    if key is not None:
        problem = _signature_problem(path, key)
        verified.signed = not problem
        verified.problems += [SealProblem(SealDefect.SIGNATURE, message=problem)] * bool(problem)
    return verified


def _unreadable(message: str) -> SealProblem:
    return SealProblem(SealDefect.UNREADABLE, message=message)


def _chained(path: Path, problems: list[SealProblem]) -> list[dict[str, Any]]:
    """The entries up to the first one that does not follow from the one before."""
    entries: list[dict[str, Any]] = []
    previous = ""
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        try:
            entry = json.loads(line)
            told = entry.pop("hash")
            follows = entry.get("previous") == previous and entry_hash(entry) == told
            expect_keys_once(path, line)  # the hash is of the last one alone
        except (ValueError, RecursionError, LookupError, AttributeError, TypeError, DerbyError):
            follows = False
        if not follows or (entries and entries[-1].get("kind") == "end"):
            problems.append(SealProblem(SealDefect.BROKEN_CHAIN, number))
            break
        entries.append(entry)
        previous = told
    return entries


def _rows(sessions: Collection[str], traces: Path) -> _Rows:
    found = _Rows(defaultdict(dict), defaultdict(Counter), [])
    for file in files_under(traces, ".jsonl", found.unread.append):
        name, newest = str(file.relative_to(traces.parent)), dict[tuple[str, ...], tuple[datetime, str]]()
        try:
            with reading(file):
                for line in lines_of(file):
                    row = _row_of(text := bytes(line.text))
                    with suppress(LookupError, TypeError):
                        if (session := row["measurement"]["session"]) in sessions:
                            place = name, sha256(text)
                            found.defects[session][SealDefect.ROWS_TWICE] += place in found.of[session]
                            found.of[session][place] = row
                        with suppress(ValueError, OverflowError):
                            key, moment = _key_of(row), _moment_of(row)
                            if key in newest and newest[key][0] > moment:
                                found.defects[newest[key][1]][SealDefect.OLDER_BEHIND] += 1
                            elif session in sessions:
                                newest[key] = moment, session
        except DerbyError as problem:
            found.unread.append(str(problem))
    return found


def _key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Of the rows of a file with one key the last one counts."""
    gpu, protocol = row["evaluation"]["environment"]["hardware"], row["measurement"]["protocol"]
    return row["solution"], row["workload"]["uuid"], gpu, protocol


def _moment_of(row: dict[str, Any]) -> datetime:
    moment = datetime.fromisoformat(row["evaluation"]["timestamp"])
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _row_of(line: bytes) -> dict[str, Any]:
    """Every line that `derby rank` takes for a row, and more; empty for another one. One of two readers is enough:
    json refuses whole numbers of thousands of digits, msgspec half a surrogate pair. What only msgspec reads has no
    more than its session, so that it is found."""
    with suppress(ValueError, RecursionError):
        row: dict[str, Any] = json.loads(line)
        return row
    with suppress(ValueError, RecursionError):
        return {"measurement": {"session": msgspec.json.decode(line, type=_OfSession).measurement.session}}
    return {}


def _against_rows(
    path: Path, first: dict[str, Any], last: dict[str, Any], sealed: list[dict[str, Any]], rows: Callable[[Path], _Rows]
) -> list[SealProblem]:
    """Compares the files of rows with the seal. The set is the folder that holds traces/."""
    if path.parent.name != FOLDER:
        return [SealProblem(SealDefect.ELSEWHERE)]
    found, session = rows(path.resolve().parents[2]), str(first.get("session"))
    of_session = found.of.get(session, {})
    promised = {(str(entry.get("file")), str(entry.get("sha256"))) for entry in sealed}
    counts = {
        SealDefect.MISSING_ROWS: len(promised - of_session.keys()),
        SealDefect.UNSEALED_ROWS: len(of_session.keys() - promised),
        SealDefect.REPEATED_ROWS: len(sealed) - len(promised),
        **Counter(defect for row in of_session.values() for defect in _row_defects(row, first, last)),
        **found.defects.get(session, {}),
    }
    return [*map(_unreadable, found.unread), *(SealProblem(defect, count) for defect, count in counts.items() if count)]


def _row_defects(row: dict[str, Any], first: dict[str, Any], last: dict[str, Any]) -> list[SealDefect]:
    found = []
    try:
        is_of_session = first["solutions"][row["solution"]] == row["measurement"]["solution_hash"]
    except (LookupError, TypeError):
        is_of_session = False
    if not is_of_session:
        found.append(SealDefect.OTHER_CODE)
    own = row["measurement"]
    environment = own.get("environment")
    secret = environment.get("secret") if isinstance(environment, dict) else None
    is_judged = own.get("status") == Status.PASSED or own.get("correctness") is not None
    draw = environment.get("draw", 0) if isinstance(environment, dict) else 0
    raced = first.get("solutions")
    most = len(raced) if isinstance(raced, dict) else 1
    is_one_of_them = type(draw) is int and 0 <= draw < max(1, most)  # of more one would draw what it likes
    fits = not is_judged if secret is None else secret == _secret_of(row, last)
    if "secret" in last and not (is_one_of_them and fits):
        found.append(SealDefect.OTHER_INPUTS)
    return found


def _secret_of(row: dict[str, Any], last: dict[str, Any]) -> str | None:
    """None for a row apart under a name that is not its solution's: of many names one would draw what it likes."""
    try:
        apart = row["measurement"]["environment"].get("apart", "")
        if apart not in ("", row["solution"]):
            return None
        return of_workload(str(last["secret"]), row["workload"]["uuid"], apart)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _signature_problem(path: Path, key: Path) -> str:
    """key: minisign's public key file, or a public SSH key."""
    is_of_minisign, made = signature_of(path, key)
    if is_of_minisign:
        return run_signature_tool(["minisign", "-V", "-q", "-p", str(key), "-m", str(path), "-x", str(made)])
    with tempfile.NamedTemporaryFile("w", suffix=".signers") as signers:
        signers.write(f"judge {read_bytes(key).decode(errors='replace').strip()}\n")
        signers.flush()
        of_judge = ["-f", signers.name, "-I", "judge", "-n", NAMESPACE]
        return run_signature_tool(["ssh-keygen", "-q", "-Y", "verify", *of_judge, "-s", str(made)], read_bytes(path))
