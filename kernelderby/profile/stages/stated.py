"""Figures that a source states in addition to a published table, without itemising them: a TOML file with the table's
name.

pipeline_total_ms = 3310.0
[[stated]]
what = "elementwise kernels"        # shares: % of `of`, added up
shares = [25.8, 18.7, 15.7]
of = "GPU kernel time"
[[stated]]
what = "device-to-device copies"    # seconds, and bytes or a share that they are
bytes = 7.6e12
seconds = 2.48
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from kernelderby.store.fields import Name, NotNegative, Positive, read_toml


class StatedEntry(Struct, forbid_unknown_fields=True, frozen=True):
    what: Name
    shares: tuple[NotNegative, ...] = ()
    of: Name | None = None
    bytes: Positive | None = None
    seconds: Positive | None = None


class Stated(Struct):
    """pipeline_total_ms: the pipeline's total, if the source states more than the sum of its rows."""

    source: str = ""
    pipeline_total_ms: Positive | None = None
    stated: tuple[StatedEntry, ...] = ()

    @property
    def total_ns(self) -> float | None:
        return None if self.pipeline_total_ms is None else self.pipeline_total_ms * 1e6


def stated_beside(path: Path) -> Stated:
    """The figures in the TOML file beside a published table; empty without a file. DerbyError: a field is wrong."""
    beside = path.with_suffix(".toml")
    return Stated() if beside == path or not beside.is_file() else read_toml(beside, Stated)
