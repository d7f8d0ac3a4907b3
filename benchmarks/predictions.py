"""What today's rows predict for the decoders whose gains were measured: `python benchmarks/predictions.py`, no GPU.

The steps of `derby serve-bench` that docs/serving.md has: the libraries' time and the gain as an H200 measured them,
the gain that the rows predict beside that time, with its doubt, and the operators that the doubt is of.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from kernelderby.api.decoder import decoder_sizes
from kernelderby.catalog import Catalog
from kernelderby.deploy.contents import NAME, contents
from kernelderby.deploy.winners import winners
from kernelderby.measure.decoder.layers import Decoder, LatentDecoder, LatentSizes, StepLoad
from kernelderby.measure.decoder.prediction import predicted
from kernelderby.measure.decoder.variants import calls_of

# NVIDIA H200, 2026-11-30, 17:50 UTC, Qwen3-30B-A3B's and DeepSeek-V3's 18:05 to 18:09.
MEASURED = (  # model, layers, load, us of the libraries' step, gain of the winners in per cent
    ("qwen3-30b-a3b", 3, StepLoad(1, 1, 1024), 484.3, 8.3),
    ("qwen3-30b-a3b", 3, StepLoad(16, 16, 1024), 948.6, 8.0),
    ("qwen3-30b-a3b", 3, StepLoad(64, 64, 1024), 1398, 3.6),
    ("qwen3-8b", 4, StepLoad(1, 1, 1024), 920.8, 4.0),
    ("qwen3-8b", 4, StepLoad(16, 16, 1024), 1105, 4.4),
    ("qwen3-8b", 4, StepLoad(64, 64, 1024), 1342, 1.9),
    ("qwen3-8b", 4, StepLoad(2048, 1, 2048), 6201, 4.4),
    ("deepseek-v3", 2, StepLoad(1, 1, 1024), 1033, 8.6),
    ("deepseek-v3", 2, StepLoad(16, 16, 1024), 1615, 4.5),
)


def main() -> None:
    catalog = Catalog.open(Path(__file__).resolve().parent.parent)
    files = contents(winners(catalog, list(catalog.definitions.values()), "h200"))
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files.items():
            (Path(folder) / NAME / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / NAME / path).write_bytes(data)
        sys.path.insert(0, folder)
        package = importlib.import_module(NAME)
    for model, layers, load, step, measured in MEASURED:
        found = predicted(package, calls_of(without_memory(model, layers, load)), step)
        low, middle, high = (gain(step, found.saved_us + side * found.doubt_us) for side in (-1, 0, 1))
        print(
            f"{model:14} {load.tokens:5} tokens  measured {measured:4.1f} %  predicted {middle:5.1f} % "
            f"({low:.1f} to {high:.1f}){'' if low <= measured <= high else '  not held'}"
        )
        for each in sorted(found.operators, key=lambda each: -each.doubt_us)[:3]:
            shares = (100 * us / step for us in (each.library_us, each.saved_us, each.doubt_us))
            of_step, saves, doubt = (f"{share:.1f} %" for share in shares)
            row = f"row {each.away:4.1f} octaves off" if each.away else "measured"
            print(f"    {each.name:28} {row:20} {of_step} of the step, saves {saves}, give or take {doubt}")


def gain(step: float, saved: float) -> float:
    return 100 * (step / max(step - saved, 1.0) - 1)


def without_memory(model: str, layers: int, load: StepLoad) -> Decoder:
    """A decoder of which only the sizes are used."""
    sizes = decoder_sizes(Path(model), layers)
    made: Any = object.__new__(LatentDecoder if isinstance(sizes, LatentSizes) else Decoder)
    made.sizes, made.load = sizes, load
    made.table = torch.empty(load.sequences, -(-load.context // made.block), device="meta")
    if isinstance(sizes, LatentSizes):
        made._weight = lambda *shape: torch.empty(shape, device="meta")
        made._ones = lambda size: torch.empty(size, device="meta")
        made._routing = lambda: None
        made._codes = lambda shape: (None, made._ones((*shape[:-2], shape[-2] // 128, shape[-1] // 128)))
        made.layers = [made._layer()]
    found: Decoder = made
    return found


if __name__ == "__main__":
    main()
