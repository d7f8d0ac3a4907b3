"""A set of one operator for one run: a user's file beside the set's solutions, and shapes that no file lists."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelderby.authoring.entry import parsed, takes_outputs
from kernelderby.authoring.words import is_size
from kernelderby.catalog import Catalog, Definition, Requires, Solution, Workload, constraints
from kernelderby.catalog.pack import packed_solution
from kernelderby.catalog.solutions import SOURCE_SUFFIXES
from kernelderby.catalog.spaces import Sizes, UnfitDraw, line_of, sizes_of
from kernelderby.errors import DerbyError
from kernelderby.store.fields import read_text, suggestion
from kernelderby.store.files import MADE_FROM, json_text, write_jsonl, write_whole

AUTHOR, ORIGIN = "me", "own"
_IMPORTED = {"triton": "triton", "tilelang": "tilelang"}  # module -> language


def is_file(name: str) -> bool:
    """Whether the word means a FILE.py or FILE.py::function."""
    return name.partition("::")[0].endswith(".py")


def solution_of_file(catalog: Catalog, place: str, definition: Definition) -> Solution:
    """place: FILE.py::function, or FILE.py for its run(). Neighbouring files that its text names come along.
    DerbyError: no such file or function, or parameters that are neither the inputs nor the inputs and outputs."""
    file, _, function = place.partition("::")
    path, function = Path(file), function or "run"
    if not path.is_file():
        raise DerbyError(f"{path}: does not exist; name a Python file")
    text = read_text(path)
    tree = parsed(path, text)
    takes = takes_outputs(path, tree, function, definition)
    modules = _modules(tree)
    language = next((each for module, each in _IMPORTED.items() if module in modules), "python")
    stem = path.stem if path.stem != "main" else path.resolve().parent.name
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)  # --record names a file by it, which any locale has to read
    while name in catalog.solutions:
        name += "_file"
    return Solution(
        name=name,
        definition=definition.name,
        author=AUTHOR,
        op_type=definition.op_type,
        language=language,
        entry_point=f"{path.name}::{function}",
        destination_passing_style=bool(takes),
        description=f"The file {path.name}.",
        folder=None,
        json_path=catalog.root / "solutions" / AUTHOR / definition.op_type / definition.name / f"{name}.json",
        sources={path.name: text, **_beside(path, text)},
        requires=Requires(cpu=not re.search(r"\bnvcc\b|cuda_sources|\.cu\b|\.cuda\(", text)),
        stages=(),
        target_hardware=("any",),
    )


def shape_lines(catalog: Catalog, definition: Definition, words: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of a workloads file for `num_tokens=64,hidden_size=4096`. Plain numbers that are not given come from
    the first listed shape."""
    listed = catalog.workloads(definition.name)
    generated = [name for name, spec in listed[0].inputs.items() if spec["type"] == "safetensors"] if listed else []
    if generated and definition.source_path is None:
        raise DerbyError(
            f"--shape: {definition.place} reads {generated[0]} from files; its listed shapes alone can run"
        )
    return [line_of(definition, _sizes(definition, listed, word), generated, ORIGIN) for word in words]


def values_of(definition: Definition, word: str) -> dict[str, int | float | str]:
    """name -> value of one --shape. DerbyError for an unknown name, a fixed axis, or an invalid value."""
    found: dict[str, int | float | str] = {}
    for part in word.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not value:
            raise DerbyError(f"--shape: {part!r:.60} is not AXIS=SIZE; write {_example(definition)}")
        if name in found:
            raise DerbyError(f"--shape: {name} stands twice; leave one out, or repeat --shape for another shape")
        if definition.axes.get(name) is not None:
            raise DerbyError(f"--shape: {name} is always {definition.axes[name]} in {definition.name}; leave it out")
        if name in definition.axes:
            if not is_size(value):
                raise DerbyError(f"--shape: {name}: {value!r:.60} is no size; write a whole number below 10^18")
            found[name] = int(value)
        elif name in definition.inputs and definition.inputs[name].shape is None:
            found[name] = _number(name, value)
        else:
            var = [axis for axis, size in definition.axes.items() if size is None]
            raise DerbyError(f"--shape: {definition.name} has no axis {name!r:.60}; {suggestion(name, var)}")
    return found


def _sizes(definition: Definition, listed: Sequence[Workload], word: str) -> Sizes:
    given = with_determined(definition, values_of(definition, word))
    lacking = [name for name in free_axes(definition) if name not in given]
    if lacking:
        rules = f", where {'; '.join(definition.constraints)}" if definition.constraints else ""
        raise DerbyError(f"--shape: lacks {', '.join(lacking)}; write {_example(definition)}{rules}")
    values: dict[str, Any] = {name: size for name, size in definition.axes.items() if size is not None}
    for workload in listed[:1]:
        values |= workload.scalars | workload.generator
    for name, spec in definition.inputs.items():
        if spec.shape is None and name not in values and name not in given:
            raise DerbyError(f"--shape: lacks the number {name}; add {name}=VALUE")
    try:
        if any(name not in given for name, size in definition.axes.items() if size is None):
            raise UnfitDraw
        return sizes_of(definition, values | given)
    except UnfitDraw:
        rules = "; ".join(definition.constraints)
        raise DerbyError(f"--shape: {word!r:.80} breaks what {definition.name} demands: {rules}") from None


def with_determined(definition: Definition, given: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes with the axes that the constraints determine."""
    found = dict(given)
    missing = [name for name, size in definition.axes.items() if size is None and name not in found]
    for _ in range(len(missing)):
        sizes = {**definition.axes, **found}
        known = {name: size for name, size in sizes.items() if isinstance(size, int)}
        for name in missing:
            for text in definition.constraints:
                if name not in found and (size := constraints.solved_size(text, name, known)) is not None:
                    found[name] = size
    return found


def _example(definition: Definition) -> str:
    return ",".join(f"{name}=64" for name in free_axes(definition))


def free_axes(definition: Definition) -> list[str]:
    """The variable axes that no constraint determines."""
    var = [name for name, size in definition.axes.items() if size is None]
    told = {name for text in definition.constraints for name in var if text.startswith(f"{name} == ")}
    return [name for name in var if name not in told]


def _number(name: str, value: str) -> int | float:
    with suppress(ValueError):
        found = int(value) if re.fullmatch(r"-?\d{1,18}", value) else float(value)
        if math.isfinite(found):
            return found
    raise DerbyError(f"--shape: {name}: {value!r:.60} is no finite number; mend it")


def scratch_set(
    catalog: Catalog,
    folder: Path,
    definition: Definition,
    solutions: Iterable[Solution],
    lines: Sequence[Mapping[str, Any]],
) -> Catalog:
    """lines: the lines of its workloads file; without any, the listed workloads are used."""
    place = folder / "definitions" / definition.op_type
    for path in (definition.path, definition.source_path):
        if path is not None:
            write_whole(place / path.name, read_text(path))
    told = list(lines) or [each.raw for each in catalog.workloads(definition.name)]
    write_jsonl(folder / "workloads" / definition.op_type / f"{definition.name}.jsonl", told)
    for solution in solutions:
        if solution.json_path != definition.path:  # a reference has no file of its own
            write_packed(folder, solution)
    (folder / MADE_FROM).symlink_to(catalog.root.resolve())
    if (catalog.root / "blob").is_dir():
        (folder / "blob").symlink_to((catalog.root / "blob").resolve())
    return Catalog.open(folder)


def write_packed(root: Path, solution: Solution) -> Path:
    path = root / "solutions" / solution.author / solution.op_type / solution.definition / f"{solution.name}.json"
    write_whole(path, json_text(packed_solution(solution)))
    return path


def _modules(tree: ast.Module) -> set[str]:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def _beside(path: Path, text: str) -> dict[str, str]:
    """The sources in the same folder that its text names, and those that they name in turn."""
    others = {each.name: each for each in sorted(path.parent.iterdir()) if each.suffix in SOURCE_SUFFIXES}
    found: dict[str, str] = {}
    left = [text]
    while left:
        told = left.pop()
        for name, each in others.items():
            word = each.stem if each.suffix == ".py" else name
            if name != path.name and name not in found and re.search(rf"(?<![\w.]){re.escape(word)}\b", told):
                found[name] = read_text(each)
                left.append(found[name])
    return found
