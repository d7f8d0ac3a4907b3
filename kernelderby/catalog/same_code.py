"""Hashes of equal code for each solution, from certificates/ beside traces/.

certificates/texts.json: hash of the text -> hash of the code, for the sources of the time when rows carried the hash of
the text. certificates/machine_code/<solution>.json: builds of two versions of a CUDA solution that gave the same
machine code; `derby certify` makes them.
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
    """Digests of the code that runs. kernels: mangled name -> digest of the machine code. data: one digest per library,
    of its variables on the GPU. host: function of a library -> digest of the CPU code that launches the kernels.
    python: digest of the Python sources and of the way in which they are called. form: how the digests of host were
    made; digests of another form are not compared."""

    architecture: str
    compiler: str
    kernels: dict[str, Hash]
    data: tuple[Hash, ...]
    host: dict[str, Hash]
    python: Hash
    form: int = 4

    def contradicts(self, other: MachineCode) -> bool:
        """Whether one compiler made two different codes, which is impossible from the same sources."""
        mine, its = (
            (sorted(each.kernels.values()), each.data, each.host, each.python, each.architecture)
            for each in (self, other)
        )
        return (self.compiler, self.form) == (other.compiler, other.form) and mine != its

    def is_part_of(self, other: MachineCode) -> bool:
        """Whether the other has all these kernels, host functions and variables, possibly with further ones."""
        kept = self.kernels.items() <= other.kernels.items() and self.host.items() <= other.host.items()
        return kept and not Counter(self.data) - Counter(other.data)


class Version(Struct, frozen=True):
    """The sources of a solution at one time. revision: the commit that has them."""

    hash: Hash
    text_hash: Hash
    revision: str | None = None


class HostChange(Struct, frozen=True):
    """The host code before a change. why: how it differs, and that the launches do not."""

    why: Annotated[str, must_be("a sentence that says what changed on the host", min_length=SHORTEST_REASON)]
    host: dict[str, Hash]
    python: Hash


class Certificate(Struct, frozen=True):
    """Both versions gave this machine code, except for host_change. launches: workload -> digest of a call's launches,
    for the workloads on which both versions launch the same. None: launches were not compared, and the certificate
    holds for all workloads. libraries: those whose code was compared, all that these launches call; None: all."""

    before: Version
    after: Version
    code: MachineCode
    date: str
    host_change: HostChange | None = None
    launches: dict[str, Hash] | None = None
    libraries: tuple[str, ...] | None = None

    def code_of(self, version: Version) -> MachineCode:
        change = self.host_change
        if version is self.after or change is None:
            return self.code
        return replace(self.code, host=change.host, python=change.python)

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """The hashes in rows that mean one version."""
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
    """DerbyError if a certificate is broken, or if two contradict each other about one version."""
    found = read_json(path, Certificates).certificates if path.is_file() else ()
    seen: dict[str, tuple[int, MachineCode]] = {}
    for number, each in enumerate(found):
        if each.libraries is not None:  # a part of the code of its versions
            continue
        for version in (each.before, each.after):
            own = each.code_of(version)
            other, code = seen.setdefault(version.hash, (number, own))
            # In a certificate of launches the former version may lack libraries that were added
            # (measure/certify/build.py).
            came = each.launches is not None and version is each.before and code.is_part_of(own)
            if code.contradicts(own) and not came:
                raise DerbyError(
                    f"{path}: certificates[{number}].code: is not that of certificates[{other}], though both are of "
                    f"{version.hash}; remove them and run `derby certify`"
                )
    return found


def read_same_code(root: Path, left_out: Callable[[str], None]) -> Callable[[Solution], Solution]:
    """Returns a function that adds to a solution the equal hashes from the set's certificates. left_out gets a line for
    a broken file."""
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
                if each.host_change is None and each.libraries is None:
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
    """The groups that pairs of equal hashes form: a chain is one group."""
    found: list[frozenset[str]] = []
    for pair in pairs:
        touched = [group for group in found if not group.isdisjoint(pair)]
        found = [group for group in found if group not in touched] + [frozenset(pair).union(*touched)]
    return tuple(found)


def stale(root: Path, solutions: Mapping[str, Solution]) -> Iterator[str]:
    """A line for each solution that the set lacks, and for each certificate that leads to no present code. Broken files
    are skipped, because read_same_code() reports them."""
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
