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


class _Stating(Struct, forbid_unknown_fields=True):
    what: Name
    shares: tuple[NotNegative, ...] = ()
    of: Name | None = None
    bytes: Positive | None = None
    seconds: Positive | None = None


class Stated(Struct):
    """pipeline_total_ms: the pipeline's total, if the source states more than the sum of its rows."""

    source: str = ""
    pipeline_total_ms: Positive | None = None
    stated: tuple[_Stating, ...] = ()

    @property
    def total_ns(self) -> float | None:
        return None if self.pipeline_total_ms is None else self.pipeline_total_ms * 1e6

    def lines(self, invocations: int | None) -> list[str]:
        """One line per entry, with derived figures."""
        return [f"stated by the source: {_line(entry, invocations)}" for entry in self.stated]


def stated_beside(path: Path) -> Stated:
    """The figures in the TOML file beside a published table; empty without a file. DerbyError: a field is wrong."""
    beside = path.with_suffix(".toml")
    return Stated() if beside == path or not beside.is_file() else read_toml(beside, Stated)


def _line(entry: _Stating, invocations: int | None) -> str:
    parts = []
    if entry.bytes is not None:
        moved = f"{entry.bytes / 1e12:.3g} TB"
        if entry.seconds is not None:
            moved += f" in {entry.seconds:g} s ({entry.bytes / entry.seconds / 1e12:.3g} TB/s)"
        parts.append(moved)
        if invocations:
            parts.append(f"{entry.bytes / invocations / 1e9:.3g} GB an invocation")
    elif entry.seconds is not None:
        parts.append(f"{entry.seconds:g} s")
    if entry.shares:
        total = sum(entry.shares)
        terms = " + ".join(f"{share:g}" for share in entry.shares)
        text = f"{terms} = {total:.4g} %" if len(entry.shares) > 1 else f"{total:g} %"
        parts.append(f"{text} of the {entry.of}" if entry.of else text)
        if entry.seconds is not None and entry.bytes is None and total:
            parts.append(f"which is {entry.seconds / total * 100:.3g} s in all")
    return f"{entry.what}: {', '.join(parts)}"
