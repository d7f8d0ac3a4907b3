"""The machine on which solutions would run, as a worker process sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kernelderby.hardware import gpu_id
from kernelderby.measure.machine.environment import describe, without_gpu
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import Failed, GpuSeen, MachineSeen
from kernelderby.store.appended import exclusive_lock

_START_SECONDS = 180  # importing torch from a cold disk


@dataclass(frozen=True, slots=True)
class Machine:
    """device: "cuda" or "cpu". The other fields as the worker saw them (MachineSeen)."""

    device: str
    gpu: GpuSeen | None = None
    gpu_missing: str = ""
    gpu_fails: bool = False
    libs: dict[str, str] = field(default_factory=dict)
    protocol: str = ""
    protocol_note: str = ""
    flush_bytes: int = 0
    python: str = ""

    @property
    def name(self) -> str:
        return self.gpu.name if self.gpu else "CPU"

    @property
    def id(self) -> str:
        """The folder under traces/."""
        return gpu_id(self.name)


def find_machine(root: Path, device: str, glance: bool = True) -> Machine:
    """Asks a worker about a GPU, so that this process needs neither torch nor a GPU context. For a CPU this process
    looks itself, since it needs torch anyway to judge. If torch does not load, the machine has no GPU. glance: do not
    ask a worker if the machine obviously has no GPU."""
    if device == "cpu":
        return _this_cpu()
    if glance and (seen := without_gpu()):
        return Machine(device, **msgspec.structs.asdict(seen))
    worker = WorkerProcess(root, device)
    try:
        seen = worker.ask(MachineSeen, "describe", _START_SECONDS)
    except Failed as failed:
        return Machine(device, gpu_missing=f"torch does not run here: {shown(failed.message)}")
    finally:
        worker.kill()
    return Machine(device, **msgspec.structs.asdict(seen))


def _this_cpu() -> Machine:
    try:
        from kernelderby.measure.clock.timing import CPU_WALL

        seen = describe("cpu")
    except (ImportError, OSError) as error:  # OSError: a library of torch does not load
        return Machine("cpu", gpu_missing=f"torch does not run here: {error}")
    return Machine("cpu", **{**msgspec.structs.asdict(seen), "protocol": CPU_WALL})


@contextmanager
def exclusive(machine: Machine, root: Path) -> Iterator[None]:
    """Holds the GPU, since two runs on one GPU would spoil each other's times. DerbyError if another run holds it."""
    what = machine.gpu.uuid if machine.gpu else str(root.resolve())
    held = f"another `derby bench`, `tune` or `profile run` works on this {machine.name}; wait for its end"
    with exclusive_lock(hashlib.sha256(what.encode()).hexdigest()[:16], held):
        yield
