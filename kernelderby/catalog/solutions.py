"""Solutions: solutions/<author>/<op_type>/<definition>/<solution>/ (sources) or <solution>.json (packed)."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct

from kernelderby.catalog.model import Definition, Requires, Solution
from kernelderby.catalog.reference import reference_solution
from kernelderby.catalog.same_code import read_same_code
from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Stage
from kernelderby.store.bounds import reading
from kernelderby.store.fields import (
    Function,
    Name,
    agree,
    convert,
    expect_inner_path,
    must_be,
    read_json,
    read_text,
    read_toml,
    suggestion,
    unknown_fields,
)
from kernelderby.store.files import files_under, folders_below, is_inside
from kernelderby.store.names import alike

SOURCE_SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([\w.-]+)"', re.MULTILINE)
UNIQUE = "rename one (names are unique in the set, whatever their case: some file systems have one file for both)"
LeftOut = Callable[[str], None]


class _Stages(Struct):
    """A file that holds only stages."""

    stages: Annotated[tuple[Stage, ...], must_be("a list of [[stages]]", min_length=1)]

    def __post_init__(self) -> None:
        _expect_once("stages", [stage.name for stage in self.stages])


def read_stages(path: Path) -> tuple[Stage, ...]:
    """The stages of a pipeline that is not a solution, from a .toml file with [[stages]] as in solution.toml.
    DerbyError: a field is wrong."""
    return convert(path, read_toml(path), _Stages).stages


class _Written(Struct):
    """solution.toml."""

    name: Name
    definition: Name
    author: Name
    description: str
    language: Literal["python", "triton", "cpp", "cuda", "tilelang"]
    entry_point: Function
    destination_passing_style: bool  # no default: flashinfer and flashinfer-bench have different ones
    target_hardware: Annotated[
        tuple[Name, ...], must_be('a list of at least one GPU, such as ["NVIDIA H200"]', min_length=1)
    ]
    dependencies: tuple[str, ...] = ()
    binding: str | None = None
    setup: Function | None = None
    in_place: dict[str, str] = {}
    aliases: tuple[Name, ...] = ()
    common: tuple[str, ...] = ()
    requires: Requires = Requires()
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        _expect_once("stages", [stage.name for stage in self.stages])
        for place, stage in enumerate(self.stages):
            if stage.role not in (None, "gemm"):
                raise ValueError(f"stages[{place}].role: {stage.role!r:.60} is unknown; known: gemm")


class _Spec(Struct):
    language: Name
    entry_point: Function
    destination_passing_style: bool | None = None
    target_hardware: tuple[str, ...] | None = None
    dependencies: tuple[str, ...] | None = None
    binding: str | None = None


class _Source(Struct):
    path: str
    content: str

    def __post_init__(self) -> None:
        expect_inner_path("path", self.path)  # it is written under the cache before it runs


class _Packed(Struct):
    """<solution>.json, of this set or of a foreign one."""

    name: Name
    definition: Name
    author: Name
    spec: _Spec
    sources: tuple[_Source, ...]
    description: str | None = None
    setup: Function | None = None
    in_place: dict[str, str] | None = None
    aliases: tuple[Name, ...] | None = None
    requires: Requires | None = None
    stages: tuple[Stage, ...] | None = None

    def __post_init__(self) -> None:
        _expect_once("stages", [stage.name for stage in self.stages or ()])
        paths = [posixpath.normpath(source.path).casefold() for source in self.sources]
        _expect_once("sources", paths)
        folders = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
        if both := folders & {*paths}:
            raise ValueError(f"sources: {min(both)!r:.80} is a file and a folder; rename one of them")


def _expect_once(field: str, names: Sequence[str]) -> None:
    """ValueError for two fields of one name, because only one of them would be read."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{field}: two are {name!r:.80}; rename one of them")


def load_solutions(
    root: Path, definitions: Mapping[str, Definition], left_out: LeftOut, noted: LeftOut
) -> tuple[dict[str, Solution], dict[str, str]]:
    """Every solution of the set by name, and the problems of the left-out solutions by name. left_out gets a line for a
    solution that is left out, noted a line for a problem of one that stays. No alias takes the name of a solution,
    wherever the two lie: somebody else's would be left out. Nor does anything but a definition's reference take its
    name, under which it races."""
    solutions: dict[str, Solution] = {}
    problems: dict[str, str] = {}
    with_hashes = read_same_code(root, noted)
    references = {alike(each.name): each for each in map(reference_solution, definitions.values())}
    twins = dict(references)
    for path in _all(root, left_out):
        is_folder = path.is_dir()
        try:
            with reading(path):
                solution = with_hashes(read_folder(path, noted) if is_folder else read_packed(path))
            reference = references.get(alike(solution.name))
            if reference and (reference.name, reference.hash) == (solution.name, solution.hash):  # an exported one
                del references[alike(solution.name)], twins[alike(solution.name)]
            _expect_own(solution, "name", solution.name, twins)
            _check_place(solution, definitions)
        except DerbyError as error:
            name = path.name if is_folder else path.stem
            if alike(name) not in references:  # that one is there
                problems.setdefault(name, str(error))
            left_out(str(error))
            continue
        solutions[solution.name] = twins[alike(solution.name)] = solution
    for solution in [each for each in solutions.values() if each.aliases]:
        try:
            for alias in solution.aliases:
                _expect_own(solution, "aliases", alias, twins)
            twins |= {alike(alias): solution for alias in solution.aliases}
        except DerbyError as error:
            problems.setdefault(solutions.pop(solution.name).name, str(error))
            left_out(str(error))
    return solutions, problems


def _expect_own(solution: Solution, field: str, name: str, others: Mapping[str, Solution]) -> None:
    """DerbyError unless nobody has the name, as flashinfer-bench demands."""
    twin = others.get(alike(name), solution)
    if twin is not solution:
        where = solution.folder or solution.json_path
        raise DerbyError(f"{where}: {field}: {name!r:.80}: {twin.folder or twin.json_path} has it too; {UNIQUE}")


def _check_place(solution: Solution, definitions: Mapping[str, Definition]) -> None:
    """DerbyError unless the definition fits."""
    where = solution.folder or solution.json_path
    definition = definitions.get(solution.definition)
    if definition is None:
        raise DerbyError(
            f"{where}: definition: {solution.definition!r} is unknown; {suggestion(solution.definition, definitions)}"
        )
    if definition.op_type != solution.op_type:
        raise DerbyError(
            f"{where}: the path says op_type {solution.op_type!r} but {definition.path} says "
            f"{definition.op_type!r}; move the solution"
        )
    _check_calling(where, solution, definition)


def _check_calling(where: Path, solution: Solution, definition: Definition) -> None:
    """Checks setup and in_place against the definition."""
    if solution.setup and not definition.of_setup:
        raise DerbyError(
            f"{where}: setup: {definition.path} marks no input constant, so there is nothing to set up; "
            "mark the weights there or remove setup"
        )
    if solution.in_place and not solution.destination_passing_style:
        raise DerbyError(f"{where}: in_place: needs destination_passing_style = true; set it or remove in_place")
    if len(set(solution.in_place.values())) < len(solution.in_place):
        raise DerbyError(f"{where}: in_place: two outputs lie in one input; give each output an input of its own")
    for output, name in solution.in_place.items():
        for kind, each, known in (("output", output, definition.outputs), ("input", name, definition.inputs)):
            if each not in known:
                raise DerbyError(
                    f"{where}: in_place: {each!r} is no {kind} of {definition.name}; {suggestion(each, known)}"
                )
        found, wanted = definition.inputs[name], definition.outputs[output]
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise DerbyError(f"{where}: in_place: {output} and {name} differ in shape or dtype; remove the entry")


def solution_folders(root: Path) -> list[Path]:
    """Every solutions/<author>/<op_type>/<definition>/<solution>/ with sources, sorted."""
    return [folder for folder in folders_below(root / "solutions", 4) if _own_files(folder, lambda problem: None)]


def _all(root: Path, left_out: LeftOut) -> Iterator[Path]:
    """Folders of sources, then packed solutions without a folder."""
    directory, folders = root / "solutions", solution_folders(root)
    yield from folders
    packed_from_sources = {folder.parent / f"{folder.name}.json" for folder in folders}
    for path in files_under(directory, ".json", left_out):
        if path in packed_from_sources:
            continue
        if len(path.relative_to(directory).parts) != 4:
            left_out(
                f"{path}: is not at solutions/<author>/<op_type>/<definition>/<solution>.json; "
                "move it (flashinfer-bench loads every JSON under solutions/)"
            )
            continue
        yield path


def _own_files(folder: Path, told: LeftOut) -> list[Path]:
    """The files that people wrote, sorted, without caches and hidden files."""
    return [path for path in files_under(folder, "", told, hidden=False) if path.is_file()]


def refuse(problem: str) -> None:
    """An unreadable folder is an error: it may hold sources, without which the solution would be another one."""
    raise DerbyError(problem)


def read_folder(folder: Path, noted: LeftOut | None = None) -> Solution:
    """The solution that solution.toml and the sources beside it describe. noted gets a line for an unknown field;
    without noted it is a DerbyError."""
    path = folder / "solution.toml"
    if not path.exists():
        raise DerbyError(f"{path}: is missing; write it or remove the folder")
    written = _written(path, read_toml(path), noted)
    own = _sources(folder)
    common = _common_sources(path, written.common, own)
    common |= _included(path, {**own, **common})
    sources = dict(sorted({**own, **common}.items()))
    return _solution(path, folder, folder.parent / f"{folder.name}.json", sources, written, written, tuple(common))


def written_solution(path: Path, json_path: Path, sources: Mapping[str, str], data: dict[str, Any]) -> Solution:
    """The solution from the contents of a solution.toml and from sources, without a folder. path: for error
    messages."""
    written = _written(path, data)
    return _solution(path, None, json_path, dict(sorted(sources.items())), written, written)


def _written(path: Path, data: dict[str, Any], noted: LeftOut | None = None) -> _Written:
    written = convert(path, data, _Written)
    for problem in unknown_fields(data, _Written):
        (noted or refuse)(f"{path}: {problem}")
    return written


def _sources(folder: Path) -> dict[str, str]:
    """Path inside the folder -> text. Files outside the set that a symlink names are not packed."""
    sources, root = {}, folder.parents[4]
    is_ours = is_inside(root, folder)
    for file in _own_files(folder, refuse):
        if file.suffix in SOURCE_SUFFIXES:
            if not is_ours or (file.is_symlink() and not is_inside(root, file)):
                raise DerbyError(f"{file}: leads outside the set through a symlink; put the file itself there")
            sources[file.relative_to(folder).as_posix()] = read_text(file)
    return sources


def _common_sources(path: Path, names: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of the files in solutions/<author>/common/ that a solution.toml names. Each solution that uses them
    gets a copy beside its own sources."""
    directory = path.parents[3] / "common"
    texts: dict[str, str] = {}
    for position, name in enumerate(names):
        where = f"{path}: common[{position}]: {name!r}"
        if Path(name).name != name or Path(name).suffix not in SOURCE_SUFFIXES:
            raise DerbyError(
                f"{where} is no plain name of a source file ({', '.join(SOURCE_SUFFIXES)}); write it as "
                f"it is called in {directory}"
            )
        if name in own or name in texts:
            raise DerbyError(f"{where} is a source of the solution already; rename that one or leave this out")
        if not (directory / name).is_file():
            there = [file.name for file in directory.iterdir()] if directory.is_dir() else []
            raise DerbyError(f"{where} is not in {directory}; {suggestion(name, there)}")
        texts[name] = _common_text(directory / name)
    return texts


def _included(path: Path, sources: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of the headers in solutions/<author>/common/ that CUDA sources include, directly or through other
    headers."""
    directory = path.parents[3] / "common"
    texts: dict[str, str] = {}
    left = [text for name, text in sources.items() if not name.endswith(".py")]
    while left:
        for name in _INCLUDE.findall(left.pop()):
            if name not in sources and name not in texts and (directory / name).is_file():
                texts[name] = _common_text(directory / name)
                left.append(texts[name])
    return texts


def _common_text(path: Path) -> str:
    """path: solutions/<author>/common/<file>."""
    if not is_inside(path.parents[3], path):
        raise DerbyError(f"{path}: leads outside the set through a symlink; put the file itself there")
    return read_text(path)


def read_packed(path: Path) -> Solution:
    """The solution in a packed JSON, of this set or of a foreign one. Unknown fields are ignored."""
    packed = read_json(path, _Packed)
    sources = dict(sorted((source.path, source.content) for source in packed.sources))
    return _solution(path, None, path, sources, packed, packed.spec)


def _solution(
    path: Path,
    folder: Path | None,
    json_path: Path,
    sources: dict[str, str],
    about: _Written | _Packed,
    spec: _Written | _Spec,
    common: tuple[str, ...] = (),
) -> Solution:
    """path: the file that describes it. about: holds name and stages. spec: holds language and entry point."""
    place = folder or json_path
    agree(path, "name", about.name, place.name if folder else place.stem)
    agree(path, "definition", about.definition, place.parents[0].name)
    agree(path, "author", about.author, place.parents[2].name)
    for field, value in (("entry_point", spec.entry_point), ("setup", about.setup)):
        if value is not None and value.partition("::")[0] not in sources:
            raise DerbyError(
                f"{path}: {field}: {value!r} is not <file>::<function> of a source file; "
                f"the files are {', '.join(sources) or 'none'}"
            )
    # A foreign solution does not say what it needs. Python can be tried on a CPU.
    foreign = folder is None and about.requires is None
    requires = about.requires or Requires(cpu=foreign and spec.language in ("python", "triton"))
    return Solution(
        name=about.name,
        definition=about.definition,
        author=about.author,
        op_type=place.parents[1].name,
        language=spec.language,
        entry_point=spec.entry_point,
        destination_passing_style=spec.destination_passing_style is not False,
        description=about.description or "",
        folder=folder,
        json_path=json_path,
        sources=sources,
        requires=requires,
        stages=about.stages or (),
        target_hardware=spec.target_hardware or (),
        dependencies=spec.dependencies or (),
        binding=spec.binding,
        common=common,
        setup=about.setup,
        in_place=about.in_place or {},
        aliases=about.aliases or (),
    )
