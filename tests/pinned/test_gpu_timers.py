"""The GPU timers on a simulated GPU: one clock for host and device, a stream that works in order, and events on it.
Only timing.py is real."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from kernelderby.measure.clock import timing  # noqa: E402
from kernelderby.measure.clock.timing import (  # noqa: E402
    CuptiTimer,
    EventTimer,
    TimingFailed,
    WallTimer,
    covered,
    outside_of_windows,
    spans_of_records,
)


class Gpu:
    """now: the host's clock in ns; free: when the stream has finished its work. log: the events in order."""

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
        self.now = self.end = max(self.now, self.free)

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

    def activity_register_callbacks(self, requested, completed):
        self.registered = requested, completed

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
    timer._cupti, timer._kinds, timer._records, timer._fills = Cupti(gpu), (1, 2, 3), gpu.records, []
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
    happened = []

    def noted(word):
        return lambda i: (happened.append((word, i)), gpu.spin())

    spans = WallTimer().spans(lambda i: gpu.launch("call", 0, host_ns=7_000), 2, noted("before"), noted("after"))
    assert spans.spans_us == [8.0, 8.0] == spans.host_us == spans.wall_us
    assert happened == [("before", 0), ("after", 0), ("before", 1), ("after", 1)]


# ------------------------------------------------------------------------------------------------ which timer, and why

CUDA = torch.device("cuda")


def test_every_protocol_has_its_timer(gpu, monkeypatch):
    monkeypatch.setattr(timing, "CuptiTimer", lambda device: ("cupti", device))
    assert timing.make_timer("cupti-graph-eager-2", CUDA) == ("cupti", CUDA)
    assert type(timing.make_timer("events-graph-eager-2", CUDA)) is EventTimer
    assert type(timing.make_timer("cpu-wall", torch.device("cpu"))) is WallTimer


@pytest.mark.parametrize(("cache", "flushed"), [(50 << 20, 256 << 20), (128 << 20, 256 << 20), (200 << 20, 400 << 20)])
def test_a_flush_is_two_caches_and_256_mib_at_least(monkeypatch, cache, flushed):
    found = type("Properties", (), {"L2_cache_size": cache})
    monkeypatch.setattr(timing.torch.cuda, "get_device_properties", lambda device: found)
    assert timing.flush_bytes(CUDA) == flushed


class Tried:
    """A CuptiTimer that fails where it is told to."""

    fails = ""

    def __init__(self, device):
        if Tried.fails == "made":
            raise RuntimeError("no permission")

    def spans(self, call, iterations):
        assert iterations == 2
        call(0)

    def graph_us(self, call, iterations):
        assert iterations == 2
        call()
        if Tried.fails == "graph":
            raise TimingFailed("no GPU activity")


@pytest.mark.parametrize(
    ("fails", "found"),
    [
        ("", ("cupti-graph-eager-2", "")),
        ("made", ("events-graph-eager-2", "no CUPTI: RuntimeError: no permission")),
        ("graph", ("events-graph-eager-2", "CUPTI records no kernels of a CUDA graph: no GPU activity")),
    ],
)
def test_the_protocol_that_works(monkeypatch, fails, found):
    """The tensors of the attempt lie on the CPU here."""
    monkeypatch.setattr(Tried, "fails", fails)
    monkeypatch.setattr(timing, "CuptiTimer", Tried)
    for name in ("ones", "empty"):
        make = getattr(torch, name)
        monkeypatch.setattr(timing.torch, name, lambda *sizes, device, make=make: make(*sizes))
    assert timing.find_protocol(CUDA) == found
    assert timing.find_protocol(torch.device("cpu")) == ("cpu-wall", "")


@pytest.mark.parametrize(
    ("installed", "is_fine"), [("12.9.1", False), ("13.0.0", True), ("14.1.12", True), (None, True)]
)
def test_versions_of_cupti(gpu, monkeypatch, installed, is_fine):
    def version(name):
        assert name == "cupti-python"
        if installed is None:
            raise timing.PackageNotFoundError
        return installed

    kinds = SimpleNamespace(CONCURRENT_KERNEL=1, MEMCPY=2, MEMSET=3)
    library = SimpleNamespace(ActivityKind=kinds, activity_register_callbacks=lambda *_: None)
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=library))
    monkeypatch.setattr(timing, "version", version)
    if is_fine:
        assert CuptiTimer(CUDA)._kinds == (1, 2, 3)
    else:
        with pytest.raises(TimingFailed, match="older than 13"):
            CuptiTimer(CUDA)


def test_a_capture_is_given_back(gpu, monkeypatch):
    monkeypatch.setattr(timing, "captured", lambda call, device, pool: (call, device, pool))
    assert EventTimer(CUDA).capture(len, "pool") == (len, CUDA, "pool")


# ------------------------------------------------------------------------------------- where exactly a window ends

US = 1_000
OPENED, CLOSED, SLACK = 1_000 * US, 1_010 * US, 20 * US
FLUSH = (900 * US, 980 * US)


def outside(*records, flush=FLUSH, size=16_000 * 80 * US, windows=((OPENED, CLOSED),), flushes=(890 * US,)):
    return outside_of_windows([flush, *records], windows, flushes, size, SLACK)


@pytest.mark.parametrize(
    ("record", "is_outside"),
    [
        ((OPENED - SLACK, CLOSED), False),
        ((OPENED - SLACK - 1, CLOSED), True),
        ((CLOSED, CLOSED + SLACK), False),
        ((CLOSED + 1, CLOSED + SLACK), True),
        ((CLOSED, CLOSED + SLACK + 1), True),
        ((1 << 50, (1 << 50) + 1), True),  # long after the last window
        ((870 * US, 871 * US), True),  # the slack before the begin of its flush
        ((870 * US - 1, 871 * US), False),
        ((0, 1_005 * US), False),  # without its begin, or its end
        ((1_005 * US, 0), False),
        ((CLOSED + 30 * US, 0), False),
    ],
)
def test_what_is_outside_to_the_nanosecond(record, is_outside):
    assert outside((OPENED, CLOSED), record) == [int(is_outside)]


def test_a_flush_of_fewer_bytes_or_later_is_none():
    """80 us at 16,000 bytes a nanosecond."""
    assert outside() == [0]
    assert outside(size=16_000 * 80 * US + 1) == [timing.NO_FLUSH] == [-1]
    assert outside(flush=(900 * US, OPENED + SLACK)) == [-1]
    assert outside(flush=(900 * US, OPENED + SLACK - 1)) == [0]


def test_every_record_belongs_to_one_flush():
    windows = ((OPENED, CLOSED), (OPENED + 1000 * US, CLOSED + 1000 * US))
    flushes = (890 * US, 1_890 * US)
    own = ((OPENED, CLOSED), (1_900 * US, 1_980 * US), (OPENED + 1000 * US, CLOSED + 1000 * US))
    for at, found in ((1_869 * US, [1, 0]), (1_870 * US, [0, 1])):
        assert outside(*own, (at, at + 1), windows=windows, flushes=flushes) == found


def test_stamps_and_flushes_that_do_not_match_are_an_error():
    with pytest.raises(ValueError):
        outside(flushes=(1, 2))
    assert timing.SLACK_NS == 20_000 and timing._SETTLE_NS == 40_000, "docs/protocol.md"


def test_an_odd_stamp_is_an_error(gpu, monkeypatch):
    timer = cupti_timer(gpu)
    monkeypatch.setattr(timer, "_windows", lambda call, iterations, before, after, opened, *_: opened())
    with pytest.raises(ValueError):
        timer.spans(lambda i: None, 1)


def test_records_with_one_time_are_left_out_and_told():
    found = spans_of_records([(OPENED, CLOSED), (0, CLOSED), (OPENED + 5 * US, 0)], [(OPENED, CLOSED)])
    assert found.spans_us == [10.0] and found.notes == ["left out: 2 records without timestamps"]


def test_what_comes_after_waits_for_the_clocks_to_settle(gpu):
    """Each look at the clock takes 1 us: there are 40, the last at 40 us."""
    began = []
    EventTimer(torch.device("cpu")).spans(lambda i: None, 1, None, lambda i: began.append(gpu.now))
    ended = len(gpu.log)
    assert ended and began[0] - gpu.end >= timing._SETTLE_NS and began[0] - gpu.end < timing._SETTLE_NS + 2_000


@pytest.mark.parametrize("timer", [EventTimer, WallTimer])
def test_nothing_before_and_nothing_after(gpu, timer):
    timer = timer(torch.device("cpu")) if timer is EventTimer else timer()
    assert len(timer.spans(lambda i: None, 2).spans_us) == 2


@pytest.mark.parametrize(
    "records, seen",
    [
        ([], "there are no records"),
        ([(OPENED - 90 * US, OPENED - 80 * US), (CLOSED + 40 * US, CLOSED + 41 * US)], "2 records begins 40 us away"),
        ([(OPENED, CLOSED + 900 * US)], "1 record begins 0 us away"),
    ],
)
def test_a_window_without_a_record_says_how_far_the_nearest_is(records, seen):
    with pytest.raises(TimingFailed, match=f"^iteration 0: no GPU activity .*{seen}"):
        spans_of_records(records, [(OPENED, CLOSED)])
