"""What `derby pack` makes with torch: the safetensors of generated inputs, and each workload's cost."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.errors import DerbyError


def pack_blobs(catalog: Catalog, check: bool = False) -> list[str]:
    """Writes the blobs that are missing or stale, and the costs; with check, only says which costs are stale (blobs
    are not in git). Gives one line for each file. Definitions without a .py (a foreign dataset) are left alone.

    DerbyError when generate_inputs and a workload do not agree. ImportError without torch or safetensors.
    """
    from kernelderby.measure.worker.build import load_definition_module

    changes = []
    for definition in catalog.definitions.values():
        workloads = catalog.workloads(definition.name)
        if definition.source_path is None or not workloads:
            continue
        module = load_definition_module(definition)
        costs = {}
        for workload in workloads:
            tensors = _generated(definition, module, workload)
            if not check:
                changes += _write_blobs(catalog.root, definition, workload, tensors)
            costs[workload.uuid] = _cost(definition, module, workload, tensors)
        changes += _write_costs(catalog.workloads_path(definition.name), costs, check)
    return changes


def _generated(definition: Definition, module: ModuleType, workload: Workload) -> dict[str, Any]:
    """The generated tensors on the CPU: exactly those that the workload takes from a safetensors file."""
    import torch

    generate = getattr(module, definition.custom_inputs_entrypoint or "generate_inputs", None)
    values = {**definition.sizes(workload.axes), **workload.scalars, "seed": workload.seed}
    tensors = generate(values, torch.device("cpu")) if generate else {}
    in_files = {name for name, spec in workload.inputs.items() if spec["type"] == "safetensors"}
    if set(tensors) != in_files:
        odd = ", ".join(sorted(set(tensors) ^ in_files))
        raise DerbyError(f"{definition.source_path}: generate_inputs: workload {workload.uuid} and it do not agree on "
                         f"{odd}; write \"type\": \"safetensors\" for what it generates, and only for that")
    return tensors


def _write_blobs(root: Path, definition: Definition, workload: Workload, tensors: dict[str, Any]) -> list[str]:
    from safetensors import safe_open
    from safetensors.torch import save_file

    digest = hashlib.sha256(definition.source_path.read_bytes()).hexdigest()
    metadata = {"seed": str(workload.seed), "definition_sha256": digest}
    files: dict[Path, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        spec = workload.inputs[name]
        files.setdefault(root / spec["path"], {})[spec["tensor_key"]] = tensor
    changes = []
    for path, content in files.items():
        if path.is_file():
            with safe_open(path, framework="pt") as stored:
                if (stored.metadata() or {}).items() >= metadata.items() and set(stored.keys()) == set(content):
                    continue
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        save_file(content, unfinished, metadata=metadata)
        unfinished.replace(path)
        changes.append(f"{path}: generated inputs")
    return changes


def _cost(definition: Definition, module: ModuleType, workload: Workload, tensors: dict[str, Any]) -> dict[str, Any]:
    count = getattr(module, "count_cost", None)
    if count is None:
        raise DerbyError(f"{definition.source_path}: count_cost: is missing; add count_cost(axes, inputs)")
    return count(definition.sizes(workload.axes), {**tensors, **workload.scalars})


def _write_costs(path: Path, costs: dict[str, dict[str, Any]], check: bool) -> list[str]:
    """Puts each line's `cost`; lines that have it already stay as they are, byte by byte."""
    lines, stale = [], 0
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.strip():
            data = json.loads(line)
            cost = costs[data["workload"]["uuid"]]
            if data.get("cost") != cost:
                data["cost"] = cost
                line = json.dumps(data, ensure_ascii=False) + "\n"
                stale += 1
        lines.append(line)
    if not stale:
        return []
    if not check:
        path.write_text("".join(lines), encoding="utf-8")
    return [f"{path}: cost of {stale} workloads"]
