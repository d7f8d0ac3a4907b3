"""Two words in memory that judge and worker share. With them they hand a device to each other without messages.

On a GPU streams write them and wait for them, so no host time is involved; on a CPU threads do.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

from kernelderby.measure.wire.shared import BufferSet, driver_call, opened_set, shared_set

ALL = 1 << 30  # a number that ends every wait
_GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ
_PAUSE_SECONDS = 2e-5


def signal_set(device: torch.device) -> BufferSet:
    """Memory for one pair of words, both zero."""
    made = shared_set({}, dict.fromkeys(("go", "done"), ((1,), torch.int32)), device)
    for word in made.outputs.values():
        word.zero_()
    return made


def opened_signals(description: dict[str, Any], device: torch.device) -> Signals:
    """The worker's side."""
    return Signals(opened_set(description, device))


class Signals:
    """go: the number of the call that may begin. done: the number of the last call whose outputs are complete."""

    def __init__(self, buffers: BufferSet) -> None:
        self.buffers = buffers

    def give(self, name: str, number: int) -> None:
        """Sets the word, after all earlier work of the current stream."""
        word = self.buffers.outputs[name]
        if word.is_cuda:
            _on_stream("cuStreamWriteValue32_v2", word, number, 0)
        else:
            word.fill_(number)

    def wait(self, name: str, number: int, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Makes the current stream, or this thread, wait until the word is at least this number. goes_on: a thread
        calls it from time to time to decide whether to keep waiting."""
        word = self.buffers.outputs[name]
        if not word.is_cuda:
            while int(word) < number and goes_on():
                time.sleep(_PAUSE_SECONDS)
        else:
            _on_stream("cuStreamWaitValue32_v2", word, number, _GREATER_OR_EQUAL)

    def release(self) -> None:
        """Ends all waits, even if the current stream itself waits."""
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
