"""Numbers, units and column names of tables that people and tools print.

A number is read only if it has one meaning. "1,234" is 1234 in a column of whole numbers. In a column of fractions it
could also be 1.234 of a locale with decimal commas, so it is refused.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass

TIME_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
SIZE_BYTES = {  # nsys's MB is 10^6 bytes
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SPELLINGS = {
    **dict.fromkeys(("nsec", "nanoseconds"), "ns"),
    **dict.fromkeys(("usec", "μs", "µs", "microseconds"), "us"),
    **dict.fromkeys(("msec", "milliseconds"), "ms"),
    **dict.fromkeys(("sec", "seconds"), "s"),
    **dict.fromkeys(("bytes", "byte", "b"), "B"),
}
_UNITS = {**{unit.lower(): unit for unit in (*TIME_NS, *SIZE_BYTES, "%")}, **_SPELLINGS}

_SPACES = " \u00a0\u2009\u202f"  # no-break, thin, narrow no-break
_PLAIN = re.compile(r"[+-]?(?:\d+(?:\.(\d*))?|\.(\d+))(?:[eE][+-]?\d+)?")
_GROUPED = re.compile(rf"[1-9]\d{{0,2}}([,'’{_SPACES}])\d{{3}}(?:\1\d{{3}})*(?:\.(\d+))?")
_DOTTED = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
_CELL = re.compile(rf"[~≈]?\s*(?P<number>[+-]?[\d.][\d.,'’{_SPACES}]*(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-zμµ]+)?")
_MOST, _LONGEST = 1e24, 60  # the largest number in any unit, and the most letters of one
_MOST_LAUNCHES = 10**15
_NOTHING = {"", "-", "–", "—", "n/a", "na", "nan", "none"}
MEND = "export it again with decimal points, e.g. `LC_ALL=C nsys stats --format csv`"


class CellError(ValueError):
    """The problem of a cell and the mend; the caller adds file and line."""

    def __init__(self, told: str) -> None:
        super().__init__(told if "; " in told else f"{told}; mend that cell")


@dataclass(frozen=True, slots=True)
class Quantity:
    """step: the worth of one unit in the last printed place; the value is accurate to half of it."""

    value: float
    step: float


def without_marks(cell: str) -> str:
    """The cell without Markdown's emphasis and code marks."""
    return cell.replace("**", "").replace("`", "").strip()


def quantity(cell: str, header_unit: str | None, units: dict[str, int], default: str | None = None) -> Quantity | None:
    """A time in ns or a size in bytes, by the unit in the cell, otherwise in the column's header, otherwise
    `default`."""
    text = without_marks(cell)
    if text.lower() in _NOTHING:
        return None
    match = _CELL.fullmatch(text)
    if match is None:
        raise CellError(f"{cell!r:.60} is no number")
    unit = unit_of(match["unit"]) if match["unit"] else header_unit or default
    if unit not in units:
        raise CellError(f"{cell!r} has {'the unit ' + unit if unit else 'no unit'}; expected {', '.join(units)}")
    number, step = _number(match["number"].strip(), whole=units[unit] == 1)
    scale = units[unit]
    value = number * scale
    return Quantity(round(value) if abs(value - round(value)) < 1e-6 * scale else value, step * scale)


def count(cell: str) -> int | None:
    """A number of instances. "2799+1098" (one kernel in two places of a pipeline) means the sum."""
    text = without_marks(cell)
    if text.lower() in _NOTHING:
        return None
    total = 0
    for part in text.lstrip("~≈").split("+"):
        number, _ = _number(part.strip(), whole=True)
        if number != int(number) or not 0 <= number < _MOST_LAUNCHES:
            raise CellError(f"{cell!r:.60} is no number of instances")
        total += int(number)
    return total


def csv_cells(line: str, separator: str) -> list[str]:
    """The cells of one line of CSV, with names of any length."""
    csv.field_size_limit(max(csv.field_size_limit(), len(line)))
    return next(csv.reader([line], delimiter=separator), [])


def check_dots(cell: str) -> None:
    """Refuses an ambiguous number in a table with semicolons, where 6.000 is six or six thousand."""
    if _DOTTED.fullmatch(without_marks(cell)):
        raise CellError(f"{cell!r} may have a thousand's or a decimal point; {MEND}")


def check_percent(cell: str) -> None:
    """Refuses a share with a decimal comma, which reveals the locale. Shares themselves are computed anew. People put
    notes before the share ("CUDABlas.cpp 41.5%")."""
    match = re.search(r"([\d.,]+)\s*%?\s*$", without_marks(cell))
    if match and "," in match[1]:
        raise CellError(f"{cell!r} has a decimal comma; {MEND}")


def _number(text: str, whole: bool) -> tuple[float, float]:
    """The value and the worth of its last place. whole: whether three digits after a comma are thousands."""
    try:
        number, step = _parsed(text, whole)
    except OverflowError:
        number = step = math.inf
    if not max(abs(number), step) <= _MOST:
        raise CellError(f"{text!r:.60} is beyond anything measured")
    return number, step


def _parsed(text: str, whole: bool) -> tuple[float, float]:
    if len(text) > _LONGEST:
        raise CellError(f"{text!r:.60} has more digits than any number measured")
    if any(each.isdigit() and not each.isascii() for each in text):
        raise CellError(f"{text!r:.60} has digits of another script")
    plain = _PLAIN.fullmatch(text)
    if plain:
        digits = len(plain[1] or plain[2] or "")
        exponent = int(re.split("[eE]", text)[1]) if "e" in text.lower() else 0
        return (float(text) if digits or exponent else int(text.rstrip("."))), 10.0 ** (exponent - digits)
    grouped = _GROUPED.fullmatch(text)
    if grouped and (grouped[1] != "," or grouped[2] or whole):
        cleaned = re.sub(rf"[,'’{_SPACES}]", "", text)
        return (float(cleaned) if grouped[2] else int(cleaned)), 10.0 ** -len(grouped[2] or "")
    if grouped:
        raise CellError(f"{text!r} may be a thousand or a decimal comma; {MEND}")
    if "," in text or text.count(".") > 1:
        raise CellError(f"{text!r} has a decimal comma; {MEND}" if "," in text else f"{text!r} is no number; {MEND}")
    raise CellError(f"{text!r:.60} is no number")


def unit_of(text: str) -> str | None:
    return _UNITS.get(text.lower(), _UNITS.get(text, text))


@dataclass(frozen=True, slots=True)
class Heading:
    """meaning: one of MEANINGS' keys, or "" for an unused column. unit: the header's unit, None without one."""

    meaning: str
    unit: str | None
    title: str


MEANINGS = {
    "percent": ("%", "percent", "share"),
    "total": ("total time", "total", "total duration", "totalduration", "duration", "gpu time"),
    "count": ("instances", "instance", "count", "num calls", "calls", "launches", "invocations", "operations"),
    "average": ("avg", "average", "mean"),
    "median": ("med", "median"),
    "minimum": ("min", "minimum"),
    "maximum": ("max", "maximum"),
    "deviation": ("stddev", "std dev", "std"),
    "name": ("name", "kernel", "kernel name", "operation", "function", "event"),
    "category": ("category",),
}
_CAMEL = re.compile(r"^(TotalDuration|Average|Min|Max)Ns$")  # rocprof's
_MEANING = {title: meaning for meaning, titles in MEANINGS.items() for title in titles}


# If a table has several columns with names, the first of these names the kernel.
_NAMES = ("kernel name", "kernel", "name", "function", "operation", "event")


def _base(cell: str) -> str:
    return " ".join(without_marks(cell).lower().split())


def columns_of(header: list[str]) -> list[Heading]:
    """Each meaning at most once, for the first column that has it. The GUI's bare "Time" is the share, like "Time
    (%)"."""
    columns, seen = [], set()
    named = min((_base(cell) for cell in header if _base(cell) in _NAMES), key=_NAMES.index, default="")
    for cell in header:
        title = _CAMEL.sub(r"\1 (ns)", without_marks(cell))
        unit = None
        match = re.fullmatch(r"(.*?)\s*[(\[]([^()\[\]]+)[)\]]", title)
        base = (match[1] if match else title).lower()
        if match and match[2].lower() in _UNITS:
            unit = unit_of(match[2])
        meaning = _MEANING.get(" ".join(base.split()), "")
        if unit == "%" or base == "time" or title.startswith("%"):
            meaning = "percent"
        if meaning in seen or (meaning == "name" and _base(cell) != named):
            meaning = ""
        seen.add(meaning)
        columns.append(Heading(meaning, unit, title))
    return columns


def is_header(cells: list[str]) -> bool:
    meanings = {column.meaning for column in columns_of(cells)}
    return "name" in meanings and "count" in meanings and bool({"total", "average"} & meanings)
