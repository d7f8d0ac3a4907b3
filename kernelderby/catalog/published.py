"""Published figures of the operators' production shapes, from profiles/published_*.csv; a set without them has none."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.fields import read_text

HARDWARE = "xpu-a"  # what the published times were measured on: its file in kernelderby/hardware/gpus


def importance(root: Path | str) -> dict[str, float]:
    """Operator -> its share of the GPU time over production profiles, in percent as printed; {} where there is no file.

    The printed figures add up to 109.6: whoever weights with them divides by their sum.
    """
    return {row["operator"]: _number(where, row, "importance_percent")
            for where, row in _rows(Path(root), "published_importance.csv")}


def times_us(root: Path | str) -> dict[tuple[str, int], float]:
    """(operator, shape_id) -> the median time of the deployed kernel on HARDWARE; {} where there is no file."""
    return {(row["operator"], int(_number(where, row, "shape_id", least=0))): _number(where, row, "tprod_xpua_us")
            for where, row in _rows(Path(root), "published_shapes.csv")}


def _rows(root: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Where a row stands and its fields; comment lines begin with #."""
    path = root / "profiles" / name
    if not path.is_file():
        return
    lines = [(number, line) for number, line in enumerate(read_text(path).splitlines(), start=1)
             if line.strip() and not line.startswith("#")]
    for (number, _), row in zip(lines[1:], csv.DictReader(line for _, line in lines), strict=True):
        yield f"{path}:{number}", row


def _number(where: str, row: dict[str, str], field: str, least: float = 1e-9) -> float:
    """DerbyError where it is missing, no number, below the least or infinite."""
    try:
        value = float(row[field])
    except (KeyError, TypeError, ValueError):
        raise DerbyError(f"{where}: {field}: is missing or no number; mend that line") from None
    if not least <= value < float("inf"):
        raise DerbyError(f"{where}: {field}: {row[field]} is too small or not finite; mend that line")
    return value
