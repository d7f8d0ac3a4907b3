"""Published figures of the operators' production shapes, from profiles/published_*.csv. A set may lack these files."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.rows.row import Time
from kernelderby.store.fields import Importance, Name, Size, read_csv
from kernelderby.store.files import expect_folders

HARDWARE = "xpu-a"  # the hardware of the published times: its file in kernelderby/hardware/gpus
LeftOut = Callable[[str], None]


class _Importance(Struct):
    operator: Name
    importance_percent: Importance


class _Time(Struct):
    operator: Name
    shape_id: Size
    tprod_xpua_us: Time


def importance(root: Path | str, left_out: LeftOut) -> dict[str, float]:
    """Operator -> its share of the GPU time over production profiles, in percent as printed; {} without a file.

    The printed figures add up to 109.6, so divide by their sum before you use them as weights. If the file is broken,
    left_out gets a line and the whole file is skipped, because weights with holes are wrong.
    """
    return _read(root, "published_importance.csv", _Importance, left_out)


def times_us(root: Path | str, left_out: LeftOut) -> dict[tuple[str, int], float]:
    """(operator, shape_id) -> the median time of the deployed kernel on HARDWARE; {} without a file. left_out: as in
    importance()."""
    return _read(root, "published_shapes.csv", _Time, left_out)


def _read(root: Path | str, name: str, kind: type[Struct], left_out: LeftOut) -> dict[Any, float]:
    """The fields of each line before the last -> the last field."""
    path, found = Path(root) / "profiles" / name, dict[Any, float]()
    *keys, value = kind.__struct_fields__
    key_of = attrgetter(*keys)
    try:
        expect_folders(path.parent)
        for where, row in read_csv(path, kind) if os.path.lexists(path) else ():
            if (key := key_of(row)) in found:
                raise DerbyError(f"{where}: {' and '.join(keys)}: {key} stands there already; remove one of the lines")
            found[key] = getattr(row, value)
    except DerbyError as error:
        left_out(str(error))
        return {}
    return found
