"""The part of `derby pack` that needs torch: the safetensors of generated inputs, and each workload's cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.definition import Uncountable, blamed_on, given_by, load_definition_module
from kernelderby.measure.judge.inputs import read_tensor
from kernelderby.rows.measurement import Cost
from kernelderby.store.counts import counted
from kernelderby.store.fields import convert, read_text
from kernelderby.store.files import inside, read_bytes, write_whole

ChangesOf = Callable[[Catalog, Definition, list[Workload], bool], list[str]]


def pack_blobs(
    catalog: Catalog,
    check: bool = False,
    left_out: Callable[[str], None] | None = None,
    run_by: ChangesOf | None = None,
) -> list[str]:
    """Writes the blobs that are missing or stale, and the costs; with check, only says which costs are stale (blobs
    are not in git). Gives one line for each file. Of definitions without a .py (a foreign dataset) the costs that are
    missing are counted, from their reference.

    What is wrong with a definition's code is told to left_out and the definition passed over; without it the DerbyError
    is raised. ImportError without torch or safetensors. run_by: what runs a definition's code; without it this
    process does.
    """
    of_definition = run_by or changes_of
    changes = []
    for definition in catalog.definitions.values():
        workloads = catalog.workloads(definition.name)
        if definition.source_path is None:  # whoever made the set need not have counted anything
            workloads = [] if check else [workload for workload in workloads if workload.cost is None]
        if not workloads:
            continue
        try:
            changes += of_definition(catalog, definition, workloads, check)
        except DerbyError as error:
            if left_out is None:
                raise
            left_out(str(error))
    return changes


def changes_of(catalog: Catalog, definition: Definition, workloads: list[Workload], check: bool) -> list[str]:
    import safetensors.torch  # noqa: F401 - with torch: what is missing here is no fault of the definition

    changes: list[str] = []
    costs: dict[str, dict[str, Any]] = {}
    uncounted: list[str] = []
    with blamed_on(definition, "does not load:"):
        module = load_definition_module(definition)
    for workload in workloads:
        if definition.source_path is None:
            tensors = _fetched(catalog.root, workload)
        else:
            with blamed_on(definition, f"generate_inputs: workload {workload.uuid}:"):
                tensors = _generated(definition, module, workload)
            if not check:
                changes += _write_blobs(catalog.root, definition, workload, tensors)
        try:
            with blamed_on(definition, f"count_cost: workload {workload.uuid}:"):
                costs[workload.uuid] = count(definition, module, workload, tensors, definition.sizes(workload.axes))
        except Uncountable as error:
            uncounted.append(str(error))
    if uncounted and not check:
        changes.append(
            f"{definition.place}: {counted(len(uncounted), 'workload has', 'workloads have')} no cost, so no S: "
            f"{uncounted[0]}"
        )
    return changes + _write_costs(catalog.workloads_path(definition.name), costs, check)


def _fetched(root: Path, workload: Workload) -> dict[str, Any]:
    """The tensors of a foreign workload that lie in its files; without those that were not fetched."""
    found = {}
    for name, spec in workload.inputs.items():
        if spec["type"] == "safetensors" and (root / spec["path"]).is_file():
            found[name] = read_tensor(root, spec)
    return found


def _generated(definition: Definition, module: ModuleType, workload: Workload) -> dict[str, Any]:
    """The generated tensors on the CPU: exactly those that the workload takes from a safetensors file."""
    tensors = generate(definition, module, workload, definition.sizes(workload.axes))
    in_files = {name for name, spec in workload.inputs.items() if spec["type"] == "safetensors"}
    if set(tensors) != in_files:
        odd = ", ".join(sorted(set(tensors) ^ in_files))
        raise DerbyError(
            f"{definition.source_path}: generate_inputs: workload {workload.uuid} and it do not agree on "
            f'{odd}; write "type": "safetensors" for what it generates, and only for that'
        )
    return tensors


def generate(definition: Definition, module: ModuleType, workload: Workload, sizes: dict[str, int]) -> dict[str, Any]:
    """What generate_inputs gives on the CPU; nothing without one. sizes: of every axis. What it raises goes through."""
    make = getattr(module, definition.custom_inputs_entrypoint or "generate_inputs", None)
    values = {**sizes, **workload.scalars, **workload.generator, "seed": workload.seed}
    found = make(values, torch.device("cpu")) if make else {}
    return dict(given_by(definition, "generate_inputs", found, found))


def _write_blobs(root: Path, definition: Definition, workload: Workload, tensors: dict[str, Any]) -> list[str]:
    from safetensors.torch import save

    digest = hashlib.sha256(read_bytes(definition.place)).hexdigest()
    metadata = {"seed": str(workload.seed), "definition_sha256": digest}
    files: dict[Path, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        spec = workload.inputs[name]
        where = f"{definition.name}: workload {workload.uuid}: inputs.{name}.path"
        files.setdefault(inside(root, spec["path"], where), {})[spec["tensor_key"]] = tensor
    changes = []
    for path, content in files.items():
        if path.suffix != ".safetensors":  # it would replace what lies there
            raise DerbyError(f"{path}: is no name of a .safetensors file; mend the workload's path")
        if path.is_file() and _is_fresh(path, metadata, set(content)):
            continue
        with blamed_on(definition, f"generate_inputs: workload {workload.uuid}: cannot be saved:"):
            saved = save(content, metadata=metadata)
        write_whole(path, with_sorted_metadata(saved))
        changes.append(f"{path}: generated inputs")
    return changes


def with_sorted_metadata(data: bytes) -> bytes:
    """The bytes of a safetensors file, which orders its metadata anew at each writing, so that two are the same. Its
    header: a length in 8 bytes, then JSON padded with blanks (huggingface/safetensors, "Format")."""
    start, end = 8, 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[start:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return data[:start] + text.ljust(end - start) + data[end:]


def _is_fresh(path: Path, metadata: dict[str, str], keys: set[str]) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stored:
            return (stored.metadata() or {}).items() >= metadata.items() and set(stored.keys()) == keys
    except (SafetensorError, OSError):
        return False  # broken: it is made anew


def count(
    definition: Definition, module: ModuleType, workload: Workload, tensors: dict[str, Any], sizes: dict[str, int]
) -> dict[str, Any]:
    """What count_cost says of the workload with these generated tensors; without one, what the reference does. sizes:
    of every axis. Uncountable where that does not tell."""
    counted = getattr(module, "count_cost", None)
    if counted is None:
        from kernelderby.measure.judge.counting import counted_cost  # torch's counter of flops imports triton

        for name, spec in workload.inputs.items():
            if spec["type"] == "safetensors" and name not in tensors:
                raise Uncountable(f"the file of {name} is missing")
        return counted_cost(definition, module, sizes, workload.scalars, tensors)
    found: dict[str, Any] = counted(sizes, {**tensors, **workload.scalars})
    where = f"{definition.source_path}: count_cost: workload {workload.uuid}"
    convert(where, found, Cost)
    return found


def _write_costs(path: Path, costs: dict[str, dict[str, Any]], check: bool) -> list[str]:
    """Puts each line's `cost`; lines that have it already stay as they are, byte by byte."""
    lines, stale = [], 0
    for line in read_text(path).split("\n"):
        if line.strip():
            data, cost = _known(line, costs)
            if cost is not None and data.get("cost") != cost:
                data["cost"] = cost
                line = json.dumps(data, ensure_ascii=False, allow_nan=False)
                stale += 1
        lines.append(line)
    if not stale:
        return []
    if not check:
        write_whole(path, "\n".join(lines))
    return [f"{path}: cost of {counted(stale, 'workload')}"]


def _known(line: str, costs: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The line and its cost; None for a broken line, which was left out and stays as it is."""
    try:
        data = json.loads(line)
        return data, costs.get(data["workload"]["uuid"])
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}, None
