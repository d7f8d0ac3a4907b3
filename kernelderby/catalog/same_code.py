"""Hashes of equal code of a solution, from certificates/ beside traces/.

certificates/texts.json: hash of the text -> hash of the code, of the sources as they were when rows carried the former.
certificates/machine_code/<solution>.json: builds of two versions of a CUDA solution that gave the same machine code;
`derby certify` makes them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from kernelderby.catalog.model import Solution
from kernelderby.errors import DerbyError
from kernelderby.store.fields import must_be, read_json

SHORTEST_REASON = 10  # characters
Hash = Annotated[str, must_be("a hash of 16 hexadecimal digits", pattern=r"^[0-9a-f]{16}\Z")]


class Texts(Struct, frozen=True):
    """certificates/texts.json. hashes: solution -> hash of its text -> hash of its code, at the commit."""

    commit: str
    hashes: dict[str, dict[Hash, Hash]]


class MachineCode(Struct, frozen=True):
    """Digests of what runs. kernels: mangled name -> of its machine code. data: of the variables on the GPU, a digest a
    library. host: function of a library -> of the CPU's code that launches the kernels. python: of the Python sources
    and of how they are called. form: of the digests of host; what was made in another is not compared."""

    architecture: str
    compiler: str
    kernels: dict[str, Hash]
    data: tuple[Hash, ...]
    host: dict[str, Hash]
    python: Hash
    form: int = 4

    def contradicts(self, other: MachineCode) -> bool:
        """Whether one compiler would have made both of the same sources, which it does not."""
        mine, its = (
            (sorted(each.kernels.values()), each.data, each.host, each.python, each.architecture)
            for each in (self, other)
        )
        return (self.compiler, self.form) == (other.compiler, other.form) and mine != its

    def is_part_of(self, other: MachineCode) -> bool:
        """Whether the other has all these kernels, host code and variables, and maybe more."""
        kept = self.kernels.items() <= other.kernels.items() and self.host.items() <= other.host.items()
        return kept and not Counter(self.data) - Counter(other.data)


class Version(Struct, frozen=True):
    """Sources of a solution. revision: the commit that has them."""

    hash: Hash
    text_hash: Hash
    revision: str | None = None


class HostChange(Struct, frozen=True):
    """What the host ran before, where that is not the same; why: in what it differs, and that the launches do not."""

    why: Annotated[str, must_be("a sentence that says what changed on the host", min_length=SHORTEST_REASON)]
    host: dict[str, Hash]
    python: Hash


class Certificate(Struct, frozen=True):
    """Both versions gave this machine code, but for what host_change says. launches: workload -> digest of what a call
    launches, of those workloads on which both versions launch the same; None where nobody looked, for all of them."""

    before: Version
    after: Version
    code: MachineCode
    date: str
    host_change: HostChange | None = None
    launches: dict[str, Hash] | None = None

    def code_of(self, version: Version) -> MachineCode:
        change = self.host_change
        if version is self.after or change is None:
            return self.code
        return replace(self.code, host=change.host, python=change.python)

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Hashes that rows may carry, and that mean one version."""
        return (self.before.text_hash, self.before.hash), (self.after.text_hash, self.after.hash)


class Certificates(Struct, frozen=True):
    """certificates/machine_code/<solution>.json, in the order in which they were made."""

    certificates: tuple[Certificate, ...]


def texts_path(root: Path) -> Path:
    return root / "certificates" / "texts.json"


def certificates_path(root: Path, solution: str) -> Path:
    return root / "certificates" / "machine_code" / f"{solution}.json"


def certificate_files(root: Path) -> list[Path]:
    return sorted((root / "certificates" / "machine_code").glob("*.json"))


def read_certificates(path: Path) -> tuple[Certificate, ...]:
    """DerbyError where one is broken, and where two say different things of one version."""
    found = read_json(path, Certificates).certificates if path.is_file() else ()
    seen: dict[str, tuple[int, MachineCode]] = {}
    for number, each in enumerate(found):
        for version in (each.before, each.after):
            own = each.code_of(version)
            other, code = seen.setdefault(version.hash, (number, own))
            # Of a certificate of launches the version before may lack libraries that came (measure/certify/build.py).
            came = each.launches is not None and version is each.before and code.is_part_of(own)
            if code.contradicts(own) and not came:
                raise DerbyError(
                    f"{path}: certificates[{number}].code: is not that of certificates[{other}], though both are of "
                    f"{version.hash}; remove them and run `derby certify`"
                )
    return found


def read_same_code(root: Path, left_out: Callable[[str], None]) -> Callable[[Solution], Solution]:
    """Gives a solution with all that the certificates of the set say of its hashes. A file that is broken is told to
    left_out."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    host_changes: dict[str, list[tuple[str, str, frozenset[str] | None]]] = {}
    path = texts_path(root)
    try:
        if path.is_file():
            for name, hashes in read_json(path, Texts).hashes.items():
                pairs.setdefault(name, []).extend(hashes.items())
    except DerbyError as error:
        left_out(str(error))
    for path in certificate_files(root):
        try:
            for each in read_certificates(path):
                pairs.setdefault(path.stem, []).extend(each.texts)
                ends = each.before.hash, each.after.hash
                if each.host_change is None:
                    pairs.setdefault(path.stem, []).append(ends)
                else:
                    on = None if each.launches is None else frozenset(each.launches)
                    host_changes.setdefault(path.stem, []).append((*ends, on))
        except DerbyError as error:
            left_out(str(error))

    def with_hashes(solution: Solution) -> Solution:
        own, changed = pairs.get(solution.name, ()), host_changes.get(solution.name, ())
        if not own and not changed:
            return solution
        return dataclasses.replace(solution, same_code=groups(own), same_kernels=tuple(changed))

    return with_hashes


def groups(pairs: Iterable[tuple[str, str]]) -> tuple[frozenset[str], ...]:
    """What pairs of equals make equal: a chain is one group."""
    found: list[frozenset[str]] = []
    for pair in pairs:
        touched = [group for group in found if not group.isdisjoint(pair)]
        found = [group for group in found if group not in touched] + [frozenset(pair).union(*touched)]
    return tuple(found)


def stale(root: Path, solutions: Mapping[str, Solution]) -> Iterator[str]:
    """A line for each solution that the set has not, and for each certificate that leads to no present code. What is
    broken is passed over: read_same_code() has told it."""
    path = texts_path(root)
    with suppress(DerbyError):
        for name in read_json(path, Texts).hashes if path.is_file() else ():
            if name not in solutions:
                yield f"{path}: hashes.{name}: is no solution of the set; remove it"
    for path in certificate_files(root):
        if path.stem not in solutions:
            yield f"{path}: {path.stem} is no solution of the set; remove the file"
            continue
        with suppress(DerbyError):
            for number, each in enumerate(read_certificates(path)):
                if not solutions[path.stem].has_kernels(each.after.hash):
                    yield (
                        f"{path}: certificates[{number}].after.hash: {each.after.hash} is not the present code "
                        f"({solutions[path.stem].hash}); run `derby certify {path.stem} --since "
                        f"{each.before.revision}`, or remove it if the code was meant to change"
                    )
