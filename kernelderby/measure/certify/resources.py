"""What a solution's kernels ask of a multiprocessor, compiled ahead for Hopper on a machine without a GPU.

Of Triton: the kernels that a workload launches, with grid, threads and all shared memory (launches.py records them). Of
CUDA: every kernel of the library, with registers, static shared memory and launch bounds; the host's code decides the
rest when it launches.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from kernelderby.catalog import Definition, Solution, Workload
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.measure.certify.build import cubins_of, has_library
from kernelderby.measure.certify.cubin import resources_of
from kernelderby.measure.certify.launches import LaunchRecorder, compiled_kernel, launches_of
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.store.demangle import demangled, function_name
from kernelderby.store.files import write_whole

_WARP = 32
_RESERVED = 1024  # of a block's shared memory, by the system: for sm_90 nvcc counts it as the kernel's


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


def kernel_demands(
    definition: Definition, solution: Solution, workload: Workload, gpu: str
) -> tuple[tuple[KernelDemand, ...], str]:
    """The kernels, and in one line what is not known of them. gpu: whose tuned table a solution takes. It runs the
    solution's code, in this process: for a process of its own."""
    if has_library(solution):
        return _of_library(definition, solution), ""
    os.environ.pop("TRITON_INTERPRET", None)
    recorder = _ResourceRecorder(gpu)
    told = launches_of(definition, solution, (workload,), gpu, recorder=recorder)[workload.uuid]
    if isinstance(told, str):
        return (), told
    first = len(recorder.kernels) // 2  # of two calls alike the second
    others = len(told) - (len(recorder.kernels) - first)
    return tuple(recorder.kernels[first:]), f"{others} launches by torch or a library beside them" if others else ""


def _of_library(definition: Definition, solution: Solution) -> tuple[KernelDemand, ...]:
    """From the cache where these sources were built before: a build takes up to a minute."""
    path = cache_folder() / "resources" / f"{solution.name}-{solution.text_hash}.json"
    if path.is_file():
        try:
            return msgspec.json.decode(path.read_bytes(), type=tuple[KernelDemand, ...])
        except msgspec.DecodeError:
            pass  # of another version
    kernels = {name: each for cubin in cubins_of(definition, solution) for name, each in resources_of(cubin).items()}
    found = tuple(
        KernelDemand(
            function_name(demangled(name)), each.registers, max(0, each.shared_bytes - _RESERVED), False, each.threads
        )
        for name, each in sorted(kernels.items())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(found).decode())
    return found
