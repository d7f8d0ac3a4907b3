"""The recorder without a GPU, with made-up records of CUPTI and results worked out by hand."""

from __future__ import annotations

import enum
import os
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from kernelderby.measure.record import profiler  # noqa: E402

NAMES = {1: "cudaLaunchKernel_v7000", 2: "cudaGetDevice_v3020", 3: "cuDeviceGetAttribute", 4: "cuLaunchKernelEx"}
THREAD = threading.get_native_id()


class FakeCupti(ModuleType):
    """Gives the records that a test puts into `pending` when flushed. Its clock ticks 100 ns a look."""

    class ActivityKind(enum.IntEnum):
        MEMCPY, MEMSET, DRIVER, RUNTIME, CONCURRENT_KERNEL, MARKER = 1, 2, 4, 5, 10, 12
        MEMCPY2, SYNCHRONIZATION = 22, 38

    class CallbackDomain(enum.IntEnum):
        DRIVER_API, RUNTIME_API = 1, 2

    ActivityThreadIdType = SimpleNamespace(SYSTEM=1)

    class cuptiError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.clock, self.enabled, self.pending, self.refuses = 10_000, set(), [], False

    def set_thread_id_type(self, kind):
        assert kind == 1

    def activity_register_callbacks(self, requested, completed):
        self.completed = completed
        assert requested()[0] >= 1 << 20

    def activity_enable(self, kind):
        if self.refuses:
            raise self.cuptiError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_flush_all(self, flag):
        self.completed([one for one in self.pending if one.kind in self.enabled])

    def get_timestamp(self):
        self.clock += 100
        return self.clock

    def get_callback_name(self, domain, number):
        return NAMES[number]


@pytest.fixture
def cupti(monkeypatch):
    fake, package = FakeCupti(), ModuleType("cupti")
    package.cupti = fake
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: None)
    monkeypatch.setitem(os.environ, "NVTX_INJECTION64_PATH", "kept")
    return fake


def kernel(start, end, correlation):
    return SimpleNamespace(
        kind=10,
        name="k",
        start=start,
        end=end,
        device_id=0,
        context_id=1,
        stream_id=7,
        correlation_id=correlation,
        grid_x=1,
        grid_y=1,
        grid_z=1,
        block_x=32,
        block_y=1,
        block_z=1,
        registers_per_thread=8,
        static_shared_memory=0,
        dynamic_shared_memory=0,
        shared_memory_executed=0,
        local_memory_per_thread=0,
        local_memory_total_v2=0,
        grid_id=1,
        graph_node_id=0,
        launch_type=0,
    )


def call(number, start, correlation, kind=5):
    return SimpleNamespace(
        kind=kind,
        cbid=number,
        start=start,
        end=start + 10,
        thread_id=THREAD,
        correlation_id=correlation,
        return_value=0,
    )


def marker(flags, number, stamp, name="", thread=THREAD):
    return SimpleNamespace(
        kind=12,
        flags_=flags,
        id=number,
        timestamp=stamp,
        name=name,
        domain="",
        object_id=SimpleNamespace(pt=SimpleNamespace(thread_id=thread)),
    )


def recorded(cupti, *records):
    cupti.pending = list(records)
    recorder = profiler.Recorder()
    with recorder.record({"name": "GPU"}) as recording:
        with recorder.range("invocation 0"):
            pass
    assert cupti.enabled == set()
    return recording


def test_host_queries_are_left_out_unless_they_launched_something(cupti):
    recording = recorded(
        cupti,
        kernel(10_500, 10_600, 5),
        call(1, 10_400, 5),
        call(2, 10_410, 6),
        call(3, 10_420, 7, 4),
        call(4, 10_430, 8, 4),
    )
    assert [(one.name, one.driver, one.correlation) for one in recording.calls] == [
        ("cudaLaunchKernel_v7000", False, 5),
        ("cuLaunchKernelEx", True, 8),
    ]
    assert recording.threads.keys() == {THREAD}


def test_records_without_timestamps_are_counted_and_older_ones_dropped(cupti):
    recording = recorded(
        cupti, kernel(10_900, 10_950, 1), kernel(0, 0, 2), kernel(10_500, 10_600, 3), kernel(-2_000_000, -1_000_000, 4)
    )
    assert [one.correlation for one in recording.kernels] == [3, 1]
    assert "left out: 1 record without timestamps" in recording.warnings


def test_markers_pair_by_id_across_threads_and_capture_ends(cupti):
    recording = recorded(
        cupti,
        marker(4, 9, 10_150),
        marker(2, 1, 10_200, "outer"),
        marker(2, 2, 10_210, "inner"),
        marker(4, 2, 10_300),
        marker(4, 1, 10_400),
        marker(1, 3, 10_450, "mark"),
        marker(2, 4, 10_460, "handed over"),
        marker(4, 4, 10_470, thread=1),
        marker(2, 5, 10_480, "never ends"),
    )
    assert [(one.name, one.start, one.end, one.end_thread) for one in recording.ranges] == [
        ("outer", 10_200, 10_400, None),
        ("inner", 10_210, 10_300, None),
        ("mark", 10_450, None, None),
        ("handed over", 10_460, 10_470, 1),
        ("never ends", 10_480, recording.end_ns, None),
    ]
    assert recording.warnings == []


def test_without_nvtx_the_passs_own_ranges_stand_in_and_the_file_says_so(cupti):
    recording = recorded(cupti, kernel(10_500, 10_600, 5))
    assert [(one.name, one.end - one.start) for one in recording.ranges] == [("invocation 0", 100)]
    assert "CUPTI saw no NVTX" in recording.warnings[0]


def test_a_refusal_is_one_line_that_says_the_mend(cupti):
    cupti.refuses = True
    with pytest.raises(profiler.RecordingFailed, match="INSUFFICIENT_PRIVILEGES.*NVreg") as error:
        recorded(cupti)
    assert "\n" not in str(error.value)


def test_a_tools_own_injection_library_is_left_alone(cupti):
    profiler.Recorder()
    assert os.environ["NVTX_INJECTION64_PATH"] == "kept"


def test_record_function_blocks_are_ranges_and_the_class_is_put_back(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("pop"))
    original = torch.autograd.profiler.record_function.__enter__
    with profiler.record_function_as_nvtx(), torch.profiler.record_function("stage one"):
        seen.append("work")
    with torch.profiler.record_function("unseen"):
        pass
    assert seen == ["stage one", "work", "pop"]
    assert torch.autograd.profiler.record_function.__enter__ is original
