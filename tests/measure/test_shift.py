"""Records whose clock is off the host's: found by the flushes, refused where no shift fits, and no gain for who forges
flushes, hides them or works beside them."""

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from kernelderby.measure.clock import timing
from kernelderby.measure.clock.shift import MOST_NS, shifts
from kernelderby.measure.clock.timing import (
    NO_FLUSH,
    SLACK_NS,
    CuptiTimer,
    TimingFailed,
    outside_of_windows,
    spans_of_records,
)

US = 1000
FLUSH_BYTES = 256 << 20
FLUSH_US, CALL_US = 65, 6


class Series:
    """What host and GPU see of some iterations, in ns on the host's clock; late_us: by how much more the GPU is late
    than the launch's usual 8 us."""

    def __init__(self, count=6, period_us=1500, call_us=CALL_US, late_us=lambda: 0, wakes_us=lambda: 9):
        self.flushes, self.windows, self.fills, self.calls = [], [], [], []
        now = 10**15
        for _ in range(count):
            self.flushes.append(now)
            start = now + int((8 + late_us()) * US)
            self.fills.append((start, start + FLUSH_US * US))
            opened = start + FLUSH_US * US + int(wakes_us() * US)
            start = opened + int((8 + late_us()) * US)
            self.calls.append((start, start + call_us * US))
            self.windows.append((opened, start + call_us * US + int(wakes_us() * US)))
            now += period_us * US

    def seen(self, off, *others, fills=None, calls=None):
        """(fills, records) on a clock that is off by off(time) ns. others: further records, on the host's clock."""
        fills = self.fills if fills is None else fills
        own = [*fills, *(self.calls if calls is None else calls), *others]
        records = [(start + int(off(start)), end + int(off(end))) for start, end in own]
        return records[: len(fills)], records

    def measured(self, off, *others, fills=None, calls=None, like_flushes=()):
        """(spans, outside) as CuptiTimer has them. like_flushes: others that look like a flush."""
        fills, records = self.seen(off, *like_flushes, *others, fills=fills, calls=calls)
        fills = [*fills, *records[len(records) - len(others) - len(like_flushes) :][: len(like_flushes)]]
        moved = shifts(fills, self.flushes, self.windows, records, SLACK_NS)
        windows = [(opened - by, closed - by) for (opened, closed), by in zip(self.windows, moved, strict=True)]
        flushes = [begun - by for begun, by in zip(self.flushes, moved, strict=True)]
        outside = outside_of_windows(records, windows, flushes, FLUSH_BYTES)
        return spans_of_records(records, windows).spans_us, outside

    def by_the_old_rule(self, off):
        return spans_of_records(self.seen(off)[1], self.windows).spans_us


def constant(us):
    return lambda at: us * US


SHIFTS = [constant(us) for us in (50, -50, 1000, -1000, 1900, -1900)]


@pytest.mark.parametrize("off", SHIFTS)
@pytest.mark.parametrize("period_us", [300, 1500, 40_000])
def test_a_shifted_clock_loses_no_time(off, period_us):
    series = Series(period_us=period_us)
    with pytest.raises(TimingFailed):
        series.by_the_old_rule(off)
    assert series.measured(off) == ([CALL_US] * 6, [0] * 6)


def test_a_clock_that_is_right_or_nearly_is_left_alone():
    series = Series(late_us=lambda: 2)
    for us in (0, 5, -5, 8, -8):
        fills, records = series.seen(constant(us))
        assert shifts(fills, series.flushes, series.windows, records, SLACK_NS) == [0] * 6
    fills, records = series.seen(constant(15))
    assert shifts(fills, series.flushes, series.windows, records, SLACK_NS) == [-6 * US] * 6, "a wake-up takes 9 us"
    fills, records = series.seen(constant(-15))
    assert shifts(fills, series.flushes, series.windows, records, SLACK_NS) == [5 * US] * 6, "a launch takes 10 us"


@pytest.mark.parametrize("rate", [50e-6, -50e-6])
@pytest.mark.parametrize("us", [0, 40, -40, 1000])
def test_a_clock_that_drifts_loses_no_time(rate, us):
    """Over 0.9 s: by 45 us."""
    series = Series(count=10, period_us=100_000)
    found, outside = series.measured(lambda at: us * US + rate * (at - 10**15))
    assert found == pytest.approx([CALL_US] * 10, abs=0.01) and outside == [0] * 10


@pytest.mark.parametrize("seed", range(20))
def test_launches_and_wake_ups_of_any_length(seed):
    """As beside other processes: a flush may begin up to 2 ms late. The shift is found all the same."""
    draw = random.Random(seed)
    series = Series(8, 6000, late_us=lambda: draw.choice((0, 1, 3, 2000)), wakes_us=lambda: draw.choice((4, 9, 80)))
    for us in (0, 35, -35, 200, -200, 1500, -1500):
        assert series.measured(constant(us)) == ([CALL_US] * 8, [0] * 8), us


@pytest.mark.parametrize("us", [-35, -100, -400])
def test_a_flush_that_always_begins_late_leaves_the_shift_to_the_first_record_behind_it(us):
    """Every flush waits 500 us for the GPU, the call does not: 0 fits the flushes, and the window would be empty."""
    late = iter([500, 0] * 6)
    series = Series(late_us=lambda: next(late))
    with pytest.raises(TimingFailed):
        series.by_the_old_rule(constant(us))
    assert series.measured(constant(us)) == ([CALL_US] * 6, [0] * 6)


def test_the_first_record_behind_a_flush_may_be_late_as_well():
    """Wake-ups of 60 us: the flushes let the clock be 0, and the call seems to begin behind its window."""
    wakes = iter([60, 2] * 6)
    series = Series(call_us=2, wakes_us=lambda: next(wakes))
    with pytest.raises(TimingFailed):
        series.by_the_old_rule(constant(40))
    assert series.measured(constant(40)) == ([2] * 6, [0] * 6)


# --------------------------------------------------------------------------------------------- what cannot be aligned


@pytest.mark.parametrize("off", [constant(50), constant(-50), constant(-1000)])
def test_missing_flushes_are_none_and_the_others_suffice(off):
    series = Series(period_us=4000)
    for missing in ([2], [1, 4], [0], [0, 3]):
        fills = [fill for at, fill in enumerate(series.fills) if at not in missing]
        spans, outside = series.measured(off, fills=fills)
        assert spans == [CALL_US] * 6 and outside == [NO_FLUSH if at in missing else 0 for at in range(6)]


def test_two_shifts_that_contradict_each_other_are_none():
    """Without the first flush, each of the others may be the one before or behind it."""
    series = Series(period_us=400)
    for missing in (0, 5):
        fills = [fill for at, fill in enumerate(series.fills) if at != missing]
        with pytest.raises(TimingFailed):
            series.measured(constant(50), fills=fills)
        assert series.measured(constant(0), fills=fills)[0] == [CALL_US] * 6


def test_half_of_the_flushes_are_too_few():
    series = Series()
    with pytest.raises(TimingFailed):
        series.measured(constant(50), fills=series.fills[:3])
    with pytest.raises(TimingFailed):
        series.measured(constant(50), fills=[])


def test_a_clock_that_jumps_is_refused():
    """No shift fits all flushes: the records are taken as they are."""
    series = Series()
    for before, behind in ((0, 60), (60, 0), (-1000, 50)):
        with pytest.raises(TimingFailed):
            series.measured(lambda at, one=before, other=behind: (one if at < series.flushes[3] else other) * US)


def test_a_clock_that_is_too_far_off_is_refused():
    series = Series(period_us=10_000)
    within, beyond = MOST_NS // US - 20, MOST_NS // US + 20
    assert series.measured(constant(within))[0] == series.measured(constant(-within))[0] == [CALL_US] * 6
    for us in (beyond, -beyond):
        with pytest.raises(TimingFailed):
            series.measured(constant(us))


def test_a_drift_of_more_than_a_thousandth_is_refused():
    series = Series(count=4, period_us=100_000)
    with pytest.raises(TimingFailed):
        series.measured(lambda at: 0.0025 * (at - 10**15))


def test_a_series_of_nothing_and_of_one():
    assert shifts([], [], [], [], SLACK_NS) == []
    assert Series(1).measured(constant(-300)) == ([CALL_US], [0])


# ------------------------------------------------------------------------------------------------------ hostile records


def like_a_flush(start):
    return start, start + FLUSH_US * US


@pytest.mark.parametrize("behind_us", [30, 150, 500])
def test_flushes_of_its_own_move_nothing(behind_us):
    """One behind every window, as long as the timer's, so that another shift fits as well: it counts as outside, and a
    series with a wrong clock is refused."""
    series = Series()
    own = [like_a_flush(closed + behind_us * US) for _, closed in series.windows]
    assert series.measured(constant(0), like_flushes=own) == ([CALL_US] * 6, [1] * 6)
    for us in (50, -50):
        with pytest.raises(TimingFailed):
            series.measured(constant(us), like_flushes=own)


def test_flushes_of_its_own_at_other_distances_do_not_matter():
    series = Series()
    own = [like_a_flush(closed + (30 + 40 * at) * US) for at, (_, closed) in enumerate(series.windows)]
    for us in (0, 50, -50, 1000):
        assert series.measured(constant(us), like_flushes=own) == ([CALL_US] * 6, [1] * 6)
        assert series.measured(constant(us), like_flushes=own[:2]) == ([CALL_US] * 6, [1, 1, 0, 0, 0, 0])


def test_a_fill_in_its_window_counts():
    series = Series(call_us=CALL_US + FLUSH_US)
    own = [like_a_flush(start + CALL_US * US) for start, _ in series.calls]
    calls = [(start, start + CALL_US * US) for start, _ in series.calls]
    assert series.measured(constant(0), calls=calls, like_flushes=own) == ([CALL_US + FLUSH_US] * 6, [0] * 6)


def test_a_flush_of_its_own_in_place_of_the_timers():
    """The timer's flush has no record, its own one runs behind the window. So it has no time, or one without a flush
    before it; or no other shift than 0 fits, as with a clock that is right."""
    for behind_us in (30, 150, 500):
        series = Series()
        own = [like_a_flush(closed + behind_us * US) for _, closed in series.windows]
        with pytest.raises(TimingFailed):
            series.measured(constant(0), fills=[], like_flushes=own)
        spans, outside = series.measured(constant(0), fills=[], like_flushes=own[:3])
        assert spans == [CALL_US] * 6 and outside[0] == NO_FLUSH


@pytest.mark.parametrize("us", [0, 50, -50, 1000])
def test_early_and_late_work_is_in_the_window_or_counts_as_outside(us):
    """On a stream of its own: right behind the flush, before the flush, in it, and after the window."""
    series = Series()
    for begins_us, ends_us, part in (
        (1, 5, "behind the flush"),
        (-20, -10, "in the flush"),
        (-90, -80, "before the flush"),
        (100, 105, "behind the window"),
        (300, 900, "in the pause"),
    ):
        work = [(end + begins_us * US, end + ends_us * US) for _, end in series.fills]
        spans, outside = series.measured(constant(us), *work)
        for span, count in zip(spans[1:-1], outside[1:-1], strict=True):
            assert span > CALL_US or count == 1, part


@pytest.mark.parametrize("us", [0, 35, -35, 400])
def test_each_record_is_accounted_for_once(us):
    """Whatever a solution launches at whatever times, flushes too: records in windows and outside make up all of those
    from the first flush on."""
    draw = random.Random(us)
    for _ in range(50):
        series = Series()
        first = series.flushes[0] + 2 * SLACK_NS
        begins = [draw.randrange(first, series.windows[-1][1] + 400 * US) for _ in range(12)]
        others = [(start, start + draw.randrange(1, 20) * US) for start in begins]
        like = [like_a_flush(draw.randrange(first, series.windows[-1][1])) for _ in range(draw.randrange(3))]
        fills, records = series.seen(constant(us), *others, *like)
        moved = shifts([*fills, *records[-len(like) :][: len(like)]], series.flushes, series.windows, records, SLACK_NS)
        windows = [(opened - by, closed - by) for (opened, closed), by in zip(series.windows, moved, strict=True)]
        flushes = [begun - by for begun, by in zip(series.flushes, moved, strict=True)]
        outside = outside_of_windows(records, windows, flushes, FLUSH_BYTES)
        inside = [
            sum(opened - SLACK_NS <= start <= closed and end <= closed + SLACK_NS for start, end in records)
            for opened, closed in windows
        ]
        assert sum(inside) + sum(outside) + len(fills) == len(records), moved


def test_an_empty_window_gets_only_what_some_shift_puts_there():
    """A call that does nothing in the window and works long behind it, or before its flush, still has no time."""
    series = Series()
    for begins_us in (150, -400):
        calls = [(opened + begins_us * US, opened + (begins_us + 5) * US) for opened, _ in series.windows]
        with pytest.raises(TimingFailed):
            series.measured(constant(0), calls=calls)


# ------------------------------------------------------------------------------------------------ to the nanosecond

A, B = 10**9, 10**9 + 1_000_000  # when two flushes begin


def of_two(*fills, longer=0, records=(), slack=0):
    """Flushes at A and B that have 100 us, the second one a little longer; windows of 50 us."""
    windows = [(A + 100_000, A + 150_000), (B + 100_000 + longer, B + 150_000)]
    return shifts([*fills], [A, B], windows, [*records], slack)


def flush(at, begins, ends=100_000):
    return at + begins, at + begins + ends


def test_a_flush_may_fill_its_time_and_no_more():
    for off in (0, 60_000, -60_000, MOST_NS, -MOST_NS):
        assert of_two(flush(A, off), flush(B, off)) == [-off, -off]
    assert of_two(flush(A, 60_000, 100_001), flush(B, 60_000)) == [0, 0]
    assert of_two(flush(A, 60_000, 99_990), flush(B, 60_000)) == [-59_990, -60_000]
    for off in (MOST_NS + 1, -MOST_NS - 1):
        assert of_two(flush(A, off), flush(B, off)) == [0, 0]
    assert MOST_NS == 2_000_000, "docs/protocol.md"


def test_the_clocks_may_drift_by_a_thousandth():
    """Also where one flush has more time than the other."""

    def found(one, other):
        return of_two(flush(A, one), flush(B, other, 102_000), longer=2_000)

    assert found(50_000, 51_000) == [-50_000, -51_000] and found(50_000, 51_001) == [0, 0]
    assert found(50_000, 49_000) == [-50_000, -49_000] and found(50_000, 48_999) == [0, 0]


def test_a_drift_counts_from_the_last_flush_that_was_found():
    """Three of four; the one at B has no record."""
    flushes = [A, B, B + 1_000_000, B + 2_000_000]
    windows = [(begun + 100_000, begun + 150_000) for begun in flushes]
    records = [(opened - 45_000, opened - 40_000) for opened, _ in windows]

    def found(*offs):
        fills = [flush(at, off) for at, off in zip([A, *flushes[2:]], offs, strict=True)]
        return shifts(fills, flushes, windows, records, 0)

    assert found(50_000, 52_000, 52_000) == [-50_000, -51_000, -52_000, -52_000]
    assert found(50_000, 52_001, 52_000) == [0] * 4
    assert found(50_000, 52_000, 53_000) == [-50_000, -51_000, -52_000, -53_000]
    assert found(50_000, 52_000, 53_001) == [0] * 4


def test_more_than_half_of_the_flushes():
    """At distances that leave no other shift."""
    flushes = [A, B, B + 3_000_000, B + 9_000_000]
    windows = [(begun + 100_000, begun + 150_000) for begun in flushes]
    records = [(opened - 60_000, opened - 40_000) for opened, _ in windows]
    fills = [flush(at, -60_000) for at in flushes]
    assert shifts(fills[:3], flushes, windows, records, 0) == [60_000] * 3 + [54_000], "6 ms behind the last one"
    assert shifts(fills[1:], flushes, windows, records, 0) == [59_000] + [60_000] * 3
    for two in (fills[:2], fills[1:3], fills[::2]):
        assert shifts(two, flushes, windows, records, 0) == [0] * 4


def test_the_shift_nearest_to_0_that_puts_the_first_record_into_the_window():
    """Flushes of 40 us that have 100 us: any shift from -60 to 0 us fits. Windows of 50 us, a slack of 10."""
    fills, in_second = (flush(A, 60_000, 40_000), flush(B, 60_000, 40_000)), (B + 110_000, B + 120_000)

    def found(*records):
        own = [in_second, *((A + start, A + end) for start, end in records)]
        return of_two(*fills, records=own, slack=10_000)

    assert found((150_000, 160_000)) == [0, 0] == found((100_000, 101_000)), "in the window, with the slack"
    assert found((150_001, 151_000)) == [-1, 0] and found((145_000, 160_001)) == [-1, 0]
    assert found((210_000, 220_000)) == [-60_000, 0] and found((200_000, 220_000)) == [-60_000, 0]
    assert found((210_001, 211_000)) == [0, 0] == found((200_000, 220_001)), "no shift that fits"
    assert found((110_000, 180_000), (170_000, 171_000)) == [-20_000, 0], "the first may be partly over"
    assert found((110_000, 230_000), (170_000, 171_000)) == [0, 0], "the first alone counts"
    assert found((99_999, 230_000), (170_000, 171_000)) == [-20_000, 0], "it began within the flush"
    assert found((100_000, 230_000), (170_000, 171_000)) == [0, 0]
    assert found((110_000, 180_000), (150_000, 155_000)) == [0, 0] == found((90_000, 95_000), (110_000, 180_000))
    assert found() == [0, 0]
    for broken in ((A + 110_000, 0), (0, A + 110_000)):
        assert of_two(*fills, records=[in_second, broken, (A + 180_000, A + 181_000)], slack=10_000) == [-30_000, 0]


def test_a_record_that_seems_too_early():
    """Any shift from 0 to 60 us fits; the window must still open before it."""
    fills, in_second = (flush(A, 0, 40_000), flush(B, 0, 40_000)), (B + 110_000, B + 120_000)

    def found(start, end):
        return of_two(*fills, records=[in_second, (A + start, A + end)], slack=10_000)

    assert found(90_000, 91_000) == [0, 0] and found(89_999, 91_000) == [1, 0] and found(60_000, 65_000) == [30_000, 0]
    assert found(60_000, 130_000) == [30_000, 0]
    assert found(60_000, 131_000) == [0, 0], "no shift has both its begin and its end in the window"


# ------------------------------------------------------------------------------------------------------ in the timer


class Cupti:
    """A GPU whose records are off by some ns."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=1, MEMCPY=2, MEMSET=3)

    def __init__(self, off):
        self.off, self.now, self.free, self.records = off, 10**12, 0, []

    def activity_register_callbacks(self, requested, completed):
        self.completed = completed

    def activity_enable(self, kind):
        pass

    def activity_disable(self, kind):
        pass

    def get_timestamp(self):
        return self.now

    def activity_flush_all(self, flag):
        records, self.records = self.records, []
        self.completed(records)

    def launch(self, us, **described):
        start = max(self.now + 7 * US, self.free)
        self.free = start + us * US
        self.now += 4 * US
        times = {"start": start + self.off, "end": self.free + self.off}
        self.records.append(SimpleNamespace(**times, **described))

    def pause(self, _):
        self.now += 100 * US

    def synchronize(self, device=None):
        self.now = max(self.now, self.free) + 8 * US


KERNEL = {
    "kind": 1,
    "name": "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIhEESt5arrayIPcLm1EEEEviT0_",
}
FILL = {"kind": 3, "bytes": FLUSH_BYTES}


def timer_of(monkeypatch, off, flush):
    cupti = Cupti(off)
    zero = SimpleNamespace(zero_=lambda: cupti.launch(FLUSH_US, **flush))
    monkeypatch.setattr(timing.torch, "empty", lambda *_, **__: zero)
    monkeypatch.setattr(timing, "flush_bytes", lambda device: FLUSH_BYTES)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", cupti.synchronize)
    timer = CuptiTimer.__new__(CuptiTimer)
    timing._GpuTimer.__init__(timer, "gpu")
    timer._cupti, timer._kinds, timer._records, timer._fills = cupti, (1, 2, 3), [], []
    return timer, lambda _: cupti.launch(CALL_US, kind=1, name="of the solution"), cupti.pause


@pytest.mark.parametrize("flush", [KERNEL, FILL])
@pytest.mark.parametrize("us", [0, 60, -60, 1200])
def test_the_timer_finds_its_flushes(monkeypatch, us, flush):
    timer, call, before = timer_of(monkeypatch, us * US, flush)
    for _ in range(2):
        spans = timer.spans(call, 5, before)
        assert spans.spans_us == [CALL_US] * 5 and spans.outside == [0] * 5
        assert spans.notes == (["the clock of the records was off, and set by the flushes"] if us else [])


@pytest.mark.parametrize("flush", [{"kind": 1, "name": "of the solution"}, {"kind": 3, "bytes": 7}, {"kind": 2}])
def test_other_long_records_are_no_flushes(monkeypatch, flush):
    timer, call, before = timer_of(monkeypatch, 60 * US, flush)
    with pytest.raises(TimingFailed):
        timer.spans(call, 5, before)


def test_a_note_tells_of_more_than_the_slack(monkeypatch):
    """A wake-up takes 8 us, so the shift is by that much less."""
    for off, is_noted in ((28 * US, False), (28 * US + 1, True), (-27 * US, False), (-27 * US - 1, True)):
        timer, call, before = timer_of(monkeypatch, off, KERNEL)
        assert bool(timer.spans(call, 3, before).notes) is is_noted


def test_a_short_fill_is_no_flush(monkeypatch):
    timer, _, _ = timer_of(monkeypatch, 0, KERNEL)
    timer._flush_bytes = 16_000 * 1000
    for start, end, is_flush in ((1, 1001, True), (1, 1000, False), (0, 10**9, False)):
        timer._fills.clear()
        timer._buffer_completed([SimpleNamespace(start=start, end=end, **KERNEL)])
        assert bool(timer._fills) is is_flush
