"""Two words in memory that judge and worker share, by which they hand a device to each other without a message.

On a GPU streams write them and wait for them, so that no host's time lies between; on a CPU threads do.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

from kernelderby.measure.wire.shared import BufferSet, driver_call, opened_set, shared_set

ALL = 1 << 30  # a number that no wait exceeds: whoever waits goes on
_GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ
_PAUSE_SECONDS = 2e-5


def signal_set(device: torch.device) -> BufferSet:
    """The memory of one pair of words, both zero."""
    made = shared_set({}, dict.fromkeys(("go", "done"), ((1,), torch.int32)), device)
    for word in made.outputs.values():
        word.zero_()
    return made


def opened_signals(description: dict[str, Any], device: torch.device) -> Signals:
    """The other side."""
    return Signals(opened_set(description, device))


class Signals:
    """go: the number of the call that may begin. done: of the last one whose outputs are there."""

    def __init__(self, buffers: BufferSet) -> None:
        self.buffers = buffers

    def give(self, name: str, number: int) -> None:
        """After all that the current stream was given before."""
        word = self.buffers.outputs[name]
        if word.is_cuda:
            _on_stream("cuStreamWriteValue32_v2", word, number, 0)
        else:
            word.fill_(number)

    def wait(self, name: str, number: int, goes_on: Callable[[], bool] = lambda: True) -> None:
        """The current stream, or this thread, goes on when the word is at least that. goes_on: asked now and then by a
        thread, whether it waits on."""
        word = self.buffers.outputs[name]
        if word.is_cuda:
            _on_stream("cuStreamWaitValue32_v2", word, number, _GREATER_OR_EQUAL)
            return
        while int(word) < number and goes_on():
            time.sleep(_PAUSE_SECONDS)

    def release(self) -> None:
        """Whoever waits goes on, also where the current stream is one that waits."""
        words = self.buffers.outputs.values()
        if next(iter(words)).is_cuda:
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                self._set(ALL)
        else:
            self._set(ALL)

    def reset(self) -> None:
        self._set(0)

    def _set(self, number: int) -> None:
        for name in self.buffers.outputs:
            self.give(name, number)


def _on_stream(function: str, word: torch.Tensor, number: int, flags: int) -> None:
    stream = torch.cuda.current_stream(word.device).cuda_stream
    driver_call(
        function,
        ctypes.c_void_p(stream),
        ctypes.c_uint64(word.data_ptr()),
        ctypes.c_uint32(number),
        ctypes.c_uint(flags),
    )
