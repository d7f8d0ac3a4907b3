"""Memory in which a solution's kernels hand data to each other; safe whatever is captured, replayed or called
elsewhere.

The guarantee: a captured CUDA graph may be replayed any time later, on any stream, whatever is called on any stream in
between. - Eager calls share one workspace a stream, since calls on one stream come one after the other. It grows to the
largest call seen; its former memory goes back to torch's allocator, which gives it only to later work of that stream. -
A captured call does not use that workspace. Its buffers come from its graph's own pool, like the temporaries of every
torch operator: they live as long as the graph, later nodes of the same graph use them again, and no eager call ever
gets them. Two graphs may run at the same time unless they were captured into one pool, which torch forbids anyway. -
Counters are zero before each call, and each call leaves them zero. A captured call gets counters of its own capture,
cut from zeros that were filled before, so that a replay need not fill them. No other call ever gets them.

The cost in memory: for each stream the buffers of its largest eager call; in each graph those of its largest captured
call; counters (4 bytes each, up to some ten thousand in attention, some hundred elsewhere) for each capture, never
freed. If the zeros run out during captures with no eager call between them, a call's counters are filled by its graph.
"""

import ctypes
import functools
from operator import ge

import torch

ZEROS = 1 << 18  # counters that are filled at a time: 1 MiB
LINE = 32  # counters of 128 bytes, where the next ones begin
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


def place(device):
    """(handle of the device's current stream, whether it captures). 0 and False on a CPU."""
    if device.type != "cuda":
        return 0, False
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    if stream == 0:  # the legacy default stream, which cannot capture
        return 0, False
    if torch._C._cuda_getDevice() == device.index:
        return stream, torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return stream, torch.cuda.is_current_stream_capturing()


@functools.cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")


def capture_of(stream):
    """The capture that a stream takes part in, as a number that the process never sees again; None if the driver does
    not tell."""
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    try:
        error = _driver().cuStreamGetCaptureInfo_v2(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number),
                                                    None, None, None)
    except (OSError, AttributeError):
        return None
    return number.value if not error and status.value == _ACTIVE else None


class _Zeros:
    """int32 zeros of one device, cut into counters that no other call has. What was filled is never freed."""

    def __init__(self, device):
        self.device, self.filled, self.taken = device, [], 0

    @property
    def few(self):
        return not self.filled or self.filled[-1].numel() - self.taken < ZEROS // 2

    def cut(self, count):
        """None where too few are left."""
        first = self.taken
        if not self.filled or first + count > self.filled[-1].numel():
            return None
        self.taken += -(-count // LINE) * LINE
        return self.filled[-1][first:first + count]

    def fill(self, count):
        """Not in a capture: this number of counters; leaves at least half of ZEROS for captures to come."""
        if self.few or self.filled[-1].numel() - self.taken < count:
            self.filled.append(torch.zeros(ZEROS + count, dtype=torch.int32, device=self.device))
            self.taken = 0
            if self.device.type == "cuda":  # other streams use them too
                torch.cuda.current_stream(self.device).synchronize()
        return self.cut(count)


class _Space:
    """counts: elements of each buffer, the counters first. tensors, addresses: as many."""

    __slots__ = ("addresses", "counts", "tensors")

    def __init__(self, counts, tensors):
        self.counts, self.tensors = counts, tensors
        self.addresses = [tensor.data_ptr() for tensor in tensors]


class Workspace:
    """Of one solution. dtypes: of its buffers, without the counters."""

    def __init__(self, *dtypes):
        self.dtypes, self.kept, self.zeros, self.captured = dtypes, {}, {}, {}

    def __call__(self, device, counters, *counts):
        """Buffers of at least these numbers of elements for one call on the current stream, int32 counters first. Each
        call asks for them anew and holds them until its last kernel is launched, no longer."""
        stream, capturing = place(device)
        counts = counters, *counts
        if capturing:
            return _Space(counts, (self._counters_of_capture(device, stream, counters), *self._buffers(device, counts)))
        space = self.kept.get((device, stream))
        if space is not None and all(map(ge, space.counts, counts)):
            return space
        del space
        return self._grown(device, stream, counts)

    def _buffers(self, device, counts):
        return [torch.empty(count, dtype=dtype, device=device)
                for count, dtype in zip(counts[1:], self.dtypes, strict=True)]

    def _grown(self, device, stream, counts):
        """A space with the larger count of each buffer. Counters stay if there are enough."""
        held, counters = self.kept.pop((device, stream), None), None
        if held is not None:
            counters = held.tensors[0] if held.counts[0] >= counts[0] else None
            counts = tuple(map(max, held.counts, counts))
            del held  # its memory is free before more is asked for
        if counters is None:
            counters = self._zeros_of(device).fill(counts[0])
        space = self.kept[device, stream] = _Space(counts, (counters, *self._buffers(device, counts)))
        return space

    def _counters_of_capture(self, device, stream, count):
        """The calls of a capture on one stream come one after the other, so they share counters."""
        capture = capture_of(stream)
        held = self.captured.get((device, stream))
        if capture is not None and held is not None and held[0] == capture and held[1].numel() >= count:
            return held[1]
        zeros = self._zeros_of(device)
        counters = None if capture is None else zeros.cut(count)
        if zeros.few:  # the next eager call begins anew, and fills more
            self.kept.clear()
        if counters is None:
            return torch.zeros(count, dtype=torch.int32, device=device)
        self.captured[device, stream] = capture, counters
        return counters

    def _zeros_of(self, device):
        if device not in self.zeros:
            self.zeros[device] = _Zeros(device)
        return self.zeros[device]
