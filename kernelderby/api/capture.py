"""Turns a server's profiles into workloads, and estimates how much time faster kernels would save."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kernelderby.api.arguments import typed
from kernelderby.capture.capture import Capture, CapturedShape, capture
from kernelderby.capture.fi_trace import is_dump, read_dumps
from kernelderby.capture.gain import CostOf, gains
from kernelderby.capture.workloads import ORIGIN, fitting, line, write_set
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.selection import SCORED
from kernelderby.catalog.spaces import Sizes, line_of
from kernelderby.catalog.workloads import FRESH, MODELS, workload_of
from kernelderby.errors import DerbyError
from kernelderby.profile.filters import SelectedProfile, Selection
from kernelderby.profile.sources.recognise import open_profile
from kernelderby.report.answer import Answer
from kernelderby.report.capture import Captured, capture_answer
from kernelderby.rows.measurement import Cost, Measurement
from kernelderby.shapes.model import read_model
from kernelderby.shapes.standing import configuration_file
from kernelderby.store.counts import counted


@typed
def captured(
    catalog: Catalog,
    files: Sequence[Path],
    *,
    with_gain: bool = False,
    gpu: str | None = None,
    out: Path | str | None = None,
    origin: str = ORIGIN,
    model: Path | str | None = None,
    sharing: int = 1,
    context: int | None = None,
    tokens: Sequence[int] = (),
    selection: Selection | None = None,
    top: int | None = None,
    rows: Sequence[Measurement] | None = None,
) -> Answer[Captured]:
    """See TraceSet.capture. catalog: the set whose definitions are matched with the operators. model, sharing: a
    config.json, and the number of GPUs that share the model. tokens: tokens of a step, for FlashInfer's dumps. rows: of
    the set, if the caller has read them."""
    _check(files, origin)
    if tokens and not any(map(is_dump, files)):
        raise DerbyError("--tokens goes with a folder of FlashInfer's fi_trace, and none is named; leave it out")
    profiles = [open_profile(file, operators=True) for file in files if not is_dump(file)]
    if selection is not None and not selection.is_all:
        profiles = [SelectedProfile(each, selection) if each.has_events else each for each in profiles]
    for each in profiles:
        if not each.has_events:
            raise DerbyError(
                f"{each.path}: {each.form} has sums alone; capture needs a torch.profiler trace with "
                "record_shapes=True, or nsys's SQLite with ranges that tell sizes"
            )
    facts = read_model(configuration_file(Path(model)), sharing).facts if model else {}
    facts = {"quantized": int(bool(facts.get("fp8_block") or facts.get("fp8_token"))), **facts} if facts else {}
    found = capture(catalog, profiles, facts, context)
    if selection is not None and not selection.is_all and not found.total_ns:
        raise DerbyError(
            f"nothing in these files is {selection}; `derby profile kernels` with the same words tells more"
        )
    found = _with_dumps(catalog, found, [file for file in files if is_dump(file)], tokens)
    notes = _advice(found)
    gained = None
    if with_gain:
        with _costs(catalog, notes) as cost_of:
            gained = gains(catalog, catalog.traces() if rows is None else rows, found, cost_of, gpu)
    small, large = fitting(found)
    if large:
        told = "is no workload" if len(large) == 1 else "are no workloads"
        notes.append(f"{counted(len(large), 'shape needs', 'shapes need')} more than 4 GiB and {told}")
    lines = [line(catalog, found, shape, origin) for shape in small]
    if out is not None:
        write_set(catalog, found, Path(out), origin)
        notes += _packed(Path(out), len(lines))
    return capture_answer(Captured(found, gained, tuple(notes)), lines, top)


def _check(files: Sequence[Path], origin: str) -> None:
    for file in files:
        if list(files).count(file) > 1:
            raise DerbyError(f"{file}: is named twice, and would count twice; leave one out")
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,60}", origin):
        raise DerbyError(f"--origin: {origin!r:.80} is no word; give one such as {ORIGIN}")
    if origin in (*SCORED, FRESH, MODELS):
        raise DerbyError(f"--origin: {origin} is the origin of other shapes; give another word, such as {ORIGIN}")


def _with_dumps(catalog: Catalog, found: Capture, dumps: Sequence[Path], tokens: Sequence[int]) -> Capture:
    for path in dumps:
        shapes, refused = read_dumps(catalog, path, tokens)
        known = {(each.definition.name, each.uuid) for each in found.shapes}
        new: list[CapturedShape] = [each for each in shapes if (each.definition.name, each.uuid) not in known]
        found = replace(
            found, paths=(*found.paths, path), shapes=(*found.shapes, *new), unmapped=(*found.unmapped, *refused)
        )
    return found


def _advice(found: Capture) -> list[str]:
    if found.total_ns and not found.shaped_ns:
        return ["no operator in these files tells its sizes; record with torch.profiler and record_shapes=True"]
    return []


@contextmanager
def _costs(catalog: Catalog, notes: list[str]) -> Iterator[CostOf]:
    """The cost of a shape: the listed one, otherwise counted with torch by the definition's own code behind the
    fences."""
    if importlib.util.find_spec("torch") is None:
        notes.append(
            "torch is not installed, which counting the work of new shapes needs: floors of listed shapes alone"
        )
        yield lambda definition, sizes: _listed(catalog, definition, sizes)
        return
    from kernelderby.measure.judge.fenced import FencedDefinitions

    with FencedDefinitions(catalog) as fenced:

        def counted(definition: Definition, sizes: Sizes) -> Cost | None:
            if (known := _listed(catalog, definition, sizes)) is not None:
                return known
            data = line_of(definition, sizes, (), ORIGIN)
            try:
                cost = fenced.cost(definition, data)
            except DerbyError as problem:
                notes.append(f"{definition.name}: {problem}")
                return None
            return workload_of("a captured shape", data | {"cost": cost}, definition).cost if cost else None

        yield counted


def _listed(catalog: Catalog, definition: Definition, sizes: Sizes) -> Cost | None:
    uuid = sizes.uuid(definition)
    return next((each.cost for each in catalog.workloads(definition.name) if each.uuid == uuid), None)


def _packed(out: Path, count: int) -> list[str]:
    """Makes the generated inputs of the new set if torch is installed."""
    told = f"{out}: {counted(count, 'workload')} written"
    if any(importlib.util.find_spec(name) is None for name in ("torch", "safetensors")):
        return [f"{told}; run `derby pack --root {out}` where torch is installed, then `derby bench --root {out}`"]
    # A separate process with the judge's fence, because the definitions' code runs in it.
    words = [sys.executable, "-m", "kernelderby", "pack", "--root", str(out), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        problems = json.loads(done.stdout)["broken"]
    except (ValueError, KeyError):
        problems = (done.stderr.strip().splitlines() or ["derby pack failed"])[-1:]
    return [f"{told}; race them with `derby bench --root {out}`", *problems]
