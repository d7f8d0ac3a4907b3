"""The FP8 MoE definition's module, JSON and workloads, and its inputs at SMALL_AXES."""

import importlib.util
import json
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
NAME = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
CONTRACT = json.loads((ROOT / "definitions" / "moe" / f"{NAME}.json").read_text(encoding="utf-8"))
WORKLOADS = [
    json.loads(line) for line in (ROOT / "workloads" / "moe" / f"{NAME}.jsonl").read_text(encoding="utf-8").splitlines()
]


def _load():
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "definitions" / "moe" / f"{NAME}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definition = _load()


def full_axes(**changes):
    """The definition's constant axes, and `changes`."""
    return {**{name: axis["value"] for name, axis in CONTRACT["axes"].items() if axis["type"] == "const"}, **changes}


def inputs_at(seed=0, **changes):
    """All inputs at SMALL_AXES with `changes`: the generated ones, and random fp8 in [-2, 2]."""
    size = {**definition.SMALL_AXES, "seed": seed, **changes}
    made, generator = definition.generate_inputs(size, "cpu"), torch.Generator().manual_seed(seed)
    inputs = {}
    for name, spec in CONTRACT["inputs"].items():
        if spec["shape"] is None:
            inputs[name] = size[name]
        elif name in made:
            inputs[name] = made[name]
        else:
            values = torch.randn(*(size[axis] for axis in spec["shape"]), generator=generator)
            inputs[name] = values.clamp(-2, 2).to(torch.float8_e4m3fn)
    return inputs
