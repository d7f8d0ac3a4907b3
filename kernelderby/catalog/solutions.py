"""Solutions: solutions/<author>/<op_type>/<definition>/<solution>/ (sources) or <solution>.json (packed)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelderby.catalog.model import Definition, Requires, Solution
from kernelderby.errors import DerbyError
from kernelderby.fields import agree, checked, only_known, read_json, read_text, read_toml, suggestion, take
from kernelderby.fields import take_strings as strings
from kernelderby.trace import STAGE_ROLES, Stage

LANGUAGES = ("python", "triton", "cpp", "cuda", "tilelang")
SOURCE_SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")
_SPEC_FIELDS = ("language", "entry_point", "destination_passing_style", "target_hardware", "dependencies", "binding")
_TOML_FIELDS = ("name", "definition", "author", "description", *_SPEC_FIELDS, "common", "setup", "in_place", "requires",
                "stages")
_REQUIRES_FIELDS = ("modules", "executables", "minimum_compute_capability", "maximum_compute_capability", "cpu")
_STAGE_FIELDS = ("name", "title", "kernels", "nvtx", "role")


def load_solutions(root: Path, definitions: Mapping[str, Definition]) -> dict[str, Solution]:
    """Every solution of the set by name. DerbyError for a name that stands twice, as flashinfer-bench demands."""
    solutions: dict[str, Solution] = {}
    for solution in _read_all(root / "solutions"):
        where = solution.folder or solution.json_path
        if solution.name in solutions:
            other = solutions[solution.name].folder or solutions[solution.name].json_path
            raise DerbyError(f"{where}: name: {other} has it too; rename one (names are unique in the set)")
        definition = definitions.get(solution.definition)
        if definition is None:
            raise DerbyError(f"{where}: definition: {solution.definition!r} is unknown; "
                             f"{suggestion(solution.definition, definitions)}")
        if definition.op_type != solution.op_type:
            raise DerbyError(f"{where}: the path says op_type {solution.op_type!r} but {definition.path} says "
                             f"{definition.op_type!r}; move the solution")
        _check_calling(where, solution, definition)
        solutions[solution.name] = solution
    return solutions


def _check_calling(where: Path, solution: Solution, definition: Definition) -> None:
    """setup and in_place against the definition."""
    if solution.setup and not definition.constants:
        raise DerbyError(f"{where}: setup: {definition.path} marks no input constant, so there is nothing to set up; "
                         "mark the weights there or remove setup")
    if solution.in_place and not solution.destination_passing_style:
        raise DerbyError(f"{where}: in_place: needs destination_passing_style = true; set it or remove in_place")
    if len(set(solution.in_place.values())) < len(solution.in_place):
        raise DerbyError(f"{where}: in_place: two outputs lie in one input; give each output an input of its own")
    for output, name in solution.in_place.items():
        for kind, each, known in (("output", output, definition.outputs), ("input", name, definition.inputs)):
            if each not in known:
                raise DerbyError(f"{where}: in_place: {each!r} is no {kind} of {definition.name}; "
                                 f"{suggestion(each, known)}")
        found, wanted = definition.inputs[name], definition.outputs[output]
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise DerbyError(f"{where}: in_place: {output} and {name} differ in shape or dtype; remove the entry")


def solution_folders(root: Path) -> list[Path]:
    """Every solutions/<author>/<op_type>/<definition>/<solution>/ that holds a file of its own, sorted."""
    folders = []
    for folder in sorted((root / "solutions").glob("*/*/*/*")):
        if folder.is_dir() and any(_own_files(folder)):
            if not (folder / "solution.toml").is_file():
                raise DerbyError(f"{folder}/solution.toml: is missing; write it or remove the folder")
            folders.append(folder)
    return folders


def _read_all(directory: Path) -> Iterator[Solution]:
    packed_from_sources = set()
    for folder in solution_folders(directory.parent):
        packed_from_sources.add(folder.parent / f"{folder.name}.json")
        yield read_folder(folder)
    for path in sorted(directory.rglob("*.json")):
        if path not in packed_from_sources:
            if len(path.relative_to(directory).parts) != 4:
                raise DerbyError(f"{path}: is not at solutions/<author>/<op_type>/<definition>/<solution>.json; "
                                 "move it (flashinfer-bench loads every JSON under solutions/)")
            yield read_packed(path)


def _own_files(folder: Path) -> Iterator[Path]:
    """The files that people wrote, sorted: no caches, nothing hidden."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in inside):
            yield path


def read_folder(folder: Path) -> Solution:
    """The solution that solution.toml and the sources beside it describe."""
    path = folder / "solution.toml"
    data = read_toml(path)
    only_known(path, data, _TOML_FIELDS)
    only_known(path, take(path, data, "requires", dict, {}), _REQUIRES_FIELDS, "requires.")
    for position, stage in enumerate(take(path, data, "stages", list, [])):
        prefix = f"stages[{position}]."
        only_known(path, checked(path, prefix[:-1], stage, dict), _STAGE_FIELDS, prefix)
        role = take(path, stage, "role", str, None, prefix)
        if role is not None and role not in STAGE_ROLES:
            raise DerbyError(f"{path}: {prefix}role: {role!r} is unknown; {suggestion(role, STAGE_ROLES)}")
    sources = {file.relative_to(folder).as_posix(): read_text(file)
               for file in _own_files(folder) if file.suffix in SOURCE_SUFFIXES}
    common = strings(path, data, "common")
    sources = dict(sorted({**sources, **_common_sources(path, common, sources)}.items()))
    spec = {field: data[field] for field in _SPEC_FIELDS if field in data}
    language = take(path, spec, "language", str)
    if language not in LANGUAGES:
        raise DerbyError(f"{path}: language: {language!r} is unknown; {suggestion(language, LANGUAGES)}")
    take(path, spec, "destination_passing_style", bool)  # the defaults of flashinfer and flashinfer-bench differ
    take(path, data, "description", str)
    if not strings(path, spec, "target_hardware"):
        raise DerbyError(f"{path}: target_hardware: must name at least one GPU; add for example [\"NVIDIA H200\"]")
    return _solution(path, data, spec, folder, folder.parent / f"{folder.name}.json", sources, common)


def _common_sources(path: Path, names: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of the files of solutions/<author>/common/ that a solution.toml names: they stand once there, and
    in every solution that uses them they lie beside its own sources."""
    directory = path.parents[3] / "common"
    texts: dict[str, str] = {}
    for position, name in enumerate(names):
        where = f"{path}: common[{position}]: {name!r}"
        if Path(name).name != name or Path(name).suffix not in SOURCE_SUFFIXES:
            raise DerbyError(f"{where} is no plain name of a source file ({', '.join(SOURCE_SUFFIXES)}); write it as "
                             f"it is called in {directory}")
        if name in own or name in texts:
            raise DerbyError(f"{where} is a source of the solution already; rename that one or leave this out")
        if not (directory / name).is_file():
            there = [file.name for file in directory.iterdir()] if directory.is_dir() else []
            raise DerbyError(f"{where} is not in {directory}; {suggestion(name, there)}")
        texts[name] = read_text(directory / name)
    return texts


def read_packed(path: Path) -> Solution:
    """The solution in a packed JSON, of this set or of a foreign one: fields that we do not know are ignored."""
    data = read_json(path)
    sources = {}
    for position, source in enumerate(take(path, data, "sources", list)):
        checked(path, f"sources[{position}]", source, dict)
        sources[take(path, source, "path", str, prefix=f"sources[{position}].")] = take(
            path, source, "content", str, prefix=f"sources[{position}].")
    return _solution(path, data, take(path, data, "spec", dict), None, path, dict(sorted(sources.items())))


def _solution(path: Path, data: dict[str, Any], spec: dict[str, Any], folder: Path | None, json_path: Path,
              sources: dict[str, str], common: tuple[str, ...] = ()) -> Solution:
    place = folder or json_path
    fields = {name: take(path, data, name, str) for name in ("name", "definition", "author")}
    agree(path, "name", fields["name"], place.name if folder else place.stem)
    agree(path, "definition", fields["definition"], place.parents[0].name)
    agree(path, "author", fields["author"], place.parents[2].name)
    entry_point = take(path, spec, "entry_point", str)
    file, separator, function = entry_point.partition("::")
    if not (separator and function) or file not in sources:
        raise DerbyError(f"{path}: entry_point: {entry_point!r} is not <file>::<function> of a source file; "
                         f"the files are {', '.join(sources) or 'none'}")
    setup = take(path, data, "setup", str, None)
    if setup is not None and (setup.partition("::")[0] not in sources or not setup.partition("::")[2]):
        raise DerbyError(f"{path}: setup: {setup!r} is not <file>::<function> of a source file; "
                         f"the files are {', '.join(sources)}")
    in_place = take(path, data, "in_place", dict, {})
    return Solution(
        **fields, op_type=place.parents[1].name, language=take(path, spec, "language", str), entry_point=entry_point,
        destination_passing_style=take(path, spec, "destination_passing_style", bool, True),
        description=take(path, data, "description", str, ""), folder=folder, json_path=json_path, sources=sources,
        common=common,
        requires=_requires(path, take(path, data, "requires", dict, {})), stages=_stages(path, data),
        target_hardware=strings(path, spec, "target_hardware"), dependencies=strings(path, spec, "dependencies"),
        binding=take(path, spec, "binding", str, None), setup=setup,
        in_place={output: checked(path, f"in_place.{output}", name, str) for output, name in in_place.items()})


def _requires(path: Path, data: dict[str, Any]) -> Requires:
    capabilities = {}
    for field in ("minimum_compute_capability", "maximum_compute_capability"):
        value = capabilities[field] = take(path, data, field, str, None, "requires.")
        if value is not None and not re.fullmatch(r"\d+\.\d", value):
            raise DerbyError(f"{path}: requires.{field}: {value!r} is no compute capability; write it as \"9.0\"")
    for module in strings(path, data, "modules", "requires."):
        if not all(part.isidentifier() for part in module.split(".")):  # it will stand in an import statement
            raise DerbyError(f"{path}: requires.modules: {module!r} is no module's name; mend it")
    return Requires(modules=strings(path, data, "modules", "requires."),
                    executables=strings(path, data, "executables", "requires."),
                    cpu=take(path, data, "cpu", bool, False, "requires."), **capabilities)


def _stages(path: Path, data: dict[str, Any]) -> tuple[Stage, ...]:
    stages = []
    for position, spec in enumerate(take(path, data, "stages", list, [])):
        prefix = f"stages[{position}]."
        kernels = strings(path, spec, "kernels", prefix)
        for pattern in kernels:
            try:
                re.compile(pattern)
            except re.error as error:
                raise DerbyError(f"{path}: {prefix}kernels: {pattern!r} is no pattern ({error}); mend it") from None
        stages.append(Stage(take(path, spec, "name", str, prefix=prefix), take(path, spec, "title", str, prefix=prefix),
                            kernels, take(path, spec, "nvtx", str, None, prefix),
                            take(path, spec, "role", str, None, prefix)))
    return tuple(stages)
