"""The machine that solutions would run on, as a worker process sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelderby.appended import exclusive_lock
from kernelderby.hardware import gpu_id
from kernelderby.measure.process import WorkerProcess

_START_SECONDS = 180  # importing torch from a cold disk


@dataclass(frozen=True, slots=True)
class Machine:
    """device: "cuda" or "cpu". gpu: name, uuid, compute_capability, memory_bytes, l2_bytes; None without one, and then
    gpu_missing says why, and gpu_fails whether there is one that CUDA cannot use.
    protocol_note: why the protocol is only a fallback, else empty."""

    device: str
    gpu: dict[str, Any] | None = None
    gpu_missing: str = ""
    gpu_fails: bool = False
    libs: dict[str, str] = field(default_factory=dict)
    protocol: str = ""
    protocol_note: str = ""
    flush_bytes: int = 0
    python: str = ""

    @property
    def name(self) -> str:
        return self.gpu["name"] if self.gpu else "CPU"

    @property
    def id(self) -> str:
        """The folder under traces/."""
        return gpu_id(self.name)


def find_machine(root: Path, device: str) -> Machine:
    """Asks a worker, so that this process needs neither torch nor a GPU context. A torch that does not load is a
    machine without a GPU."""
    worker = WorkerProcess(root, device)
    try:
        reply = worker.ask("describe", _START_SECONDS)
    finally:
        worker.kill()
    if not reply.pop("ok"):
        return Machine(device, gpu_missing=f"torch does not run here: {reply['message']}")
    return Machine(device, **reply)


@contextmanager
def exclusive(machine: Machine, root: Path) -> Iterator[None]:
    """Two runs on one GPU would spoil each other's times. DerbyError when another one holds it."""
    what = machine.gpu["uuid"] if machine.gpu else str(root.resolve())
    held = f"another `derby bench`, `tune` or `profile run` works on this {machine.name}; wait for its end"
    with exclusive_lock(hashlib.sha256(what.encode()).hexdigest()[:16], held):
        yield
