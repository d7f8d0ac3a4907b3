"""Registers, shared memory and occupancy of a solution's kernels, compiled ahead for Hopper on a machine without a GPU.

Triton: the kernels that a workload launches, with grid, threads and all shared memory (recorded by launches.py). CUDA:
every kernel of the library, with registers, static shared memory and launch bounds; the host code decides the rest at
the launch.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.measure.certify.build import cubins_of
from kernelderby.measure.certify.cubin import resources_of
from kernelderby.measure.certify.launches import LaunchRecorder, compiled_kernel, launches_of
from kernelderby.measure.judge.fenced import fenced
from kernelderby.measure.wire.replies import KernelsSeen
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.store.counts import counted
from kernelderby.store.demangle import demangled, function_name
from kernelderby.store.files import write_whole

_Demands = tuple[KernelDemand, ...]

_SECONDS = 300.0  # nvcc takes up to a minute
_WARP = 32
_RESERVED = 1024  # of a block's shared memory, used by the system: for sm_90 nvcc counts it as the kernel's


class _ResourceRecorder(LaunchRecorder):
    def __init__(self, gpu: str) -> None:
        super().__init__(gpu, exact=True)
        self.kernels: list[KernelDemand] = []
        self._known: dict[str, tuple[int, int, int]] = {}

    def _made(self, function: Any, signature: Any, constants: Any, options: Any, attrs: Any, caches: Any) -> str:
        made = compiled_kernel(function, signature, constants, options, attrs, caches)
        [found] = resources_of(made.asm["cubin"]).values()
        key = str(len(self._known))
        self._known[key] = found.registers, made.metadata.shared, made.metadata.num_warps * _WARP
        return key

    def _note(self, kernel: str, digest: str, grid: tuple[int, int, int], bound: list[str]) -> None:
        super()._note(kernel, digest, grid, bound)
        registers, shared, threads = self._known[digest]
        self.kernels.append(KernelDemand(kernel, registers, shared, True, threads, grid))


def demands_of(catalog: Catalog, solution: Solution, workload: Workload, gpu: str) -> tuple[_Demands, str]:
    """The kernels, and one line about unknown facts. gpu: the GPU whose tuned table a solution uses. A worker behind
    the fences runs the solution's code. DerbyError if that code ends the worker. The kernels of a library are cached,
    since a build takes up to a minute."""
    kept = cache_folder() / "resources" / f"{solution.name}-{solution.text_hash}.json"
    if solution.has_cuda and kept.is_file():
        with suppress(msgspec.DecodeError):  # of another version
            return msgspec.json.decode(kept.read_bytes(), type=_Demands), ""
    with fenced(catalog, solution) as ask:
        found = ask(KernelsSeen, seen_here, _SECONDS, workload=workload.uuid, gpu=gpu)
    if solution.has_cuda:
        write_whole(kept, msgspec.json.encode(found.kernels))
    return found.kernels, found.missing


def seen_here(root: Path, definition: str, solution: str, workload: str, gpu: str) -> KernelsSeen:
    """demands_of() in this process, which is a worker. workload: a uuid."""
    catalog = Catalog.open(root)
    [chosen] = (each for each in catalog.workloads(definition) if each.uuid == workload)
    described, runs = catalog.definition(definition), catalog.solution(solution)
    if runs.has_cuda:
        return KernelsSeen(_of_library(described, runs), "")
    recorder = _ResourceRecorder(gpu)
    told = launches_of(described, runs, (chosen,), gpu, recorder=recorder)[workload]
    if isinstance(told, str):
        return KernelsSeen((), told)
    launched = tuple(recorder.kernels[len(recorder.kernels) // 2 :])  # the second of two equal calls
    others = counted(beside, "launch", "launches") if (beside := len(told) - len(launched)) else ""
    return KernelsSeen(launched, f"{others} by torch or a library beside them" if others else "")


def _of_library(definition: Definition, solution: Solution) -> _Demands:
    kernels = {name: each for cubin in cubins_of(definition, solution) for name, each in resources_of(cubin).items()}
    return tuple(
        KernelDemand(
            function_name(demangled(name)), each.registers, max(0, each.shared_bytes - _RESERVED), False, each.threads
        )
        for name, each in sorted(kernels.items())
    )
