"""Captured calls: does a replay compute, and does it stay within its own memory?"""

from __future__ import annotations

from functools import partial

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge.checksums import checksum
from kernelderby.measure.judge.correctness import POISON, make_ready, synchronize
from kernelderby.measure.judge.exchange import PASSED, Exchange
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.wire.replies import Failed, Verdict
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted


def capture(exchange: Exchange) -> None:
    """Captures the call over each set. NotCapturable with the reason; also where a replay on other contents behind
    the same addresses is wrong, because the capture froze what the call should compute."""
    exchange.ready_all()
    exchange.hands.capture()
    try:
        for which in range(len(exchange.sets)):
            verdict = _replayed(exchange, which, variant=1)
            if verdict.status is not Status.PASSED:
                raise NotCapturable(
                    "a replay with other contents behind the same addresses is wrong, so the "
                    f"capture froze what depends on them ({verdict.status}: {verdict.message})"
                )
    except NotCapturable:
        exchange.hands.drop_graphs()
        raise


def overtaken(exchange: Exchange, larger: InputMaker) -> Verdict:
    """Whether the captured calls stay right, and within their own memory, after a larger call."""
    buffers = exchange.buffers(larger)
    try:
        larger.write(buffers.inputs)
        make_ready(buffers.inputs, buffers.outputs, exchange.in_place, POISON[0])
        synchronize(larger.device)
        exchange.hands.overtake(buffers)
    finally:
        buffers.release()
    after = f"a captured call, replayed after a larger one ({larger.case.label})"
    try:
        for which in range(len(exchange.sets)):
            verdict = _replayed(exchange, which, variant=2)
            if verdict.status is not Status.PASSED:
                told = f"{after}: {verdict.status}: {verdict.message}"
                return Verdict(Status.GRAPH_OVERTAKEN, told, verdict.correctness)
        nbytes = exchange.hands.overwritten()
    except Failed as failed:
        raise Failed(Status.GRAPH_OVERTAKEN, f"{after}: {failed.message}", failed.gone) from failed
    if nbytes:
        return Verdict(
            Status.GRAPH_OVERTAKEN, f"{after}, wrote into {counted(nbytes, 'byte')} that were no longer its own"
        )
    return PASSED


def _replayed(exchange: Exchange, which: int, variant: int) -> Verdict:
    """Of other contents, which the timed ones then follow again."""
    own = exchange.write(which, partial(exchange.maker.rewrite, variant=variant))
    exchange.ready(which, POISON[variant % 2])
    synchronize(exchange.maker.device)
    exchange.hands.replay(which)
    verdict = exchange.compared(own, exchange.snapshot(which), checksum(own))
    exchange.write(which, partial(exchange.maker.rewrite, variant=0))
    return verdict
