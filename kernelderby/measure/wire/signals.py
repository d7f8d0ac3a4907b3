"""Two words in memory that judge and worker share. With them they hand a device to each other without messages.

On a GPU streams write them and wait for them, so no host time is involved; on a CPU threads do. Beside a GPU's words
there are two on the host, which a stream writes, too: for a worker whose thread has to wait instead of its stream.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from kernelderby.measure.wire.shared import BufferSet, driver_call, opened_set, shared_set

ALL = 1 << 30  # a number that ends every wait
_GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ
_PAUSE_SECONDS = 2e-5
_DEVICE_MAP = 2  # CU_MEMHOSTREGISTER_DEVICEMAP
_PAGE = 4096
_HOST = torch.device("cpu")


def made_signals(device: torch.device) -> Signals:
    """New words, all zero."""
    places = dict.fromkeys(("go", "done"), ((1,), torch.int32))
    sets = [shared_set({}, places, each) for each in ([device] if device == _HOST else [device, _HOST])]
    for word in (word for each in sets for word in each.outputs.values()):
        word.zero_()
    return Signals(sets)


def opened_signals(descriptions: Sequence[dict[str, Any]], device: torch.device) -> Signals:
    """The worker's side; descriptions of the sets of Signals, in their order."""
    return Signals([opened_set(each, where) for each, where in zip(descriptions, (device, _HOST), strict=False)])


class Signals:
    """go: the number of the call that may begin. done: the number of the last call whose outputs are complete.
    sets: the device's words, and on a GPU the host's."""

    def __init__(self, sets: Sequence[BufferSet]) -> None:
        self.sets = sets
        self._address: int | None = None  # on the GPU, of the host's "go"

    def give(self, name: str, number: int, on_host: bool = False) -> None:
        """Sets the word, after all earlier work of the current stream. on_host: "go" on the host."""
        word = self.sets[0].outputs[name]
        if word.is_cuda:
            address = self._mapped() if on_host else word.data_ptr()
            _on_stream("cuStreamWriteValue32_v2", address, word.device, number, 0)
        else:
            word.fill_(number)

    def wait(self, name: str, number: int, goes_on: Callable[[], bool] = lambda: True, on_host: bool = False) -> None:
        """Makes the current stream, or this thread, wait until the word is at least this number. goes_on: a thread
        calls it from time to time to decide whether to keep waiting. on_host: this thread waits for "go" on the host.
        """
        word = self.sets[-1 if on_host else 0].outputs[name]
        if word.is_cuda:
            _on_stream("cuStreamWaitValue32_v2", word.data_ptr(), word.device, number, _GREATER_OR_EQUAL)
            return
        pause = _PAUSE_SECONDS if len(self.sets) == 1 else 0.0  # beside a GPU a late thread counts as time of the call
        while int(word) < number and goes_on():
            if pause:
                time.sleep(pause)

    def _mapped(self) -> int:
        """The GPU's address of "go" on the host."""
        if self._address is None:
            word, pointer = self.sets[-1].outputs["go"], ctypes.c_uint64()
            at = ctypes.c_void_p(word.data_ptr())
            driver_call("cuMemHostRegister_v2", at, ctypes.c_size_t(_PAGE), ctypes.c_uint(_DEVICE_MAP))
            self.sets[-1].frees(partial(_unregister, word))
            driver_call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), at, ctypes.c_uint(0))
            self._address = pointer.value
        return self._address

    def release(self) -> None:
        """Ends all waits, even if the current stream itself waits."""
        if self.sets[0].outputs["go"].is_cuda:
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                self._set(ALL)
        else:
            self._set(ALL)

    def reset(self) -> None:
        self._set(0)

    def _set(self, number: int) -> None:
        for name in self.sets[0].outputs:
            self.give(name, number)
            self.sets[-1].outputs[name].fill_(number)


def _unregister(word: torch.Tensor) -> None:
    driver_call("cuMemHostUnregister", ctypes.c_void_p(word.data_ptr()))


def _on_stream(function: str, address: int, device: torch.device, number: int, flags: int) -> None:
    stream = torch.cuda.current_stream(device).cuda_stream
    driver_call(
        function, ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint32(number), ctypes.c_uint(flags)
    )
