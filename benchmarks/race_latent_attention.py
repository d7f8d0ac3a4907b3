"""Latent decode, in turn on one GPU, at shapes that no file holds: `python benchmarks/race_latent_attention.py`.

Draws serving batches by a seed (query heads of DeepSeek-V3 and Kimi K2 at tensor parallel 1 to 8 and odd counts, 1 to
256 sequences, equal or ragged contexts to 128k), checks every solution against float32 on four sequences, and times
calls captured as CUDA graphs: one after the other, 256 MB written before each, events around the replay less those of a
kernel that adds to one number. Prints a line a shape, then how many times as fast as the best library each is:
geometric mean and least. Records nothing; `derby bench` does that.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernelderby.catalog import Catalog  # noqa: E402
from kernelderby.measure.worker.build import load_solution  # noqa: E402

DENSE, PAGED, BLOCK = "mla_decode_attention", "mla_paged_decode_attention", 64
SOLUTIONS = {
    DENSE: {
        "fa3": "vllm_mla_decode_attention",
        "flashmla": "flashmla_mla_decode_attention",
        "derby": "derby_mla_decode_attention_sm90",
        "triton": "derby_mla_decode_attention_triton",
    },
    PAGED: {
        "fa3": "vllm_mla_paged_decode_attention",
        "flashmla": "flashmla_mla_paged_decode_attention",
        "derby": "derby_mla_paged_decode_attention_sm90",
    },
}
LIBRARIES = ("fa3", "flashmla")
SM_SCALE = 192**-0.5


def draw_shapes(count: int, seed: int) -> list[tuple[int, int, int, bool]]:
    """(sequences, query heads, longest context, whether lengths differ), the cache at most 6 GB."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        heads = draw.choice([16, 16, 32, 32, 64, 64, 128, 128, draw.randint(1, 128)])
        batch, longest = round(2 ** draw.uniform(0, 8)), round(2 ** draw.uniform(7, 17))
        if batch * longest * 1152 <= 6e9:
            found.append((batch, heads, longest, draw.random() < 2 / 3))
    return found


def make_inputs(paged: bool, batch: int, heads: int, longest: int, ragged: bool) -> tuple:
    query = torch.randn(batch, heads, 576, device="cuda", dtype=torch.bfloat16)
    columns = -(-longest // BLOCK)
    cache = torch.empty(batch * columns, BLOCK, 576, device="cuda", dtype=torch.bfloat16)
    for block in cache.split(4096):
        block.normal_()
    lengths = torch.randint(1, longest + 1, (batch,)) if ragged else torch.full((batch,), longest)
    lengths = lengths.to("cuda", torch.int32)
    if not paged:
        return query, cache.view(batch, columns * BLOCK, 576), lengths, longest, SM_SCALE
    table = torch.randperm(batch * columns, device="cuda").view(batch, columns).int()
    return query, cache, table, lengths, longest, SM_SCALE


def largest_error(inputs: tuple, output: torch.Tensor) -> float:
    """Norm of the error over the norm of the result, the largest of four sequences."""
    query, cache, *table, lengths, _, _ = inputs
    worst = 0.0
    for sequence in {0, len(query) - 1, int(lengths.argmin()), int(lengths.argmax())}:
        length = int(lengths[sequence])
        keys = cache[table[0][sequence].long()].flatten(0, 1) if table else cache[sequence]
        keys = keys[:length].float()
        expected = ((query[sequence].float() * SM_SCALE) @ keys.t()).softmax(-1) @ keys[:, :512]
        worst = max(worst, float((output[sequence].float() - expected).norm() / expected.norm()))
    return worst


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def median_times(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int, scratch: torch.Tensor) -> dict[str, float]:
    """Microseconds."""
    pairs: dict[str, list] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            scratch.zero_()
            start.record()
            graph.replay()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: 1e3 * statistics.median(start.elapsed_time(end) for start, end in each) for name, each in pairs.items()
    }


def contenders(catalog: Catalog, operator: str) -> dict[str, Callable]:
    """Name -> function of inputs and output. `workers`: the dense solution without its clusters."""
    found: dict[str, Callable] = {}
    for name, solution in SOLUTIONS[operator].items():
        found[name] = load_solution(catalog.definition(operator), catalog.solution(solution))
        if name == "derby" and operator == DENSE:
            module = sys.modules[found[name].__module__]
            found["workers"] = functools.partial(module.run_with, {"workers": 1})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--paged", action="store_true", help="caches in blocks of 64 tokens")
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    operator = PAGED if options.paged else DENSE
    calls = contenders(Catalog.open(ROOT), operator)
    scratch = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    one = torch.zeros(1, device="cuda")
    empty = captured(lambda: one.add_(1))
    ratios: dict[str, list[float]] = {}
    for batch, heads, longest, ragged in draw_shapes(options.shapes, options.seed):
        torch.manual_seed(batch * heads + longest)
        inputs = make_inputs(options.paged, batch, heads, longest, ragged)
        output = torch.empty(batch, heads, 512, device="cuda", dtype=torch.bfloat16)
        graphs, errors = {"empty": empty}, {}
        for name, call in calls.items():
            try:
                call(*inputs, output.fill_(torch.nan))
                errors[name] = largest_error(inputs, output)
                graphs[name] = captured(functools.partial(call, *inputs, output))
            except (RuntimeError, ValueError) as error:
                print(f"{name}: {str(error).splitlines()[0]}")
        times = median_times(graphs, options.rounds, scratch)
        floor = times.pop("empty")
        times = {name: max(time - floor, 0.1) for name, time in times.items()}
        best = min((times[name] for name in LIBRARIES if name in times), default=math.nan)
        for name, time in times.items():
            ratios.setdefault(name, []).append(best / time)
        cells = "  ".join(f"{name} {time:.1f} us ({errors[name]:.0e})" for name, time in times.items())
        print(f"{batch} x {heads} heads, {'up to' if ragged else ''} {longest}: {cells}", flush=True)
        del inputs, graphs
    for name, each in ratios.items():
        print(
            f"{name}: {math.exp(statistics.fmean(map(math.log, each))):.3f}, least {min(each):.3f}, {len(each)} shapes"
        )


if __name__ == "__main__":
    main()
