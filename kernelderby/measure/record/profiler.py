"""Records what this process does on the GPU, from CUPTI activity records: kernels, copies, memsets, API calls,
synchronisation and NVTX ranges, tied together by correlation ids.

CUPTI gets NVTX ranges if libcupti is the NVTX injection library, which NVTX looks up in the environment at a library's
first NVTX call. So create the Recorder before anything in the process uses NVTX.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from kernelderby.errors import DerbyError
from kernelderby.measure.clock.timing import SLACK_NS
from kernelderby.measure.record.records import (
    CallRecord,
    CopyRecord,
    FillRecord,
    KernelRecord,
    ProcessRecording,
    RangeRecord,
    WaitRecord,
)
from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.store.counts import counted

_BUFFER_BYTES = 8 << 20
_INJECTION = "NVTX_INJECTION64_PATH"
_NO_ID = (1 << 32) - 1
_MARK, _START, _END = 1, 2, 4  # CUpti_ActivityFlag of markers
# Queries of host state, hundreds in a call of torch. nsys leaves such functions out by default too
# (--cuda-trace-all-apis); calls that launched GPU work stay in any case.
_QUIET = (
    "cudaGetDevice", "cudaSetDevice", "cudaGetLastError", "cudaPeekAtLastError", "cudaDeviceGetAttribute",
    "cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaThreadExchangeStreamCaptureMode",
    "cudaFuncGetAttributes", "cudaFuncSetAttribute", "cudaOccupancyMax", "cudaGetDriverEntryPoint",
    "cudaPointerGetAttributes", "cudaStreamGetPriority", "cudaEventQuery", "cudaGetFuncBySymbol", "cuCtxGet",
    "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuDeviceGet", "cuDevicePrimaryCtxGet",
    "cuFuncGetAttribute", "cuFuncSetAttribute", "cuGetProcAddress", "cuOccupancyMax", "cuPointerGetAttribute",
    "cuTensorMapEncode", "cuStreamGetCtx", "cuStreamIsCapturing", "cuStreamGetCaptureInfo", "cuKernelGet",
    "cuLibraryGet", "cuModuleGet", "cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion",
)  # fmt: skip


class RecordingFailed(DerbyError):
    """CUPTI cannot record here; the message has the reason and the mend."""


class Recorder:
    """Only one at a time in a process, and no CuptiTimer beside it, because CUPTI has one owner."""

    def __init__(self) -> None:
        self._cupti = cupti = _import_cupti()
        kinds = cupti.ActivityKind
        self._take: dict[int, Callable[[Any], None]] = {
            kinds.CONCURRENT_KERNEL: self._kernel,
            kinds.MEMCPY: self._copy,
            kinds.MEMCPY2: self._copy,
            kinds.MEMSET: self._fill,
            kinds.RUNTIME: self._call,
            kinds.DRIVER: self._call,
            kinds.SYNCHRONIZATION: self._wait,
            kinds.MARKER: self._marker,
        }
        self._running: ProcessRecording | None = None
        self._own_ranges: list[RangeRecord] = []
        self._open: dict[int, RangeRecord] = {}
        try:
            cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
            cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._completed)
        except cupti.cuptiError as error:
            raise _refused(error) from error
        _inject_nvtx()

    @contextmanager
    def record(self, gpu: GpuSeen) -> Iterator[ProcessRecording]:
        """Gives the recording, which is complete after the end of the context."""
        torch.cuda.synchronize()
        self._own_ranges.clear()
        self._open.clear()
        recording = self._running = ProcessRecording(os.getpid(), Path(sys.executable).name, self._now(), 0, gpu)
        try:
            for kind in self._take:
                self._cupti.activity_enable(kind)
        except self._cupti.cuptiError as error:
            raise _refused(error) from error
        try:
            yield recording
        finally:
            torch.cuda.synchronize()
            recording.end_ns = self._now()
            try:
                self._cupti.activity_flush_all(0)
            finally:
                for kind in self._take:
                    self._cupti.activity_disable(kind)
                self._running = None
        self._finish(recording)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """An NVTX range, also noted here in case CUPTI sees no NVTX."""
        start = self._now()
        with nvtx_range(name):
            yield
        self._own_ranges.append(RangeRecord(name, start, self._now(), threading.get_native_id()))

    @property
    def _recording(self) -> ProcessRecording:
        if self._running is None:
            raise RuntimeError("nothing is being recorded")
        return self._running

    def _now(self) -> int:
        return int(self._cupti.get_timestamp())

    def _finish(self, recording: ProcessRecording) -> None:
        """Orders by time, adds our own ranges if NVTX gave none, and adds warnings for the reader."""
        if self._own_ranges and not any(one.end for one in recording.ranges):
            recording.ranges.extend(self._own_ranges)
            recording.warnings.append("CUPTI saw no NVTX: only the pass's own ranges are here, none of the solution's")
        recording.ranges.extend(replace(one, end=recording.end_ns) for one in self._open.values())
        recording.start_ns = min([recording.start_ns, *(one.start for one in recording.calls)])
        work: tuple[list[Any], ...] = recording.kernels, recording.copies, recording.fills
        for records in work:
            _put_in_order(records, recording)
        launched = {one.correlation for one in chain(*work)}
        recording.calls[:] = sorted(
            (one for one in recording.calls if one.correlation in launched or not one.name.startswith(_QUIET)),
            key=lambda one: one.start,
        )
        recording.waits.sort(key=lambda one: one.start)
        recording.ranges.sort(key=lambda one: (one.start, -(one.end or one.start)))
        for thread in {one.thread for one in recording.calls} | {one.thread for one in recording.ranges}:
            recording.threads[thread] = _thread_name(thread)

    # ---------------------------------------------------------------------------- CUPTI's records, whose memory is its

    def _completed(self, activities: list[Any]) -> None:
        for activity in activities:
            take = self._take.get(activity.kind)
            if take is not None and self._running is not None:
                take(activity)

    def _kernel(self, one: Any) -> None:
        self._recording.kernels.append(
            KernelRecord(
                *_where(one),
                one.name,
                (one.grid_x, one.grid_y, one.grid_z),
                (one.block_x, one.block_y, one.block_z),
                one.registers_per_thread,
                (one.static_shared_memory, one.dynamic_shared_memory, one.shared_memory_executed),
                (one.local_memory_per_thread, one.local_memory_total_v2),
                one.grid_id,
                one.graph_node_id,
                one.launch_type,
            )
        )

    def _copy(self, one: Any) -> None:
        count, peers = 1, None
        if one.kind == self._cupti.ActivityKind.MEMCPY:
            count = one.copy_count
        else:  # MEMCPY2, between GPUs
            peers = one.src_device_id, one.src_context_id, one.dst_device_id, one.dst_context_id
        kinds = one.copy_kind, one.src_kind, one.dst_kind
        self._recording.copies.append(CopyRecord(*_where(one), one.bytes, *kinds, one.graph_node_id, count, peers))

    def _fill(self, one: Any) -> None:
        self._recording.fills.append(FillRecord(*_where(one), one.bytes, one.value, one.memory_kind, one.graph_node_id))

    def _call(self, one: Any) -> None:
        driver = one.kind == self._cupti.ActivityKind.DRIVER
        domains = self._cupti.CallbackDomain
        name = self._cupti.get_callback_name(domains.DRIVER_API if driver else domains.RUNTIME_API, one.cbid)
        self._recording.calls.append(
            CallRecord(name, one.start, one.end, one.thread_id, one.correlation_id, driver, one.return_value)
        )

    def _wait(self, one: Any) -> None:
        self._recording.waits.append(
            WaitRecord(
                one.start,
                one.end,
                one.context_id,
                one.correlation_id,
                one.type,
                None if one.stream_id == _NO_ID else one.stream_id,
                None if one.cuda_event_id == _NO_ID else one.cuda_event_id,
            )
        )

    def _marker(self, one: Any) -> None:
        thread, ranges = one.object_id.pt.thread_id, self._recording.ranges
        if one.flags_ & _START:
            self._open[one.id] = RangeRecord(one.name, one.timestamp, None, thread, domain=one.domain or "")
        elif one.flags_ & _END:
            begun = self._open.pop(one.id, None)
            if begun is not None:  # otherwise it began before the capture
                end_thread = None if thread == begun.thread else thread
                ranges.append(replace(begun, end=one.timestamp, end_thread=end_thread))
        elif one.flags_ & _MARK:
            ranges.append(RangeRecord(one.name, one.timestamp, None, thread, domain=one.domain or ""))


def _put_in_order(records: list[Any], recording: ProcessRecording) -> None:
    """Sorts by time. Removes records without times, with a warning, and records from before the capture that a buffer
    still held."""
    dated = [one for one in records if one.start and one.end]
    if len(dated) < len(records):
        recording.warnings.append(f"left out: {counted(len(records) - len(dated), 'record')} without timestamps")
    begun = (one for one in dated if one.start >= recording.start_ns - SLACK_NS)
    records[:] = sorted(begun, key=lambda one: (one.start, one.end))


def _where(one: Any) -> tuple[int, int, int, int, int, int]:
    """The shared fields of a WorkRecord."""
    return one.start, one.end, one.device_id, one.context_id, one.stream_id, one.correlation_id


def _refused(error: Exception) -> RecordingFailed:
    return RecordingFailed(
        f"CUPTI does not record here ({error}); end other profilers, and allow profiling to all "
        "users of the driver (NVreg_RestrictProfilingToAdminUsers=0)"
    )


def _import_cupti() -> Any:
    try:
        from cupti import cupti
    except ImportError as error:
        raise RecordingFailed(f"cupti-python is missing ({error}); pip install cupti-python") from error
    try:
        if int(version("cupti-python").split(".")[0]) < 13:
            raise RecordingFailed("cupti-python is older than 13; pip install -U cupti-python")
    except PackageNotFoundError:
        pass  # unpacked without its metadata: nothing to judge by
    return cupti


def _inject_nvtx() -> None:
    """Makes this process's loaded libcupti its NVTX injection library, unless a tool has set one."""
    if _INJECTION in os.environ:
        return
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcupti.so" in line:
            os.environ[_INJECTION] = line.split(maxsplit=5)[5]
            return


def _thread_name(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:  # it has ended
        return f"thread {thread}"


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@contextmanager
def record_function_as_nvtx() -> Iterator[None]:
    """In this context a solution's torch.profiler.record_function blocks are NVTX ranges too. torch's emit_nvtx would
    add a range for each ATen operation.
    """
    owner: Any = torch.autograd.profiler.record_function  # replaces its methods, which types do not allow
    enter, leave = owner.__enter__, owner.__exit__

    def __enter__(self: torch.autograd.profiler.record_function) -> Any:
        torch.cuda.nvtx.range_push(self.name)  # type: ignore[no-untyped-call]
        return enter(self)

    def __exit__(self: torch.autograd.profiler.record_function, *problem: object) -> Any:
        try:
            return leave(self, *problem)
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    owner.__enter__, owner.__exit__ = __enter__, __exit__
    try:
        yield
    finally:
        owner.__enter__, owner.__exit__ = enter, leave
