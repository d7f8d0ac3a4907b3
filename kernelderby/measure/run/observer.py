"""What a run tells while it works."""

from __future__ import annotations

from kernelderby.rows.measurement import Measurement


class Observer:
    """The command overrides it."""

    def step(self, what: str) -> None:
        """Something is done, on the way to the next row."""

    def row(self, row: Measurement) -> None:
        """A row was written: one of Plan.pairs."""

    def note(self, line: str) -> None:
        """Something worth a line."""
