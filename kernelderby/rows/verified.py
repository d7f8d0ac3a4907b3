"""The result of verifying one sealed session, as records. report/verified.py has the words."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from msgspec import Struct


class SealDefect(Enum):
    UNREADABLE = auto()  # message: why
    NO_COMMITMENT = auto()
    NO_END = auto()
    OTHER_SECRET = auto()  # than the one of the commitment
    ROW_COUNT = auto()  # count: sealed rows; message: the number at the seal's end
    BROKEN_CHAIN = auto()  # count: the line
    ELSEWHERE = auto()  # not in the folder of a set's seals
    MISSING_ROWS = auto()
    UNSEALED_ROWS = auto()
    REPEATED_ROWS = auto()
    ROWS_TWICE = auto()  # in the files: the last one counts
    OLDER_BEHIND = auto()  # a row moved or copied behind a later one of its key, in whose place it counts
    OTHER_CODE = auto()
    OTHER_INPUTS = auto()
    SIGNATURE = auto()  # message: of the program that checks it


class SealProblem(Struct, frozen=True):
    """count: rows, where the defect says nothing else."""

    defect: SealDefect
    count: int = 0
    message: str = ""


@dataclass(slots=True)
class Verified:
    """One session. problems: empty if everything holds. signed: by the given key; None without a key."""

    path: Path
    session: str = ""
    commitment: str = ""
    rows: int = 0
    signed: bool | None = None
    problems: list[SealProblem] = field(default_factory=list)
