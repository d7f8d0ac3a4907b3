"""Small traces of torch.profiler, written by hand: operators with shapes, launches, kernels, a graph's capture."""

from __future__ import annotations

import json
from pathlib import Path

TYPES = {
    "bf16": "c10::BFloat16",
    "fp16": "c10::Half",
    "fp32": "float",
    "fp8": "c10::Float8_e4m3fn",
    "i64": "long int",
    "i32": "int",
}


def tensor(text):
    """ "bf16 16x32" -> its sizes and Kineto's type; a plain number or text is a value."""
    kind, _, sizes = text.partition(" ")
    if kind in TYPES:
        return [int(each) for each in sizes.split("x") if each], TYPES[kind], ""
    return [], "Scalar" if text else "", text


class Trace:
    """Times in us. operator() opens an operator and closes it; kernels launched in between belong to it."""

    def __init__(self, gpu="NVIDIA H200"):
        self.events, self.gpu, self.now, self.next = [], gpu, 100.0, 1

    def event(self, category, name, start, duration, args, thread=7):
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": thread,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    def operator(self, name, operands, *inside, shapes=True):
        """inside: functions that are called while it is open."""
        start, self.now = self.now, self.now + 1
        for each in inside:
            each()
        self.now += 1
        dims, types, values = zip(*map(tensor, operands), strict=True) if operands else ((), (), ())
        args = {"External id": self.identity(), "Ev Idx": 0}
        if shapes:
            args |= {"Input Dims": list(dims), "Input type": list(types), "Concrete Inputs": list(values)}
        self.event("cpu_op", name, start, self.now - start, args)

    def identity(self):
        self.next += 1
        return self.next

    def kernel(self, name, duration=10, grid=(8, 1, 1), launched=True):
        def launch():
            correlation = self.identity()
            if launched:
                self.event("cuda_runtime", "cudaLaunchKernel", self.now, 0.5, {"correlation": correlation})
            self.gpu_work(name, duration, correlation, grid)
            self.now += 1

        return launch

    def gpu_work(self, name, duration, correlation, grid=(8, 1, 1)):
        args = {"device": 0, "stream": 7, "correlation": correlation, "grid": list(grid), "block": [128, 1, 1]}
        self.event("kernel", name, self.now + 1000, duration, args, thread=77)

    def captured(self, kernel=None, grid=(8, 1, 1)):
        """A launch while a graph is captured: no kernel runs. kernel: ROCm's traces name it."""

        def launch():
            told = {"kernel": kernel, "grid": list(grid)} if kernel else {}
            self.event("cuda_runtime", "cudaLaunchKernel", self.now, 0.5, {"correlation": self.identity()} | told)
            self.now += 1

        return launch

    def capture(self, *inside, annotation=None):
        start = self.now
        self.event("cuda_runtime", "cudaStreamBeginCapture", self.now + 0.1, 0.1, {"correlation": self.identity()})
        self.now += 1
        for each in inside:
            each()
        self.event("cuda_runtime", "cudaStreamEndCapture", self.now, 0.1, {"correlation": self.identity()})
        self.now += 1
        if annotation:
            self.event("user_annotation", annotation, start, self.now - start, {})

    def replay(self, *kernels, annotation=None):
        """kernels: (name, duration) or (name, duration, grid)."""
        correlation, start = self.identity(), self.now
        self.event("cuda_runtime", "cudaGraphLaunch", self.now + 0.1, 0.5, {"correlation": correlation})
        for name, duration, *grid in kernels:
            self.gpu_work(name, duration, correlation, *grid)
            self.now += duration
        self.now += 1
        if annotation:
            self.event("user_annotation", annotation, start, self.now - start, {})

    def write(self, path: Path):
        document = {"deviceProperties": [{"id": 0, "name": self.gpu}], "traceEvents": self.events}
        path.write_text(json.dumps(document), encoding="utf-8")
        return path
