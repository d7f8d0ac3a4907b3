"""Is the machine broken, or the solution? A worker's own report does not decide. The driver's counters, its list of
critical errors (Xid), and a fresh process without any solution do.

Xids: docs.nvidia.com/deploy/xid-errors. A solution can cause 13, 31, 43 and 45; the Xids below come from the hardware.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.probe import Machine, find_machine

_HARDWARE_XIDS = {
    **{48: "double-bit ECC error", 61: "internal micro-controller", 62: "internal micro-controller"},
    **{63: "row remapping", 64: "row remapping failed", 74: "NVLink error", 79: "the GPU has fallen off the bus"},
    **{92: "high rate of single-bit ECC errors", 94: "contained ECC error", 95: "uncontained ECC error"},
    **{110: "security fault", 119: "GSP timeout", 120: "GSP error", 140: "unrecovered ECC error", 143: "GPU reset"},
}
_CLAIMS = re.compile(
    r"\bECC\b|GPU is lost|fallen off the bus|no CUDA-capable device|driver shutting down|hardware stack error"
    r"|devices? (?:is|are) busy or unavailable|system (?:not yet|not) initialized|driver initialization|NVLink"
    r"|initialization error|unknown error|CUDA driver version is insufficient|forward compatibility",
    re.IGNORECASE,
)


class MachineFailed(DerbyError):
    """The machine is broken. This says nothing about a solution, so the solution in turn gets no row."""


class Health:
    """The health of the GPU since the creation of this object. sensors: None without a GPU."""

    def __init__(self, root: Path, machine: Machine, sensors: GpuSensors | None) -> None:
        self._root, self._machine, self._sensors = root, machine, sensors
        if sensors:
            sensors.watch_errors()
        self._uncorrected = sensors.uncorrected_errors() if sensors else None

    def expect_sound(self, said: str) -> None:
        """Call it after a solution's process has failed, with its message. MachineFailed if the machine is the
        cause."""
        if reason := self._from_the_driver() or (self._without_solution() if _CLAIMS.search(said) else None):
            raise MachineFailed(
                f"machine_failed: {self._machine.name}: {reason}; nothing was recorded for the solution in turn. "
                "Look at `dmesg` and `nvidia-smi -q`; once the machine is mended, the same command continues"
            )

    def judge_failed(self, error: BaseException) -> DerbyError:
        """The exception to raise if the judge's own work on the GPU ends in a CUDA error."""
        said = " ".join(str(error).split())[:200]
        try:
            self.expect_sound(said)
        except MachineFailed as failed:
            return failed
        return MachineFailed(
            f"machine_failed: {self._machine.name}: the judge lost its GPU context ({said}); nothing was recorded for "
            "this workload; the same command continues"
        )

    def _from_the_driver(self) -> str | None:
        if self._sensors is None:
            return None
        if lost := self._sensors.lost():
            return lost
        for xid in self._sensors.critical_errors():
            if xid in _HARDWARE_XIDS:
                return f"Xid {xid}, {_HARDWARE_XIDS[xid]}"
        now = self._sensors.uncorrected_errors()
        if now is not None and self._uncorrected is not None and now > self._uncorrected:
            return f"{now - self._uncorrected} uncorrectable ECC errors since the run began"
        return None

    def _without_solution(self) -> str | None:
        """Whether a process without a solution can use the GPU."""
        if self._machine.device != "cuda":
            return None
        seen: Any = find_machine(self._root, "cuda")
        return None if seen.gpu is not None else f"a process without any solution cannot use it ({seen.gpu_missing})"
