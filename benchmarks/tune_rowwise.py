"""A wider search for the row-wise family than `derby tune` makes: hundreds of tiles, streaming and persistent ones too.

    python benchmarks/tune_rowwise.py rms_norm layer_norm --processes 32 --seconds 60

`derby tune` times a dozen candidates a shape as protocol 2 does, which would take too long for hundreds. Here processes
without a GPU first compile every configuration into Triton's cache. Then each shape is searched in stages: all tiles,
the best four of them streaming, and persistent forms of good tiles with several numbers of programs. The best
configurations for all shapes of a tuning key are timed again in turn, and the key gets the one with the least geometric
mean if that gains 1 % (2 % below 3 us) over its present one. Times: CUDA events around the replay of a graph, L2
flushed with 256 MB before each. Every configuration is compared with the reference before it is timed. Writes the
tuned.py beside the solutions; `derby pack` then, and `derby bench`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Catalog, Workload
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import compare, reference_outputs
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker, shape_of, torch_dtype
from kernelderby.measure.tune import table
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

CHECKOUT = Path(__file__).resolve().parent.parent
# Tensors of a row that lie in registers together; 0: the operator reduces no row.
HELD = {
    "rms_norm": 1,
    "fused_add_rms_norm": 2,
    "layer_norm": 2,
    "l2_norm": 1,
    "gated_rms_norm": 2,
    "fp8_dynamic_per_token_quant": 1,
    "per_token_group_quant_fp8": 1,
    "fused_rmsnorm_quant": 2,
    "silu_and_mul": 0,
    "moe_sum_reduce": 0,
}
GROUP = 128  # of per_token_group_quant_fp8
VECTOR_WARP = 256  # 2-byte numbers that a warp reads at once
MULTIPROCESSORS = 132
LARGEST = 4_500_000_000  # bytes of a workload that is searched
Config = dict[str, Any]


def config(rows: int, chunk: int, warps: int, stages: int = 0, per_sm: int = 0, stream: str = "") -> Config:
    return {"chunk": chunk, "per_sm": per_sm, "rows": rows, "stages": stages, "stream": stream, "warps": warps}


def text(one: Config) -> str:
    return json.dumps(one, sort_keys=True)


def size_of(operator: str, axes: dict[str, int]) -> tuple[int, int]:
    """Rows and columns as the kernel sees them."""
    if operator == "per_token_group_quant_fp8":
        return axes["num_tokens"] * axes["num_groups"], GROUP
    rows = axes["num_rows"] if operator == "gated_rms_norm" else axes["num_tokens"]
    return rows, axes["intermediate_size" if operator == "silu_and_mul" else "hidden_size"]


def row_tiles(held: int, columns: int) -> list[Config]:
    """Tiles of whole rows that fit into registers and waste few lanes."""
    found = []
    for chunk in (128, 256, 512, 1024, 2048, 4096, 8192):
        parts = -(-columns // chunk)
        if parts > 9 or parts * chunk > max(1.34 * columns, 128):
            continue
        for warps in (1, 2, 4, 8, 16):
            for rows in (1, 2, 4, 8, 16, 32):
                each = rows * chunk / (warps * VECTOR_WARP)  # 16-byte accesses of a thread for a part
                wide = rows > 1 and (rows * columns > 12000 or (columns > 1000 and rows > 4 and chunk > 256))
                if 0.5 <= each <= 4 and each * parts * held <= 16 and not wide and (warps < 16 or each * parts <= 3):
                    found.append(config(rows, chunk, warps))
    return found


def map_tiles(operator: str, columns: int) -> list[Config]:
    """Tiles of operators without a reduction; rows 0: across the ends of rows."""
    flat = operator == "silu_and_mul"
    found = []
    for warps in (1, 2, 4, 8):
        for each in (1, 2, 4) if flat else (0.5, 1, 2):
            numbers = int(each * warps * VECTOR_WARP)
            found += [
                config(numbers // chunk, chunk, warps)
                for chunk in (128, 256, 512, 1024, 2048, 4096)
                if columns % chunk == 0 and chunk <= numbers <= 32 * chunk
            ]
            found += [config(0, numbers, warps)] * flat
    return found


def search_space(operator: str, columns: int) -> tuple[list[Config], list[Config], list[Config]]:
    """Plain tiles, the same streaming, and persistent ones (per_sm 1 stands for any)."""
    held = HELD[operator]
    plain = row_tiles(held, columns) if held else map_tiles(operator, columns)
    streaming = [{**one, "stream": stream} for one in plain for stream in ("loads", "both")]
    lasting = [
        {**one, "stages": stages, "per_sm": 1, "stream": stream}
        for one in plain
        for stages, stream in ((2, ""), (3, ""), (3, "loads"), (4, ""))
        if one["rows"] and one["warps"] <= 8 and 1 <= accesses(one, operator, columns) * max(held, 2) <= 10
    ]
    return plain, streaming, lasting


def accesses(one: Config, operator: str, columns: int) -> float:
    """16-byte accesses of a thread and tensor."""
    return one["rows"] * (columns if HELD[operator] else one["chunk"]) / (one["warps"] * VECTOR_WARP)


def programs(one: Config, operator: str, rows: int, columns: int) -> list[int]:
    """Values of per_sm worth trying: as many as registers allow, parts of that, and the numbers that make two or
    three rounds."""
    fitting = max(1, int(min(64, 2048 / (28 + 10 * max(HELD[operator], 2) * accesses(one, operator, columns)))))
    full = max(1, fitting // one["warps"])
    tiles = math.ceil(rows / one["rows"]) * (1 if HELD[operator] else columns // one["chunk"])
    wanted = {full, *(max(1, round(full * part)) for part in (0.5, 0.75, 1.5))}
    wanted |= {math.ceil(tiles / MULTIPROCESSORS / rounds) for rounds in (2, 3)}
    return [count for count in sorted(wanted) if count <= 2 * full and tiles > count * MULTIPROCESSORS]


class Shape:
    """One workload. time_us(config, calls) -> median us, or None if it is wrong or does not run."""

    def __init__(
        self, operator: str, workload: Workload, chosen: Config, time_us: Callable[[Config, int], float | None]
    ) -> None:
        self.operator, self.workload, self.time_us, self.chosen = operator, workload, time_us, chosen
        self.rows, self.columns = size_of(operator, workload.axes)
        self.times: dict[str, list[float]] = {}

    def measure(self, one: Config, calls: int) -> float | None:
        us = self.time_us(one, calls)
        if us is not None:
            self.times.setdefault(text(one), []).append(us)
        return us

    def best(self, count: int, stages: bool | None = None) -> list[Config]:
        ranked = [json.loads(one) for one in sorted(self.times, key=lambda one: min(self.times[one]))]
        return [one for one in ranked if stages is None or bool(one["stages"]) is stages][:count]

    def search(self) -> list[Config]:
        """The six best of all stages."""
        plain, streaming, lasting = search_space(self.operator, self.columns)
        for one in [self.chosen, *plain]:
            self.measure(one, 5)
        good = [{**one, "stream": ""} for one in self.best(4, stages=False)]
        later = [one for one in streaming if {**one, "stream": ""} in good]
        rank = {one: min(times) for one, times in self.times.items()}
        lasting.sort(key=lambda one: rank.get(text({**one, "stages": 0, "per_sm": 0, "stream": ""}), math.inf))
        for one in lasting[:16]:
            later += [{**one, "per_sm": count} for count in programs(one, self.operator, self.rows, self.columns)]
        for one in later:
            self.measure(one, 5)
        return self.best(6)


def pick(shapes: Sequence[Shape]) -> tuple[Config, float]:
    """The fastest configuration over all shapes of one tuning key, and its gain over the key's present one."""
    union = {text(one): one for shape in shapes for one in [shape.chosen, *shape.search()]}
    finals: dict[str, list[list[float]]] = {one: [[] for _ in shapes] for one in union}
    for _ in range(3):
        for one, values in union.items():
            for shape, found in zip(shapes, finals[one], strict=True):
                if (us := shape.measure(values, 10)) is not None:
                    found.append(us)
    means = {
        one: statistics.geometric_mean([statistics.median(times) for times in found])
        for one, found in finals.items()
        if all(found)
    }
    now, best = text(shapes[0].chosen), min(means, key=lambda one: means[one])
    gain = means[now] / means[best]
    enough = gain > (1.02 if means[now] < 3 else 1.01)
    return (union[best], gain) if enough else (shapes[0].chosen, 1.0)


# On the GPU ----------------------------------------------------------------------------------------------------------


class Events:
    """Times the replay of a graph by events, behind a flush of L2 and a pause in which its writes settle."""

    def __init__(self) -> None:
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()

    def captured(self, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            call()
            torch.cuda.synchronize()
            graph.capture_begin()
            call()
            graph.capture_end()
        return graph

    def median_us(self, graph: torch.cuda.CUDAGraph, calls: int) -> float:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in pairs:
            self.flush.zero_()
            torch.cuda._sleep(20000)
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs)


def on_gpu(catalog: Catalog, operator: str, module: ModuleType, workload: Workload, events: Events) -> Shape:
    definition = catalog.definition(operator)
    case, reference = case_of_workload(definition, workload), load_definition_module(definition)
    inputs = InputMaker(definition, reference, case, torch.device("cuda"), CHECKOUT).make()
    outputs = {
        name: torch.empty(shape_of(spec, case.sizes), dtype=torch_dtype(spec.dtype), device="cuda")
        for name, spec in definition.outputs.items()
    }
    expected, graphs = reference_outputs(definition, reference, inputs), {}

    def time_us(one: Config, calls: int) -> float | None:
        if text(one) not in graphs:
            for tensor in outputs.values():
                tensor.view(torch.uint8).fill_(0xFF)
            graphs[text(one)] = None
            try:
                module.run_with(one, *inputs.values(), *outputs.values())
                if compare(definition, outputs, expected).status is Status.PASSED:
                    graphs[text(one)] = events.captured(
                        lambda: module.run_with(one, *inputs.values(), *outputs.values())
                    )
            except Exception as error:  # too much shared memory, too many registers  # noqa: BLE001
                print(f"{operator} {text(one)}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        graph = graphs[text(one)]
        return None if graph is None else events.median_us(graph, calls)

    return Shape(operator, workload, module.choose(*inputs.values()), time_us)


def loaded(catalog: Catalog, operator: str) -> ModuleType:
    run = load_solution(catalog.definition(operator), catalog.solution(f"derby_{operator}"))
    return sys.modules[run.__module__]


def tune(catalog: Catalog, operators: Sequence[str], seconds: float) -> None:
    end, events = time.monotonic() + seconds, Events()
    for operator in operators:
        module, found = loaded(catalog, operator), {}
        keys: dict[str, list[Workload]] = {}
        for workload in catalog.workloads(operator):
            if workload.cost is None or workload.cost.needed() <= LARGEST:
                keys.setdefault(str(module.tuning_key(*meta(catalog, operator, workload)[0])), []).append(workload)
        for key, workloads in keys.items():
            if time.monotonic() > end:
                print(f"{operator} {key}: no time left, stays as it is")
                continue
            found[key], gain = pick([on_gpu(catalog, operator, module, one, events) for one in workloads])
            print(f"{operator} {key}: {gain:.3f} times as fast: {text(found[key])}", flush=True)
        solution = catalog.solution(f"derby_{operator}")
        if solution.folder is None:
            raise DerbyError(f"derby_{operator}: has no folder for its table")
        path = solution.folder / table.NAME
        today = datetime.date.today().isoformat()
        table.write(path, solution.name, table.merged(table.read(path), torch.cuda.get_device_name(), today, found))


# Ahead of time -------------------------------------------------------------------------------------------------------


def meta(catalog: Catalog, operator: str, workload: Workload) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs without memory."""
    definition = catalog.definition(operator)
    case = case_of_workload(definition, workload)

    def tensors(specs: dict[str, Any]) -> list[Any]:
        return [
            case.scalars[name]
            if spec.shape is None
            else torch.empty(shape_of(spec, case.sizes), dtype=torch_dtype(spec.dtype), device="meta")
            for name, spec in specs.items()
        ]

    return tensors(definition.inputs), tensors(definition.outputs)


def compile_part(catalog: Catalog, operators: Sequence[str], part: int, parts: int) -> None:
    """Every parts-th configuration into Triton's cache, for Hopper. Needs no GPU and touches none."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    class Hopper:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    triton.runtime.driver.set_active(Hopper())
    launch = JITFunction.run
    JITFunction.run = lambda self, *values, grid, warmup, **given: launch(
        self, *values, grid=grid, warmup=True, **given
    )
    number, seen = 0, set()
    for operator in operators:
        module = loaded(catalog, operator)
        for workload in catalog.workloads(operator):
            columns = size_of(operator, workload.axes)[1]
            inputs, outputs = meta(catalog, operator, workload)
            for one in [config for space in search_space(operator, columns) for config in space]:
                if (operator, columns, text(one)) in seen:
                    continue
                seen.add((operator, columns, text(one)))
                number += 1
                if number % parts == part:
                    module.run_with(one, *inputs, *outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="+", choices=sorted(HELD))
    parser.add_argument("--processes", type=int, default=8, help="that compile")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the GPU; what is left over stays as it is")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)  # of the compiling processes: this one
    arguments = parser.parse_args()
    catalog = Catalog.open(CHECKOUT)
    if arguments.part is not None:
        compile_part(catalog, arguments.operators, arguments.part, arguments.processes)
        return
    command = [sys.executable, __file__, *arguments.operators, "--processes", str(arguments.processes), "--part"]
    started = [subprocess.Popen([*command, str(part)]) for part in range(arguments.processes)]
    if any([process.wait() for process in started]):  # noqa: C419 (every one is waited for)
        raise DerbyError("a compiling process failed; see above")
    tune(catalog, arguments.operators, arguments.seconds)


if __name__ == "__main__":
    try:
        main()
    except DerbyError as error:
        raise SystemExit(f"tune_rowwise: {error}") from None
