"""The ceilings of one GPU: the best that several ways of reading, writing and multiplying reach on it, as it is.

    python benchmarks/ceilings.py --json ceilings.json      # under 100 s on one idle Hopper GPU (sm_90a)
    python benchmarks/ceilings.py --dry-run                 # no GPU: compiles ceilings.cu, shows the plan

Memory, in bytes moved per second over buffers of 4 GiB of random words: read (linear loads of 16 bytes, TMA boxes, bulk
copies), fill, copy (bytes read and written) and mixed (two reads, one write). Arithmetic, in flops per second on random
data: loops of wgmma over tiles that stay in shared memory, which is what the tensor cores can do under the GPU's power
cap, and large GEMMs of torch (fp8 tensor-wise, with and without fast accumulation), which is what a library reaches.
Each way is checked against torch first; its figure is the median of CUDA events around single launches. Clocks, power
and what throttles are read before, while and after: nothing is locked or set. And the time of an empty kernel and of
one that loads and stores 2 KB, launched by the host and replayed as a CUDA graph, after a flush of L2 as in `derby
bench`: no operator takes less than the second.

The last lines are the [measured] table for kernelderby/hardware/gpus/<gpu>.toml.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

import torch
from ceiling_ways import Plan, Way, WayFailed, compile_library

from kernelderby.hardware import TRAFFIC_KINDS, gpu_id
from kernelderby.measure.clock.timing import CUDA_EVENTS, find_protocol, make_timer
from kernelderby.measure.machine.environment import GpuSensors

SMI = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
READINGS = ("sm_mhz", "memory_mhz", "temperature_celsius", "power_watts")


@dataclass
class Result:
    """rate: work (bytes or flops of a launch) per second, by the median of the samples; None where problem says why."""

    kind: str
    name: str
    work: float
    rate: float | None = None
    samples_us: list[float] = field(default_factory=list)
    sensors: dict = field(default_factory=dict)
    problem: str = ""


class Sensors:
    """NVML's readings, or nvidia-smi's where nvidia-ml-py is missing."""

    def __init__(self) -> None:
        self._nvml = GpuSensors(f"GPU-{torch.cuda.get_device_properties(0).uuid}")

    def read(self) -> dict:
        if not self._nvml.problem:
            return self._nvml.read()
        command = ["nvidia-smi", "--id=0", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"]
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
            return dict(zip(READINGS, map(float, text.split(",")), strict=True))
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}

    def watch(self) -> Watch:
        return Watch(self)


class Watch:
    """Takes readings every 20 ms while it is entered; afterwards `summary` has medians, the highest power and what
    throttled."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors, self._stop, self._readings = sensors, threading.Event(), []
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._readings.append(self._sensors.read())
            self._stop.wait(0.02)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def summary(self) -> dict:
        found = {
            name: statistics.median(values)
            for name in READINGS
            if (values := [reading[name] for reading in self._readings if name in reading])
        }
        watts = [reading["power_watts"] for reading in self._readings if "power_watts" in reading]
        throttled = sorted({reason for reading in self._readings for reason in reading.get("throttled_by", [])})
        return {**found, **({"most_watts": max(watts)} if watts else {}), "throttled_by": throttled}


def measure(way: Way, sensors: Sensors) -> Result:
    """At least 10 launches and way.seconds of them. A failure becomes the result's problem."""
    result = Result(way.kind, way.name, way.work)
    try:
        way.prepare()
        way.check()
        torch.cuda.synchronize()
        with sensors.watch() as watch:
            begin = time.monotonic()
            while len(result.samples_us) < 10 or time.monotonic() - begin < way.seconds:
                result.samples_us += launches(way, 5)
        result.sensors = watch.summary
        result.rate = way.work / statistics.median(result.samples_us) * 1e6
    except (WayFailed, RuntimeError) as error:
        result.problem = str(error).splitlines()[0]
    return result


def launches(way: Way, count: int) -> list[float]:
    """us of each, by events; launched one behind the other."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in events:
        start.record()
        way.run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def small_times(plan: Plan) -> dict[str, dict]:
    """Kernel -> medians in us of 50 calls, launched by the host and replayed, by protocol: CUPTI spans and events."""
    device = torch.device("cuda", 0)
    best, note = find_protocol(device)
    found: dict[str, dict] = {"note": note} if note else {}
    for name, arguments in (("empty", ()), ("load_store", ("one", "to"))):
        plan.call(name, *arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan.call(name, *arguments)
        calls = {
            "eager": lambda _, name=name, arguments=arguments: plan.call(name, *arguments),
            "graph": lambda _, graph=graph: graph.replay(),
        }
        found[name] = {}
        for protocol in dict.fromkeys((best, CUDA_EVENTS)):
            try:
                timer = make_timer(protocol, device)
                found[name][protocol] = {
                    how: statistics.median(timer.spans(call, 50).spans_us) for how, call in calls.items()
                }
            except Exception as error:  # whatever CUPTI or its bindings raise; the other protocol may work  # noqa: BLE001
                found["note"] = f"{protocol}: {type(error).__name__}: {error}"
    return found


def best_of(results: list[Result]) -> dict[str, Result]:
    best: dict[str, Result] = {}
    for result in results:
        if result.rate and (result.kind not in best or result.rate > best[result.kind].rate):
            best[result.kind] = result
    return best


def toml(best: dict[str, Result], small: dict, source: str, day: str) -> str:
    """The [measured] table of a hardware file; ways that gave no figure are left out."""
    traffic = {kind: best[kind] for kind in TRAFFIC_KINDS if kind in best}
    lines = ["[measured]"]
    if traffic:
        lines.append(f"memory_bytes_per_second = {max(one.rate for one in traffic.values()) / 1e12:.3f}e12")
    lines += [f"source = {json.dumps(source)}", f'date = "{day}"']
    tables = {
        "traffic_bytes_per_second": (traffic, 3),
        "flops_per_second": ({kind: one for kind, one in best.items() if kind not in TRAFFIC_KINDS}, 1),
    }
    for table, (rates, digits) in tables.items():
        if rates:
            lines += ["", f"[measured.{table}]"]
            lines += [f"{kind} = {one.rate / 1e12:.{digits}f}e12  # {one.name}" for kind, one in rates.items()]
    protocols = small.get("load_store", {})
    if protocols:
        protocol, times = next(iter(protocols.items()))
        lines += ["", f"[measured.empty_kernel_us]  # {protocol}, a kernel that loads and stores 2 KB"]
        lines += [f"{how} = {us:.2f}" for how, us in times.items()]
    return "\n".join(lines)


def line(result: Result) -> str:
    if result.rate is None:
        return f"{result.kind:>14}  {'-':>8}         {result.name}: {result.problem}"
    sensors = result.sensors
    state = ", ".join(
        [
            *(
                f"{sensors[name]:.0f} {unit}"
                for name, unit in (("sm_mhz", "MHz"), ("most_watts", "W"))
                if name in sensors
            ),
            *sensors.get("throttled_by", []),
        ]
    )
    unit = "TB/s" if result.kind in TRAFFIC_KINDS else "TFLOP/s"
    return f"{result.kind:>14}  {result.rate / 1e12:8.3f} {unit:<7} {result.name}  ({state})"


def estimate(ways: list[Way]) -> float:
    """Seconds: launches, and a guess for compiling, preparing and checking."""
    return 15 + sum(way.seconds + 0.3 for way in ways)


def run(plan: Plan, limit: float) -> tuple[list[Result], dict, dict]:
    """Results in the order of the plan, times of small kernels, and readings before and after. A launch that leaves
    the GPU in error ends it; what was measured stays."""
    begin, sensors = time.monotonic(), Sensors()
    readings = {"before": sensors.read()}
    small: dict = {}
    results: list[Result] = []
    try:
        plan.allocate()
        small = small_times(plan)
        memory = plan.memory_ways()
        for number, way in enumerate(ways := [*plan.loops(), *plan.gemms(), *memory]):
            if time.monotonic() - begin > limit:
                results += [
                    Result(each.kind, each.name, each.work, problem=f"not measured: {limit:.0f} s were up")
                    for each in ways[number:]
                ]
                break
            results.append(measure(way, sensors))
            print(line(results[-1]), flush=True)
            way.release()
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"ceilings: ended early: {str(error).splitlines()[0]}", file=sys.stderr)
        small.setdefault("ended_early", str(error).splitlines()[0])
    readings["after"] = sensors.read()
    return results, small, readings


def report(results: list[Result], small: dict, readings: dict, path: Path | None) -> None:
    name = torch.cuda.get_device_name(0)
    day = date.today().isoformat()
    best = best_of(results)
    measured = sum(result.rate is not None for result in results)
    source = (
        f"benchmarks/ceilings.py on one {name}, torch {torch.__version__}, CUDA {torch.version.cuda}: the best "
        f"of {measured} ways, medians, power and clocks as they were"
    )
    if "note" in small:
        print(f"ceilings: {small['note']}")
    print("\nbest of each kind")
    print(*(line(one) for one in best.values()), sep="\n")
    for kernel in ("empty", "load_store"):
        for protocol, times in small.get(kernel, {}).items():
            print(f"{kernel:>14}  " + ", ".join(f"{how} {us:.2f} us" for how, us in times.items()) + f"  ({protocol})")
    table = toml(best, small, source, day)
    print(f"\nkernelderby/hardware/gpus/{gpu_id(name)}.toml:\n\n{table}")
    if path:
        path.write_text(
            json.dumps(
                {
                    "gpu": name,
                    "source": source,
                    "date": day,
                    "readings": readings,
                    "small": small,
                    "best": {kind: one.name for kind, one in best.items()},
                    "results": [asdict(one) for one in results],
                    "toml": table,
                },
                indent=1,
            )
            + "\n"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where all samples go")
    parser.add_argument("--gib", type=int, default=4, help="of each of three buffers, at least 2 (default 4)")
    parser.add_argument("--limit", type=float, default=95, help="seconds after which no further way is begun")
    parser.add_argument("--dry-run", action="store_true", help="compile and show the plan, without a GPU")
    arguments = parser.parse_args()
    if arguments.gib < 2:
        raise SystemExit("ceilings: --gib: at least 2, so that caches do not count")
    if not arguments.dry_run and not torch.cuda.is_available():
        raise SystemExit("ceilings: no CUDA GPU can be used; --dry-run shows the plan without one")
    if not arguments.dry_run and torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit(f"ceilings: made for compute capability 9.0, not for {torch.cuda.get_device_name()}")
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        raise SystemExit(f"ceilings: --json: {arguments.json.parent} is no folder")
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(folder)
        processors = 132 if arguments.dry_run else torch.cuda.get_device_properties(0).multi_processor_count
        plan = Plan(library, arguments.gib << 30, processors)
        ways = [*plan.loops(), *plan.gemms(), *plan.memory_ways()]
        print(f"{len(ways)} ways, about {estimate(ways):.0f} s, at most {arguments.limit:.0f} and a few")
        if arguments.dry_run:
            print(*(f"{way.kind:>14}  {way.work:.3e} a launch, {way.seconds} s: {way.name}" for way in ways), sep="\n")
            return 0
        results, small, readings = run(plan, arguments.limit)
        report(results, small, readings, arguments.json)
    return 1 if "ended_early" in small or any(result.problem for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
