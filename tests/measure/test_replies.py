"""A worker's message is any JSON until it is typed: nonsense ends as Failed with a line that names the place."""

import errno
import itertools
import json
import math
import time

import pytest

from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.wire import quoted
from kernelderby.measure.wire.quoted import kept, shown
from kernelderby.measure.wire.replies import (
    CaptureDone,
    EmptyKernelTimes,
    Failed,
    GpuSeen,
    MachineSeen,
    ProfileDone,
    Reply,
    SetUpDone,
    SetUpTaken,
    Stop,
    TunedTimes,
    TunePrepared,
    Verdict,
    Wrong,
    sent,
    sent_failure,
)
from kernelderby.measure.worker.failures import status_of
from kernelderby.rows.measurement import Correctness, Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY

CORRECTNESS = Correctness(math.inf, 0.5, 0.25, {"tight": 0.5})
ANSWERS = [
    MachineSeen(
        "3.12.3",
        {"torch": "2.11"},
        GpuSeen("NVIDIA H200", "9.0", "GPU-1", 1, 2, 3),
        protocol="cupti",
        flush_bytes=1 << 28,
    ),
    EmptyKernelTimes({"eager": 3.5, "graph": None}),
    SetUpDone(SetUpTaken(0.5, 1024)),
    SetUpDone(None),
    CaptureDone("it allocates", True),
    Spans([1.5, 2.5], ["a note"], [], [3.0, 4.0], [5.0, 6.0]),
    TunePrepared("h4096", ({"rows": 4, "wide": True},)),
    TunedTimes((1.5,)),
    Verdict(Status.WRONG_VALUES, "0.5 of the elements match", CORRECTNESS),
    ProfileDone(Status.PASSED, "", CORRECTNESS, 10, 30, ("2 records were left out",)),
]
NONSENSE = [
    None,
    True,
    -1,
    1e308,
    math.nan,
    "\ud800",
    [],
    {},
    [None],
    {"": {}},
    "x" * 5000,
    1 << 70,
    [[[[]]]],
    ["x"] * 50,
]


def through_the_pipe(content):
    return Reply(json.loads(json.dumps(content)))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_arrives_as_it_was_sent(answer):
    assert through_the_pipe(sent(answer)).of(type(answer)) == answer


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_nonsense_is_an_answer_of_the_kind_or_failed(answer):
    """Each field in turn holds each piece of nonsense, or is missing."""
    kind, content = type(answer), sent(answer)
    refused = 0
    for name, value in itertools.product(content, [*NONSENSE, "missing"]):
        broken = {key: one for key, one in content.items() if key != name}
        if value != "missing":
            broken[name] = value
        try:
            assert isinstance(through_the_pipe(broken).of(kind), kind)
        except Failed as failed:
            refused += 1
            assert (
                failed.status is Status.CRASHED
                and "\ud800" not in failed.message
                and len(shown(failed.message)) <= 2000
            )
            assert name == "ok" or name in failed.message
    assert refused > len(NONSENSE)


def test_what_a_worker_may_call_its_end():
    for status in Status:
        failed = through_the_pipe(sent_failure(status, "so it ended" + "." * 5000)).failed
        claimed = status in (Status.RAISED, Status.BUILD_FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT)
        assert failed.status is (status if claimed else Status.CRASHED)
        assert shown(failed.message).startswith("so it ended") and len(shown(failed.message)) == 2000


def test_a_worker_does_not_speak_for_the_judge():
    said = sent_failure(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: so forgive me")
    message = through_the_pipe(said).failed.message
    assert not message.startswith(JUDGE_WITHOUT_MEMORY) and JUDGE_WITHOUT_MEMORY not in kept(
        message, lambda words: None
    )


SECRET = "root:x:0:0 hunter2"


@pytest.mark.parametrize(
    ("said", "row"),
    [
        (SECRET, "another exception"),
        (f"ValueError: {SECRET}", "ValueError"),
        (f"hunter2: {SECRET}", "another exception"),
        (f"RuntimeError: CUDA error: misaligned address {SECRET}", "RuntimeError: misaligned address"),
        (f"\x03{SECRET}\x02", ""),
        (f"KeyError\x03 {SECRET} \x02", ""),
        (f"ValueError: \n{SECRET}\x03\n{SECRET}", "ValueError"),
    ],
)
def test_words_of_a_worker_reach_no_row(said, row):
    """Whatever is built around them, and wherever it is cut."""
    message = through_the_pipe(sent_failure(Status.RAISED, said)).failed.message
    cut = message[:13]
    for built in (message, f"after a larger one: raised: {message}", f"round 1: {message}; {message}", cut):
        words: list[str] = []
        found = kept(built, words.append)
        assert "hunter2" not in found and "root" not in found and "\x02" not in found and "\x03" not in found
        assert (row in found or built is cut) and "(log " in found and words
    assert "hunter2" in shown(message)
    assert kept("no answer within 3 s", pytest.fail) == "no answer within 3 s"


def test_an_answer_of_many_names_is_soon_explained():
    """Each name by itself, beside a copy of all others, would take an hour."""
    many = dict.fromkeys(map(str, range(100_000)), 0.5)
    numbers = dict.fromkeys(("max_absolute_error", "max_relative_error", "relative_error_norm"), 0.5)
    verdict = {"status": "wrong_shape", "correctness": {**numbers, **many, "matched_ratio": {**many, "last": "?"}}}
    start = time.monotonic()
    with pytest.raises(Failed, match=r"matched_ratio\.last: must be a number"):
        Reply({"ok": True, "wrong": {**verdict, **many}}).wrong  # noqa: B018
    assert time.monotonic() - start < 60


OF_MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", OF_MEMORY)
def test_a_definition_is_not_blamed_for_a_lack_of_memory(error):
    from types import SimpleNamespace

    from kernelderby.measure.judge.definition import blamed_on

    with pytest.raises(MemoryError), blamed_on(SimpleNamespace(place="d.py"), "run raises"):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("nvcc ended with 1: error: No space left on device"),
        *OF_MEMORY,
    ],
)
def test_who_finds_no_room_is_tried_again(error):
    """A rival may have taken it."""
    assert status_of(error, Status.BUILD_FAILED) is Status.OUT_OF_MEMORY
    assert status_of(OSError(errno.EACCES, "Permission denied"), Status.BUILD_FAILED) is Status.BUILD_FAILED


def test_a_worker_cannot_choose_the_hash_of_its_words(monkeypatch):
    """A secret could stand in it: twenty bits cost a second of trials."""
    first = quoted.hash_of("the same words")
    assert first == quoted.hash_of("the same words") != quoted.hash_of("other words")
    monkeypatch.setattr(quoted, "_KEY", b"of another run")
    assert quoted.hash_of("the same words") != first


def test_every_text_of_a_reply_is_quoted():
    """A timer's note, a capture's reason or a wrong output reaches no row word for word."""
    from kernelderby.measure.wire import remote

    answers = [
        sent(CaptureDone(SECRET, False)),
        {"ok": True, "wrong": {"status": "wrong_shape", "message": SECRET}},
        {"at": SECRET, "iteration": 0},
        sent_failure(Status.RAISED, SECRET),
        {"ok": True, "setup": SECRET},
    ]

    class Worker:
        def send(self, *given, **named): ...

        def receive(self):
            return through_the_pipe(answers.pop(0))

    executor = remote.RemoteExecutor(Worker(), 1)
    calls = [executor.capture, lambda: executor.call(0), lambda: executor.spans("eager", 1, id, id)]
    for call in (*calls, lambda: executor.call(0), lambda: executor.set_up(0)):
        with pytest.raises(Exception) as ended:
            call()
        error = ended.value
        message = error.verdict.message if isinstance(error, Wrong) else str(error)
        assert "hunter2" not in kept(message, lambda words: None), message
    for note, stays in [("iterations launched 1 to 3 kernels and copies", True), (SECRET, False), ("1 a", False)]:
        assert (kept(*remote.noted([note]), lambda words: None) == note) is stays


@pytest.mark.parametrize(("busy_us", "row_us"), [(7.5, 7.5), (8.0, 8.0), (8.05, 8.0), (8.1, None), (24.0, None)])
def test_a_busy_time_is_no_longer_than_its_span(busy_us, row_us):
    """No reader takes a row where it is: the next run would measure its solution again."""
    from kernelderby.measure.wire import remote

    stops = [{"at": at, "iteration": 0} for at in ("ready", "done")]
    answers = [*stops, sent(Spans([8.0], [], [busy_us], [3.0], [20.0], [0]))]

    class Worker:
        device = "cuda"

        def send(self, *given, **named): ...

        def tell(self, *given): ...

        def receive(self):
            return through_the_pipe(answers.pop(0))

    executor = remote.RemoteExecutor(Worker(), 1)
    if row_us is None:
        with pytest.raises(Failed, match="busy_us: is longer than the span") as ended:
            executor.spans("eager", 1, id, lambda _: time.sleep(1e-4))
        assert ended.value.status is Status.CRASHED
    else:
        assert executor.spans("eager", 1, id, lambda _: time.sleep(1e-4)).busy_us == [row_us]


@pytest.mark.parametrize("content", [{}, {"ok": 1}, {"ok": "true"}, {"ok": None, "status": ["passed"], "message": {}}])
def test_only_true_is_ok(content):
    assert through_the_pipe(content).failed.status is Status.CRASHED


def test_a_stop_is_one_or_an_end():
    assert through_the_pipe({"at": "ready", "iteration": 3}).stop() == Stop("ready", 3)
    for content in ({"ok": True}, {"at": "ready"}, {"at": 1, "iteration": 3}, {}, {"at": "ready", "iteration": True}):
        with pytest.raises(Failed, match="the worker's answer"):
            through_the_pipe(content).stop()
    with pytest.raises(Failed, match="out of luck"):
        through_the_pipe(sent_failure(Status.RAISED, "out of luck")).stop()


def test_wrong_outputs_are_told_apart():
    assert through_the_pipe({"ok": True, "wrong": {"status": "wrong_shape", "message": "m"}}).wrong == Verdict(
        Status.WRONG_SHAPE, "m"
    )
    assert through_the_pipe({"ok": True}).wrong is None
    assert through_the_pipe({"ok": False, "wrong": 3}).wrong is None
    for nonsense in (3, "wrong_shape", {"status": "fine"}, {"status": "wrong_shape", "message": 3}):
        with pytest.raises(Failed, match="the worker's answer"):
            _ = through_the_pipe({"ok": True, "wrong": nonsense}).wrong


@pytest.mark.parametrize("times", ["spans_us", "busy_us", "host_us", "wall_us"])
@pytest.mark.parametrize("value", [5e-324, 1e-9, 1e308, 2e12])
def test_times_that_no_median_and_no_row_can_hold_are_none(times, value):
    answer = sent(Spans([1.0, 1.0], [], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0, 0]))
    with pytest.raises(Failed, match=times):
        through_the_pipe({**answer, times: [value, value]}).of(Spans)


def test_a_number_of_records_is_one():
    answer = sent(Spans([1.0], [], [1.0], [1.0], [1.0], [0]))
    for value in (10**400, -2, 1 << 60):
        with pytest.raises(Failed, match="outside"):
            through_the_pipe({**answer, "outside": [value]}).of(Spans)


@pytest.mark.parametrize("field", ["status", "message", "error"])
def test_what_cannot_be_shown_is_told_all_the_same(field):
    """At any depth: the text was read near one stack's end and is written near another's."""
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, -(10**5000)):
        failed = Reply({"ok": False, field: value}).failed
        assert failed.status is Status.CRASHED and (field == "status" or "cannot be shown" in failed.message)
    while deep:  # or the interpreter frees them one within the other
        deep = deep.pop()
