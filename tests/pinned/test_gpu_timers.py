"""The GPU timers on a simulated GPU: one clock that the host and the device share, a stream that runs what it is
given in order, events on it. No GPU is needed; what is real is timing.py."""

import pytest

torch = pytest.importorskip("torch")
from kernelderby.measure.clock import timing  # noqa: E402
from kernelderby.measure.clock.timing import CuptiTimer, EventTimer, WallTimer, covered, spans_of_records  # noqa: E402


class Gpu:
    """now: the host's clock in ns; free: when the stream has run what it was given. log: what happened, in order."""

    def __init__(self):
        self.now, self.free, self.log, self.records = 1_000_000, 0, [], []

    def clock(self):
        return self.now

    def launch(self, name, ns, host_ns=1_000):
        self.now += host_ns
        start = max(self.now, self.free)
        self.free = start + ns
        self.log.append(name)
        self.records.append((start, self.free))

    def synchronize(self, device=None):
        self.log.append("synchronize")
        self.now = max(self.now, self.free)

    def spin(self):
        self.now += 1_000
        return self.now


class Event:
    gpu = None

    def __init__(self, enable_timing):
        assert enable_timing is True

    def record(self):
        self.at = max(Event.gpu.now, Event.gpu.free)
        Event.gpu.log.append("event")

    def elapsed_time(self, other):
        return (other.at - self.at) / 1e6


@pytest.fixture
def gpu(monkeypatch):
    made = Event.gpu = Gpu()
    flush = type("Flush", (), {"zero_": lambda self: made.launch("flush", 60_000)})()
    monkeypatch.setattr(timing.torch, "empty", lambda *_, **__: flush)
    monkeypatch.setattr(timing, "flush_bytes", lambda device: 1 << 28)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    monkeypatch.setattr(timing.time, "perf_counter_ns", made.spin)
    return made


def test_events_hold_the_call_and_not_the_flush(gpu):
    """Each look at the clock takes 1 us: the call is enqueued 1 us after it began, launches take 1 us each."""
    spans = EventTimer(torch.device("cpu")).spans(lambda i: gpu.launch(f"call {i}", 5_000 * (i + 1)), 3)
    assert spans.spans_us == pytest.approx([7.0, 12.0, 17.0]), "1 us to the clock, 1 us to the launch, then the kernel"
    assert spans.host_us == pytest.approx([2.0] * 3) and spans.wall_us == pytest.approx([7.0 + 1.0, 13.0, 18.0], abs=1)
    assert spans.busy_us == spans.outside == []
    one = ["flush", "synchronize", "event", "call 0", "event", "synchronize"]
    assert gpu.log[:6] == one and len(gpu.log) == 18


def test_before_and_after_lie_outside_of_the_window(gpu):
    seen = []

    def before(i):
        seen.append(gpu.now)
        gpu.launch("before", 9_000)

    def after(i):
        gpu.log.append("after")
        seen.append(gpu.now)

    spans = EventTimer(torch.device("cpu")).spans(lambda i: gpu.launch("call", 5_000), 2, before, after)
    assert spans.spans_us == pytest.approx([7.0, 7.0])
    assert gpu.log == ["before", "flush", "synchronize", "event", "call", "event", "synchronize", "after"] * 2
    assert seen[1] - seen[0] > 40_000, "the clocks' error has passed before anything else is launched"


class Cupti:
    """Records of the simulated GPU; its timestamps are the GPU's clock."""

    def __init__(self, gpu):
        self.gpu, self.enabled = gpu, []

    def activity_enable(self, kind):
        self.enabled.append(kind)

    def activity_disable(self, kind):
        self.enabled.remove(kind)

    def get_timestamp(self):
        return self.gpu.now

    def activity_flush_all(self, flag):
        assert flag == 0 and sorted(self.enabled) == [1, 2, 3]


def cupti_timer(gpu):
    timer = CuptiTimer.__new__(CuptiTimer)
    timing._GpuTimer.__init__(timer, torch.device("cpu"))
    timer._cupti, timer._kinds, timer._records = Cupti(gpu), (1, 2, 3), gpu.records
    return timer


def test_cupti_spans_busy_and_what_lies_outside(gpu):
    def call(i):
        gpu.launch("one", 4_000)
        gpu.launch("two", 2_000, host_ns=10_000)  # 6 us after the first has ended

    timer = cupti_timer(gpu)
    spans = timer.spans(call, 3, after=lambda i: gpu.launch("copy", 1_000) if i == 1 else None)
    assert spans.spans_us == pytest.approx([12.0] * 3) and spans.busy_us == pytest.approx([6.0] * 3)
    # The copy is within the clocks' error of the flush that follows it.
    assert spans.outside == [0, 0, 1] and spans.notes == [] and timer._cupti.enabled == []
    assert spans.host_us == pytest.approx([12.0] * 3)


def test_a_window_ends_where_it_ends():
    """Records that start before it, or after it, belong to others; one may end a little later than it."""
    window, slack = [(1_000_000, 1_010_000)], 20_000
    for start, end, is_in in (
        (979_999, 1_005_000, False),
        (980_000, 1_005_000, True),
        (1_010_000, 1_012_000, True),
        (1_010_001, 1_012_000, False),
        (1_009_000, 1_030_000, True),
        (1_009_000, 1_030_001, False),
    ):
        found = spans_of_records([(1_001_000, 1_002_000), (start, end)], window, slack)
        assert (found.spans_us != [1.0]) == is_in, (start, end)


def test_the_union_of_intervals_counts_what_overlaps_once():
    assert covered([(0, 10), (2, 5), (8, 12), (20, 21)]) == 13
    assert covered([(0, 10), (10, 20)]) == 20 and covered([(5, 6)]) == 1


def test_the_median_of_a_replay_is_no_mean(gpu, monkeypatch):
    timer = EventTimer(torch.device("cpu"))
    lengths = iter([1_000, 3_000, 3_000, 90_000])  # the first replay is outside
    monkeypatch.setattr(timer, "capture", lambda call: call)
    assert timer.graph_us(lambda: gpu.launch("replay", next(lengths)), 3) == pytest.approx(5.0)


def test_the_hosts_clock_for_a_cpu(gpu):
    spans = WallTimer().spans(
        lambda i: gpu.launch("call", 0, host_ns=7_000), 2, lambda i: gpu.spin(), lambda i: gpu.spin()
    )
    assert spans.spans_us == [8.0, 8.0] == spans.host_us == spans.wall_us
