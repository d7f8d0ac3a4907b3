"""Builds the libraries of CUDA solutions as their main.py does, in workers behind the fences. Gives the files, or the
machine code from nvcc's intermediate files. Needs nvcc, and no GPU."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.catalog.code import running_parts
from kernelderby.catalog.same_code import MachineCode
from kernelderby.errors import DerbyError
from kernelderby.measure.certify.assembly import FORM, launches
from kernelderby.measure.certify.cubin import kernels_of
from kernelderby.measure.certify.python import building, python_digest
from kernelderby.measure.judge.fenced import fenced
from kernelderby.measure.wire.process import interruptible
from kernelderby.measure.wire.replies import CodeSeen, LibrariesSeen, text
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.measure.worker.build import BuildFailed, load_solution, solution_module
from kernelderby.rows.certified import CodeDifference, CodePart
from kernelderby.store.files import read_bytes, write_whole

ARCHITECTURE = "90a"
UNBUILT = "none: the CUDA sources have the same tokens"  # instead of a compiler
_NAME = re.compile(r"\w{1,100}", re.ASCII)  # name of a library, which becomes part of a path
_ANONYMOUS = re.compile(r"(\d+)(_GLOBAL__N__)")
_WRAPPER = """#!/bin/sh
kept=$(mktemp -d "{kept}/XXXXXX") && printf '%s\\n' "$@" > "$kept/arguments" || exit 1
exec "{nvcc}" "$@" --keep --keep-dir "$kept" -Xcompiler -save-temps=obj
"""


def differences(one: MachineCode, other: MachineCode) -> list[CodeDifference]:
    """Empty for the same machine code."""
    found = [
        CodeDifference(part, former=former, present=present)
        for part, former, present in (
            (CodePart.ARCHITECTURE, one.architecture, other.architecture),
            (CodePart.COMPILER, one.compiler, other.compiler),
        )
        if former != present
    ]
    found += _kernel_differences(one.kernels, other.kernels)
    if one.data != other.data:
        found.append(CodeDifference(CodePart.GPU_DATA))
    found += [
        CodeDifference(CodePart.HOST_CODE, name)
        for name in sorted({*one.host, *other.host})
        if one.host.get(name) != other.host.get(name)
    ]
    if one.python != other.python:
        found.append(CodeDifference(CodePart.PYTHON))
    return found


def _kernel_differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[CodeDifference]:
    """Kernels are paired by digest; the remaining ones are listed by name."""
    left, new = sorted(one.values()), sorted(other.values())
    if left == new:
        return []
    gone = [name for name, digest in one.items() if digest not in new]
    came = [name for name, digest in other.items() if digest not in left]
    return [
        *(CodeDifference(CodePart.CHANGED_KERNEL, name) for name in gone if name in came),
        *(CodeDifference(CodePart.FORMER_KERNEL, name) for name in gone if name not in came),
        *(CodeDifference(CodePart.PRESENT_KERNEL, name) for name in came if name not in gone),
    ] or [CodeDifference(CodePart.KERNEL_COUNT)]


def with_added(former: MachineCode | str, present: MachineCode | str) -> MachineCode | str:
    """The former code, with the libraries that the present code adds to it: certificates of launches from before
    30 November 2026 count these, too. If a library has changed, the former code alone. A text says why there is no
    code."""
    if isinstance(former, str) or isinstance(present, str) or not former.is_part_of(present):
        return former
    return msgspec.structs.replace(former, kernels=present.kernels, host=present.host, data=present.data)


def joined(libraries: Mapping[str, MachineCode], names: Collection[str] | None = None) -> MachineCode:
    """The code of several libraries as one; names: of these alone."""
    chosen = [libraries[name] for name in sorted(libraries) if names is None or name in names]
    kernels: dict[str, str] = {}
    for each in chosen:
        kernels |= _named_once(each.kernels, kernels)
    host = {name: digest for each in chosen for name, digest in each.host.items()}
    data = tuple(sorted(digest for each in chosen for digest in each.data))
    first = next(iter(libraries.values()))
    return msgspec.structs.replace(first, kernels=kernels, host=host, data=data)


def unchanged(former: Mapping[str, MachineCode], present: Mapping[str, MachineCode]) -> set[str]:
    """Names of libraries with the same machine code in both versions, whatever Python does with them."""
    return {
        name
        for name in former.keys() & present.keys()
        if not differences(former[name], msgspec.structs.replace(present[name], python=former[name].python))
    }


def machine_code(catalog: Catalog, solution: Solution, found_in: Path, form: int = FORM) -> dict[str, MachineCode]:
    """Library -> the machine code of a solution's sources in that set, built by a worker behind the fences. It comes
    from the cache if the same code was built in the same way before: all of it, since Python may name a library that
    another module declares. DerbyError if the build fails, or the solution has no library."""
    _, compiler = _compiler()
    key = solution.digest_of([(compiler, f"{form} {ARCHITECTURE} {build_digest(solution)} {python_digest(solution)}")])
    path = cache_folder() / "machine_code" / f"{solution.name}-{key}.json"
    if path.is_file():
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, MachineCode])
        except msgspec.DecodeError:
            pass  # made by another version
    with fenced(catalog, solution) as ask:
        found = ask(CodeSeen, code_here, found_in=str(found_in.resolve()), form=form).libraries
    own = {"compiler": compiler, "form": form, "python": python_digest(solution)}
    found = {name: msgspec.structs.replace(code, **own) for name, code in found.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(found).decode())
    return found


def code_here(root: Path, definition: str, solution: str, found_in: str, form: int) -> CodeSeen:
    """machine_code() in this process, which is a worker."""
    chosen, (nvcc, compiler) = Catalog.open(Path(found_in)).solution(solution), _compiler()
    with _built(Catalog.open(root).definition(definition), chosen, nvcc) as kept:
        return CodeSeen(_read(chosen, compiler, kept, form))


def build_digest(solution: Solution) -> str:
    """A digest of everything that determines nvcc's result: the tokens of the CUDA sources, and the Python code about
    libraries."""
    cuda = {path: text for path, text in solution.sources.items() if not path.endswith(".py")}
    return solution.digest_of([*running_parts(cuda), *building(solution)])


def unbuilt(solution: Solution) -> MachineCode:
    """The code of a version with the same build_digest() as the other, without a build: only its Python can differ."""
    return MachineCode(f"sm_{ARCHITECTURE}", UNBUILT, {}, (), {}, python_digest(solution), FORM)


def cubins_of(definition: Definition, solution: Solution) -> list[bytes]:
    """nvcc's cubins of the solution's kernels. DerbyError as for machine_code()."""
    with _built(definition, solution, _compiler()[0]) as kept:
        return [path.read_bytes() for path in _cubins(kept)]


@contextmanager
def _built(definition: Definition, solution: Solution, nvcc: str) -> Iterator[Path]:
    """Builds, and gives the folder in which nvcc kept its files, one folder per call."""
    with tempfile.TemporaryDirectory(prefix="kernelderby-") as scratch, _kept(nvcc, Path(scratch)) as kept:
        try:
            _build(definition, solution, Path(scratch, "built"))
        except (BuildFailed, RuntimeError, ImportError) as error:
            raise DerbyError(f"{solution.name}: cannot be built: {error}") from None
        yield kept


def _cubins(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.cubin") if not file.stem.endswith("_dlink"))


def _build(definition: Definition, solution: Solution, folder: Path) -> None:
    """Builds every CudaLibrary of main.py, or calls its own build(folder)."""
    load_solution(definition, solution)
    module = solution_module(solution)
    libraries = [value for value in vars(module).values() if type(value).__name__ == "CudaLibrary"]
    if not libraries and not hasattr(module, "build"):
        raise BuildFailed("its main.py has neither a CudaLibrary nor build(folder)")
    for library in libraries:
        library.build(ARCHITECTURE, folder)
    if not libraries:
        module.build(folder)


@contextmanager
def _kept(nvcc: str, scratch: Path) -> Iterator[Path]:
    """In this context the nvcc on the PATH keeps its files in the given folder, in one folder per call."""
    kept, wrapper = scratch / "kept", scratch / "bin" / "nvcc"
    kept.mkdir()
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(kept=kept, nvcc=nvcc))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{wrapper.parent}{os.pathsep}{before}"
    try:
        yield kept
    finally:
        os.environ["PATH"] = before


def _read(solution: Solution, compiler: str, kept: Path, form: int) -> dict[str, MachineCode]:
    libraries: dict[str, list[MachineCode]] = {}
    for folder in sorted(kept.iterdir()):
        kernels: dict[str, str] = {}
        data, host = list[str](), dict[str, str]()
        own: dict[str, str] = {}
        try:
            for file in _cubins(folder):
                found = kernels_of(file.read_bytes())
                own |= found.digests
                kernels |= _named_once(found.digests, kernels)
                data.append(found.data)
            for file in sorted(folder.glob("*.s")):
                if not file.stem.endswith("_dlink"):
                    host |= launches(file.read_text(), own, form)
        except ValueError as error:
            raise DerbyError(f"{solution.name}: {file.name}: {error}") from None
        how = f"sm_{ARCHITECTURE}", compiler, kernels, tuple(sorted(data)), host, python_digest(solution), form
        libraries.setdefault(_library_of(folder), []).append(MachineCode(*how))
    code = {name: joined({str(number): part for number, part in enumerate(parts)}) for name, parts in libraries.items()}
    if not any(each.kernels for each in code.values()) or not any(each.host for each in code.values()):
        raise DerbyError(f"{solution.name}: nvcc kept no kernels or no host code")
    return code


def _library_of(folder: Path) -> str:
    """The name of the library that nvcc wrote, without the digest at its end."""
    words = (folder / "arguments").read_text().splitlines()
    made = next((file for word, file in pairwise(words) if word == "-o"), folder.name)
    return re.sub(r"_[0-9a-f]{16}\Z", "", Path(made).stem)


def _named_once(digests: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """The kernels under names without nvcc's numbers for anonymous namespaces; equal names get a number."""
    found: dict[str, str] = {}
    for name, digest in digests.items():
        plain = unique = _plain(name)
        while unique in others or unique in found:
            unique = f"{plain} {int(unique.removeprefix(plain) or 1) + 1}"
        found[unique] = digest
    return found


def _plain(name: str) -> str:
    """The name with its anonymous namespace mangled as other compilers do, with the length before it."""
    while found := _ANONYMOUS.search(name):
        name = f"{name[: found.start()]}12_GLOBAL__N_1{name[found.start(2) + int(found[1]) :]}"
    return name


def _compiler() -> tuple[str, str]:
    """nvcc's path, and the versions of both compilers."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc") or next(
        (f"{home}/bin/nvcc" for home in homes if home and os.path.isfile(f"{home}/bin/nvcc")), None
    )
    if nvcc is None:
        raise DerbyError("no nvcc on the PATH, in $CUDA_HOME or in /usr/local/cuda; install the CUDA toolkit")
    version = re.search(r"V([\d.]+)", _output([nvcc, "--version"]))
    return nvcc, f"nvcc {version[1] if version else 'unknown'}, {_output(['gcc', '--version']).splitlines()[0]}"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DerbyError(f"{command[0]}: {error}") from None


def library_files(
    catalog: Catalog, solutions: Sequence[Solution], architecture: str, told: Callable[[str], None]
) -> dict[str, dict[str, bytes] | str]:
    """Solution -> name -> file of every CudaLibrary of its modules, or one line that says why there is none.
    architecture: "90a". told: called for each solution that is built. A separate cache for each solution keeps the
    files."""

    def of_one(solution: Solution) -> dict[str, bytes] | str:
        told(solution.name)
        try:
            return _files(catalog, solution, architecture)
        except DerbyError as error:
            return str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, interruptible():
        return dict(zip([each.name for each in solutions], pool.map(of_one, solutions), strict=True))


def _files(catalog: Catalog, solution: Solution, architecture: str) -> dict[str, bytes]:
    with fenced(catalog, solution) as ask:
        paths = ask(LibrariesSeen, libraries_here, architecture=architecture).paths
    if wrong := next((name for name in paths if not _NAME.fullmatch(name)), None):
        raise DerbyError(f"a library is called {text(wrong, 80)!r}; name it by letters, digits and underscores")
    own = cache_folder().resolve()
    for name, path in paths.items():  # the worker has ended; it may see fewer files than this process
        if not Path(path).resolve().is_relative_to(own):
            raise DerbyError(f"{name}: was built at {text(path, 200)!r}, outside of the cache; build it there")
    return {name: read_bytes(Path(path).resolve()) for name, path in paths.items()}


def libraries_here(root: Path, definition: str, solution: str, architecture: str) -> LibrariesSeen:
    """library_files() of one solution in this process, which is a worker."""
    catalog = Catalog.open(root)
    chosen = catalog.solution(solution)
    try:
        load_solution(catalog.definition(definition), chosen)
        main = solution_module(chosen).__name__
        own = [each for name, each in [*sys.modules.items()] if name == main or name.startswith(f"{main}.")]
        libraries = [each for one in own for each in vars(one).values() if type(each).__name__ == "CudaLibrary"]
        return LibrariesSeen({each.name: str(each.build(architecture)) for each in libraries})
    except (BuildFailed, RuntimeError, ImportError) as error:
        raise DerbyError(str(error)) from None
