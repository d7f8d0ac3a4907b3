"""The GPU's events of a Chrome trace: Kineto's (torch.profiler) by category, XLA's (JAX) by process. Other events are
dropped while the file is read.

XLA's events have no categories. A GPU is a process /device:GPU:0 whose threads are streams, "Stream #14(Compute)".
Further threads repeat the same work (XLA Ops, Steps) and are left out. The metadata comes before the events.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.operators import ARGUMENTS, OPERATORS
from kernelderby.profile.sources.rocprof import TOOL
from kernelderby.profile.spans import SpanKind
from kernelderby.store.files import decoded, unpacked

GPU = {
    "kernel": SpanKind.KERNEL,
    "gpu_memcpy": SpanKind.MEMCPY,
    "gpu_memset": SpanKind.MEMSET,
    "memcpy": SpanKind.MEMCPY,
    "memset": SpanKind.MEMSET,
}  # the short ones: torch before 2.0
CALLS = {"cuda_runtime", "cuda_driver", "runtime", "driver"}
RANGES, GPU_RANGES = "user_annotation", "gpu_user_annotation"
MODULES, MODULE = "python_function", "nn.Module: "  # of Python functions only modules are kept
MEMORY, CUDA_MEMORY = "[memory]", 1  # the allocator's state at that time, and the device type that means a GPU
MEND = "write it again with `profiler.export_chrome_trace(...)`"
_KEPT = {*GPU, *CALLS, RANGES, GPU_RANGES}
_ARGS = {
    *("correlation", "device", "stream", "bytes", "grid", "block", "registers per thread", "shared memory"),
    *("correlation_id", "memcpy_details"),  # XLA's
    *("Total Allocated", "Total Reserved", "Device Type", "Device Id"),  # the allocator's
}
_XLA_GPU = re.compile(r"/device:GPU:(?P<number>[0-9]{1,9})\b")
_XLA_STREAM = re.compile(r"Stream #(?P<number>[0-9]{1,9})\b")
_XLA_COPY = re.compile(r"Memcpy(?P<from>[HDP])2(?P<to>[HDP])")
_XLA_BYTES = re.compile(r"\bsize:(?P<bytes>[0-9]{1,18})\b")


def load(path: Path, packed: bool, operators: bool = False) -> tuple[object, EventFilter]:
    """The document without unneeded events, and what was found on the way. Numbers with a fraction stay text, since a
    time of 1.7e15 us has no nanoseconds left as a float. operators: keep the framework's operators with their
    arguments. DerbyError if the file is not JSON."""
    wanted = EventFilter(operators)
    try:
        text = decoded(unpacked(path, packed))
        return json.loads(text, object_hook=wanted.of, parse_float=str), wanted
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # nsys writes JSON a line an event
            told = "give each trace alone, or of nsys the SQLite export"
            raise DerbyError(f"{path}:{error.lineno}: several JSON documents in one file; {told}") from None
        raise DerbyError(f"{path}:{error.lineno}: no valid JSON ({error.msg}), cut off or damaged; {MEND}") from None
    except UnicodeDecodeError as error:
        raise DerbyError(f"{path}: cannot be read whole ({error}); copy the trace or {MEND}") from None
    except ValueError:
        raise DerbyError(f"{path}: JSON with a number of thousands of digits, damaged; {MEND}") from None
    except RecursionError:
        raise DerbyError(f"{path}: JSON, but no trace of torch.profiler (nested too deeply); {MEND}") from None


class EventFilter:
    """Decides which objects of the file are kept, and rewrites XLA's in Kineto's form. halves: number of beginnings of
    GPU work (phase B), which are not read."""

    def __init__(self, operators: bool) -> None:
        self._kept = _KEPT | OPERATORS if operators else _KEPT
        self._args = _ARGS | ARGUMENTS if operators else _ARGS
        self.halves = 0
        self._devices: dict[object, int] = {}  # process -> GPU
        self._streams: dict[tuple[object, object], int] = {}  # process and thread -> stream

    @property
    def is_xla(self) -> bool:
        return bool(self._devices)

    def of(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if "ph" not in value:
            kept = "traceEvents" in value or "name" in value or TOOL in value
            return value if kept else {key: value[key] for key in self._args if key in value}
        if value["ph"] == "M":
            self._learn(value)
        elif value["ph"] == "i" and value.get("name") == MEMORY:
            return value
        elif value["ph"] == "X":
            category = value.get("cat")
            if category is None:
                return self._of_xla(value) if self._devices else None
            if category == MODULES:
                return value if str(value.get("name")).startswith(MODULE) else None
            return value if str(category).lower() in self._kept else None
        elif value["ph"] == "B":
            self.halves += str(value.get("cat")).lower() in GPU
        return None

    def _learn(self, value: dict[str, Any]) -> None:
        args = value.get("args")
        named = args.get("name") if isinstance(args, dict) else None
        place = value.get("pid"), value.get("tid")
        if not isinstance(named, str) or not all(isinstance(each, (int, str, type(None))) for each in place):
            return
        if value.get("name") == "process_name" and (device := _XLA_GPU.search(named)):
            self._devices[place[0]] = int(device["number"])
        elif value.get("name") == "thread_name" and (stream := _XLA_STREAM.match(named)):
            self._streams[place] = int(stream["number"])

    def _of_xla(self, value: dict[str, Any]) -> dict[str, Any] | None:
        args = value.get("args")
        details = args if isinstance(args, dict) else {}
        correlation = details.get("correlation_id")
        try:
            device = self._devices.get(value.get("pid"))
            stream = self._streams.get((value.get("pid"), value.get("tid")))
        except TypeError:  # no list is a process
            return None
        if device is None:
            call = {**value, "cat": "cuda_runtime", "args": {"correlation": correlation}}
            return None if correlation is None else call
        if stream is None:
            return None
        name = str(value.get("name"))
        copy, size = _XLA_COPY.match(name), _XLA_BYTES.search(str(details.get("memcpy_details", "")))
        found = {"correlation": correlation, "device": device, "stream": stream}
        if copy:
            found["bytes"] = int(size["bytes"]) if size else 0
            return {**value, "cat": "gpu_memcpy", "name": f"Memcpy {copy['from']}to{copy['to']}", "args": found}
        return {**value, "cat": "gpu_memset" if name.startswith("Memset") else "kernel", "args": found}
