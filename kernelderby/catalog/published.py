"""Published figures of the operators' production shapes, from profiles/published_*.csv; a set without them has none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.rows.row import Time
from kernelderby.store.fields import Importance, Name, Size, read_csv
from kernelderby.store.files import expect_folders

HARDWARE = "xpu-a"  # what the published times were measured on: its file in kernelderby/hardware/gpus
T = TypeVar("T")
LeftOut = Callable[[str], None]


class _Importance(Struct):
    operator: Name
    importance_percent: Importance


class _Time(Struct):
    operator: Name
    shape_id: Size
    tprod_xpua_us: Time


def importance(root: Path | str, left_out: LeftOut | None = None) -> dict[str, float]:
    """Operator -> its share of the GPU time over production profiles, in percent as printed; {} where there is no file.

    The printed figures add up to 109.6: whoever weights with them divides by their sum. A broken file is told to
    left_out and passed over whole, since weights with holes are wrong; without left_out the DerbyError is raised.
    """
    return _by_key(
        (
            (where, row.operator, row.importance_percent)
            for where, row in _rows(root, "published_importance.csv", _Importance)
        ),
        "operator",
        left_out,
    )


def times_us(root: Path | str, left_out: LeftOut | None = None) -> dict[tuple[str, int], float]:
    """(operator, shape_id) -> the median time of the deployed kernel on HARDWARE; {} where there is no file. left_out:
    as above."""
    return _by_key(
        (
            (where, (row.operator, row.shape_id), row.tprod_xpua_us)
            for where, row in _rows(root, "published_shapes.csv", _Time)
        ),
        "operator and shape_id",
        left_out,
    )


def _rows(root: Path | str, name: str, kind: type[T]) -> Iterator[tuple[str, T]]:
    path = Path(root) / "profiles" / name
    expect_folders(path.parent)
    if os.path.lexists(path):
        yield from read_csv(path, kind)


def _by_key(rows: Iterator[tuple[str, T, float]], field: str, left_out: LeftOut | None) -> dict[T, float]:
    found: dict[T, float] = {}
    try:
        for where, key, value in rows:
            if key in found:
                raise DerbyError(f"{where}: {field}: {key} stands there already; remove one of the lines")
            found[key] = value
    except DerbyError as error:
        if left_out is None:
            raise
        left_out(str(error))
        return {}
    return found
