"""What a worker may gain against the judge's clock of single calls, class by class, on a simulated GPU.

The GPU runs the kernels of one process at a time: it goes over to another one (SWITCH_US) when that of now has nothing
that can run, or when a slice of time is over. Streams of one process run side by side. A call reads the contents that
lie there when it begins, and is quicker by HOT_US where no flush lies between them and it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch")
from kernelderby.measure.judge.batch import LEAST_US, OF_CALL
from kernelderby.measure.judge.relay import of_medians

CALLS = 16
COPY_US, FLUSH_US, SWITCH_US, HOT_US, EMPTY_US = 8.0, 60.0, 20.0, 1.5, 1.5
STEP_US = 0.25
JUDGE, WORKER = 0, 1


@dataclass
class Op:
    """A kernel that takes some us, or a wait for a word. at_begin, at_end: its effect on the memory."""

    us: float = 0.0
    waits: Callable[[Gpu], bool] | None = None
    at_begin: Callable[[Gpu], None] = lambda gpu: None
    at_end: Callable[[Gpu], None] = lambda gpu: None
    cold_us: Callable[[Gpu], float] = lambda gpu: 0.0
    left: float | None = None


@dataclass
class Gpu:
    slice_us: float
    words: dict[str, int] = field(default_factory=lambda: {"go": 0, "done": 0})
    contents: int = 0
    output: int = 0
    is_hot: bool = False
    now: float = 0.0
    taken: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    began: float = 0.0
    read: int = 0  # the contents that the call of now has begun with

    def run(self, judge: list[Op], worker: list[list[Op]]) -> None:
        queues, of, since = {JUDGE: [list(judge)], WORKER: [list(each) for each in worker]}, JUDGE, 0.0
        while queues[JUDGE][0] and self.now < 1e6:
            runs = self._runnable(queues[of])
            other = self._runnable(queues[1 - of])
            if other and (not runs or self.now - since > self.slice_us):
                of, since, runs = 1 - of, self.now + SWITCH_US, other
                self.now += SWITCH_US
            for queue in runs:
                self._step(queue)
            self.now += STEP_US

    def _runnable(self, streams: list[list[Op]]) -> list[list[Op]]:
        for queue in streams:
            while queue and queue[0].waits is not None and queue[0].waits(self):
                queue.pop(0)
        return [queue for queue in streams if queue and queue[0].waits is None]

    def _step(self, queue: list[Op]) -> None:
        op = queue[0]
        if op.left is None:
            op.at_begin(self)
            op.left = op.us + op.cold_us(self)
        op.left -= STEP_US
        if op.left <= 0:
            op.at_end(self)
            queue.pop(0)


def given(word: str, number: int) -> Op:
    return Op(at_end=lambda gpu: gpu.words.__setitem__(word, max(number, gpu.words[word])))


def waited(word: str, number: int) -> Op:
    return Op(waits=lambda gpu: gpu.words[word] >= number)


def judge_of(number: int) -> list[Op]:
    def begun(gpu: Gpu) -> None:
        gpu.began = gpu.now

    def written(gpu: Gpu) -> None:
        gpu.contents, gpu.output, gpu.is_hot = number, -1, True

    def flushed(gpu: Gpu) -> None:
        gpu.is_hot = False

    def copied(gpu: Gpu) -> None:
        gpu.taken.append(gpu.output)

    def ended(gpu: Gpu) -> None:
        gpu.times.append(gpu.now - gpu.began)

    return [
        Op(COPY_US, at_begin=begun, at_end=written),
        Op(FLUSH_US, at_end=flushed),
        given("go", number),
        waited("done", number),
        Op(COPY_US, at_begin=copied, at_end=ended),
    ]


def call_of(us: float, share: float = 1.0, begins: bool = True, ends: bool = True) -> Op:
    """A call, or a part of one."""

    def at_begin(gpu: Gpu) -> None:
        gpu.read = gpu.contents

    def at_end(gpu: Gpu) -> None:
        gpu.output = gpu.read

    return Op(
        us * share,
        at_begin=at_begin if begins else lambda gpu: None,
        at_end=at_end if ends else lambda gpu: None,
        cold_us=lambda gpu: 0.0 if gpu.is_hot or not begins else min(HOT_US, us / 2),
    )


def honest(us: float) -> list[list[Op]]:
    return [[op for n in range(1, CALLS + 1) for op in (waited("go", n), call_of(us), given("done", n))]]


def says_done_before_it_is(us):
    return [[op for n in range(1, CALLS + 1) for op in (waited("go", n), given("done", n), call_of(us))]]


def says_done_from_another_stream(us):
    says = [op for n in range(1, CALLS + 1) for op in (waited("go", n), given("done", n))]
    works = [op for n in range(1, CALLS + 1) for op in (waited("go", n), call_of(us))]
    return [says, works]


def says_done_in_the_middle(us):
    ops = []
    for n in range(1, CALLS + 1):
        ops += [waited("go", n), call_of(us, 0.5, ends=False), given("done", n), call_of(us, 0.5, begins=False)]
    return [ops]


def says_all_done_at_once(us):
    return [[given("done", CALLS), *honest(us)[0]]]


def begins_when_the_contents_come(us):
    """Without the word: a wait for the contents themselves."""
    ops = []
    for n in range(1, CALLS + 1):
        ops += [Op(waits=lambda gpu, n=n: gpu.contents >= n), call_of(us), given("done", n)]
    return [ops]


def works_ahead_on_what_lies_there(us):
    """All calls side by side as soon as the first contents come."""
    return [[waited("go", 1), call_of(us), given("done", CALLS)]]


def answers_with_what_it_has(us):
    return [[op for n in range(1, CALLS + 1) for op in (waited("go", n), given("done", n))]]


def keeps_the_gpu_for_itself(us):
    """A kernel that never ends beside its calls."""
    return [*honest(us), [Op(1e5)]]


CLASSES = [
    says_done_before_it_is,
    says_done_from_another_stream,
    says_done_in_the_middle,
    says_all_done_at_once,
    begins_when_the_contents_come,
    works_ahead_on_what_lies_there,
    answers_with_what_it_has,
    keeps_the_gpu_for_itself,
]


def measured(worker: list[list[Op]], slice_us: float) -> Gpu:
    gpu = Gpu(slice_us)
    gpu.run([op for number in range(1, CALLS + 1) for op in judge_of(number)], worker)
    return gpu


def by_the_judge(gpu: Gpu, slice_us: float) -> float:
    pace = measured(honest(EMPTY_US), slice_us)
    assert pace.taken == list(range(1, CALLS + 1))
    return of_medians(gpu.times, pace.times, EMPTY_US + min(HOT_US, EMPTY_US / 2)).call_us


@pytest.mark.parametrize("slice_us", [2000.0, 40.0])
@pytest.mark.parametrize("us", [3.0, 12.0, 100.0, 700.0])
def test_an_honest_call_is_what_it_is(us, slice_us):
    gpu = measured(honest(us), slice_us)
    assert gpu.taken == list(range(1, CALLS + 1))
    assert by_the_judge(gpu, slice_us) == pytest.approx(us + HOT_US, abs=1.0 if us < slice_us else 2 * us)


@pytest.mark.parametrize("slice_us", [2000.0, 40.0])
@pytest.mark.parametrize("us", [3.0, 12.0, 100.0, 700.0])
@pytest.mark.parametrize("cheats", CLASSES)
def test_a_class_gains_no_more_than_the_margin(cheats, us, slice_us):
    """Otherwise its outputs are wrong in most calls."""
    gpu, right = measured(cheats(us), slice_us), list(range(1, CALLS + 1))
    wrong = sum(one != other for one, other in zip(gpu.taken, right, strict=False)) + CALLS - len(gpu.taken)
    gained = us + HOT_US - by_the_judge(gpu, slice_us) if gpu.times else 0.0
    assert gained <= max(LEAST_US, OF_CALL * us) or wrong > CALLS // 2, (gained, wrong)


def test_the_simulated_gpu_shows_a_gain_where_there_is_one():
    """With a judge who writes the contents before he starts his clock, whoever begins at once gains a whole call."""
    gpu = Gpu(40.0)
    ops = []
    for number in range(1, CALLS + 1):
        write, flush, *rest = judge_of(number)
        begun, write.at_begin = write.at_begin, lambda gpu: None
        flush.at_begin = lambda gpu: None
        late = Op(at_begin=begun)
        ops += [write, Op(200.0), flush, late, *rest]
    gpu.run(ops, begins_when_the_contents_come(12.0))
    pace = Gpu(40.0)
    ops = []
    for number in range(1, CALLS + 1):
        write, flush, *rest = judge_of(number)
        begun, write.at_begin = write.at_begin, lambda gpu: None
        ops += [write, Op(200.0), flush, Op(at_begin=begun), *rest]
    pace.run(ops, honest(EMPTY_US))
    assert of_medians(gpu.times, pace.times, EMPTY_US).call_us < 12.0 / 2
