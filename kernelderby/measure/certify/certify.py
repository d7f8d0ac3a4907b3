"""`derby certify`: rows of a former version count for the present one if both give the same machine code."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.same_code import (
    SHORTEST_REASON,
    Certificate,
    Certificates,
    HostChange,
    MachineCode,
    Version,
    certificate_files,
    certificates_path,
    read_certificates,
)
from kernelderby.errors import DerbyError
from kernelderby.measure.certify import build
from kernelderby.measure.certify.assembly import FORM
from kernelderby.measure.certify.launches import launches_here
from kernelderby.measure.certify.python import python_digest
from kernelderby.measure.judge.fenced import Ask, fenced
from kernelderby.measure.machine.commit import at_revision, has_revision, revision_of
from kernelderby.measure.wire.process import interruptible
from kernelderby.measure.wire.replies import LaunchesSeen
from kernelderby.rows import certified
from kernelderby.rows.certified import Certified, CertifyOutcome, Contradiction, LaunchDifference
from kernelderby.store.counts import counted
from kernelderby.store.files import write_whole

Libraries = dict[str, MachineCode] | str  # or the reason why there is none
_BUILDS = 2  # builds at a time
_SHOWN = 3  # workloads with other launches


def certify(root: Path, names: Sequence[str], since: str, host_change: str | None = None) -> list[Certified]:
    """Builds the named CUDA solutions (default: all whose code changed since the revision) in both versions. If both
    give the same machine code, writes the certificate. host_change: why the host code may differ although the launches
    are the same; then only graph times of former rows count."""
    if host_change is not None and len(host_change) < SHORTEST_REASON:
        raise DerbyError("--host-change: say in a sentence what differs, and that the launches do not")
    catalog = Catalog.open(root)
    revision = revision_of(root, since)
    with at_revision(root, revision) as former:
        chosen = catalog.solutions_named(names) or list(catalog.solutions.values())
        changed = [each for each in chosen if each.has_cuda and _changed(each, former)]
        verdicts = [
            Certified(each.name, True, (_why_not(each, former),)) for each in chosen if names and each not in changed
        ]
        pairs = [(former.solution(each.name), each) for each in changed]
        alike = [version for pair in pairs if len({*map(build.build_digest, pair)}) == 1 for version in pair]
        places = former.root, root
        others = [job for pair in pairs for job in zip(places, pair, strict=True) if job[1] not in alike]
        codes = {text: _joined(each) for text, each in _build_all(catalog, others).items()}
        codes |= {each.text_hash: build.unbuilt(each) for each in alike}
        for then, now in pairs:
            found = _judge(then, now, revision, codes[then.text_hash], codes[now.text_hash], host_change)
            if isinstance(found, Certificate):
                verdicts.append(Certified(now.name, True, (_write(root, now.name, found),)))
            else:
                verdicts.append(Certified(now.name, False, tuple(found), revision=revision))
    return verdicts


def certify_launches(root: Path, names: Sequence[str], since: str) -> list[Certified]:
    """The same for changed host code or Python, including Triton solutions. Records the launches of both versions on
    each recorded workload. If they are the same, graph times of former rows count."""
    catalog = Catalog.open(root)
    revision = revision_of(root, since)
    verdicts = []
    with at_revision(root, revision) as former:
        chosen = catalog.solutions_named(names) or list(catalog.solutions.values())
        for now in (each for each in chosen if _changed(each, former)):
            then = _known(former.solution(now.name), now)
            rows = [row for row in catalog.traces(now.definition) if row.solution == now.name]
            timed = [(row, row.solution_hash, row.uuid) for row in rows if row.time("graph") and row.solution_hash]
            again = _replaced(root, then)
            gone = [
                row for row, *at in timed if then.has_kernels(*at) and (row.uuid in again or not now.has_kernels(*at))
            ]
            uuids = {row.uuid for row in gone}
            workloads = tuple(each for each in catalog.shapes(now.definition, gone) if each.uuid in uuids)
            if not workloads:
                continue
            alike, others = _alike(catalog, former.root, then, now, workloads, sorted({row.gpu for row in gone}))
            codes: list[MachineCode | str] = []
            libraries: tuple[str, ...] | None = None
            if not now.has_cuda:
                form = f"sm_{build.ARCHITECTURE}", f"triton {version('triton')}"  # kernels: compared launch by launch
                codes = [MachineCode(*form, {}, (), {}, python_digest(each)) for each in (then, now)]
            elif build.build_digest(then) == build.build_digest(now):
                codes = [build.unbuilt(each) for each in (then, now)]
            else:
                sides = [*_build_all(catalog, [(former.root, then), (root, now)]).values()]
                alike, changed, libraries = _of_unchanged_libraries(alike, *sides)
                others += changed
                codes = [_joined(each, libraries) for each in sides]
            why = f"launches recorded: the same on {len(alike)} of {counted(len(workloads), 'recorded workload')}"
            found = _judge(then, now, revision, codes[0], codes[1], why)
            if not alike or not isinstance(found, Certificate):
                why_none = found if isinstance(found, list) else ()
                verdicts.append(Certified(now.name, False, (*why_none, *others[:_SHOWN])))
                continue
            launches = {uuid: each.digest for uuid, each in alike.items()}
            written = _write(root, now.name, replace(found, launches=launches, libraries=libraries), why)
            verdicts.append(Certified(now.name, not others, (written, *others[:_SHOWN])))
    return verdicts


@dataclasses.dataclass(frozen=True, slots=True)
class Alike:
    """What both versions launch on one workload. libraries: names of those that are called."""

    gpu: str = ""
    digest: str = ""
    libraries: frozenset[str] = frozenset()

    def and_on(self, gpu: str, lines: Sequence[str]) -> Alike:
        names = {line.partition("(")[0] for line in lines}
        digest = hashlib.sha256(f"{self.digest}{lines}".encode()).hexdigest()[:16]
        return Alike(gpu, digest, self.libraries.union(name for name in names if name.isidentifier()))


def _of_unchanged_libraries(
    alike: dict[str, Alike], former: Libraries, present: Libraries
) -> tuple[dict[str, Alike], list[LaunchDifference], tuple[str, ...]]:
    """The workloads whose launches call unchanged libraries alone, the others, and these libraries."""
    if isinstance(former, str) or isinstance(present, str):
        return alike, [], ()
    same = build.unchanged(former, present)
    kept = {uuid: each for uuid, each in alike.items() if each.libraries <= same}
    changed = []
    for uuid in sorted(alike.keys() - kept.keys()):
        why = f"calls {min(alike[uuid].libraries - same)}, whose code has changed"
        changed.append(LaunchDifference(uuid, alike[uuid].gpu, why, why))
    called = frozenset[str]().union(*(each.libraries for each in kept.values()))
    return kept, changed, tuple(sorted(called))


def _alike(
    catalog: Catalog, former: Path, then: Solution, now: Solution, workloads: tuple[Workload, ...], gpus: Sequence[str]
) -> tuple[dict[str, Alike], list[LaunchDifference]]:
    """Workloads on which both versions launch the same on these GPUs; and the others."""
    alike = {each.uuid: Alike() for each in workloads}
    others: dict[str, LaunchDifference] = {}
    with ExitStack() as stack:
        versions = [(former, then), (catalog.root, now)]
        asks = [stack.enter_context(fenced(catalog, each)) for _, each in versions]
        pool = stack.enter_context(ThreadPoolExecutor(_BUILDS))
        stack.enter_context(interruptible())
        for gpu in gpus:
            left = workloads
            for exact in (False, True):  # different intermediate code may still give the same machine code
                jobs = [
                    pool.submit(_launches, ask, place, left, gpu, exact)
                    for ask, (place, _) in zip(asks, versions, strict=True)
                ]
                before, after = (job.result() for job in jobs)
                same = {uuid for uuid, lines in after.items() if isinstance(lines, list) and lines == before[uuid]}
                for uuid in same:
                    alike[uuid] = alike[uuid].and_on(gpu, after[uuid])
                left = tuple(each for each in left if each.uuid not in same)
                if not left:
                    break
            for each in left:
                others[each.uuid] = LaunchDifference(each.uuid, gpu, before[each.uuid], after[each.uuid])
    return {uuid: each for uuid, each in alike.items() if uuid not in others}, list(others.values())


def _launches(
    ask: Ask, place: Path, workloads: tuple[Workload, ...], gpu: str, exact: bool
) -> dict[str, list[str] | str]:
    """The launches on every workload, from a worker. place: the set that has the solution."""
    uuids, lines = [each.uuid for each in workloads], [each.raw for each in workloads]
    asked: dict[str, Any] = {"found_in": str(place.resolve()), "lines": lines, "gpu": gpu, "exact": exact}
    try:
        found = ask(LaunchesSeen, launches_here, **asked).launched
    except DerbyError as error:
        return dict.fromkeys(uuids, str(error))
    return {uuid: found.get(uuid, "the worker does not say") for uuid in uuids}


def check(root: Path, names: Sequence[str]) -> Iterator[Certified]:
    """Builds the present sources of all certificates again, and the former ones if git has their revision, and
    compares. One after another, since each takes up to minutes."""
    catalog = Catalog.open(root)
    missing = [name for name in names if not certificates_path(root, name).is_file()]
    if missing:
        raise DerbyError(f"{certificates_path(root, missing[0])}: is missing; there is no certificate to check")
    for path in certificate_files(root):
        if names and path.stem not in names:
            continue
        now = catalog.solution(path.stem)
        for number, each in enumerate(read_certificates(path)):
            problems = tuple(_contradictions(root, catalog, now, each))
            is_unbuilt = each.code.compiler == build.UNBUILT
            sound = CertifyOutcome.CONFIRMED_UNBUILT if is_unbuilt else CertifyOutcome.CONFIRMED
            where = f"{path}: certificates[{number}]"
            yield Certified(path.stem, not problems, problems or (sound,), where)


def _contradictions(root: Path, catalog: Catalog, now: Solution, certificate: Certificate) -> Iterator[Contradiction]:
    if now.hash == certificate.after.hash and certificate.code.kernels:
        present = _joined(_built(catalog, now, root, certificate.code.form), certificate.libraries)
        yield from _unlike(certificate, "after", present)
    if certificate.before.revision and has_revision(root, certificate.before.revision):
        with at_revision(root, certificate.before.revision) as former:
            then = _known(former.solution(now.name), now)
            for field in ("hash", "text_hash"):
                found = getattr(then, field)
                if found != getattr(certificate.before, field):
                    yield certified.OtherHash(field, certificate.before.revision, found)
                    return
            if certificate.code.kernels:
                built = _joined(_built(catalog, then, former.root, certificate.code.form), certificate.libraries)
                added = certificate.launches is not None and certificate.libraries is None
                yield from _unlike(certificate, "before", build.with_added(built, certificate.code) if added else built)
            elif certificate.code.compiler == build.UNBUILT and now.hash == certificate.after.hash:
                own = [certificate.host_change or python_digest(each) for each in (then, now)]
                is_same = build.build_digest(then) == build.build_digest(now) and own[0] == own[1]
                if not is_same or certificate.code.python != python_digest(now):
                    yield CertifyOutcome.OTHER_SOURCES
            if certificate.launches is not None and now.hash == certificate.after.hash:
                for uuid in _other_launches(former.root, catalog, then, now, certificate.launches):
                    yield certified.LaunchesContradicted(uuid)


def _unlike(certificate: Certificate, name: str, found: MachineCode | str) -> Iterator[Contradiction]:
    """name: before or after."""
    if isinstance(found, str):
        yield certified.SideContradicted(name, found)
    elif found.compiler != certificate.code.compiler:
        yield certified.OtherCompiler(certificate.code.compiler, found.compiler)
    else:
        told = certificate.code_of(getattr(certificate, name))
        yield from (certified.SideContradicted(name, each) for each in build.differences(told, found))


def _other_launches(former: Path, catalog: Catalog, then: Solution, now: Solution, told: dict[str, str]) -> list[str]:
    """Workloads of a certificate on which the versions launch different kernels, or other launches than the certificate
    says."""
    rows = [row for row in catalog.traces(now.definition) if row.solution == now.name]
    gpus = sorted(
        {row.gpu for row in rows if row.time("graph") and then.has_kernels(row.solution_hash or "", row.uuid)}
    )
    workloads = tuple(each for each in catalog.shapes(now.definition, rows) if each.uuid in told)
    alike, _ = _alike(catalog, former, then, now, workloads, gpus)
    return sorted(uuid for uuid, digest in told.items() if alike.get(uuid, Alike()).digest != digest)


def _known(then: Solution, now: Solution) -> Solution:
    """The former version with the equal hashes of today's certificates."""
    return dataclasses.replace(then, same_code=now.same_code, same_kernels=now.same_kernels)


def _changed(now: Solution, former: Catalog) -> bool:
    then = former.solutions.get(now.name)
    return then is not None and not now.has_code(then.hash)


def _why_not(now: Solution, former: Catalog) -> CertifyOutcome:
    then = former.solutions.get(now.name)
    if then is None:
        return CertifyOutcome.NEW_SOLUTION
    if now.hash == then.hash:
        return CertifyOutcome.SAME_TOKENS
    return CertifyOutcome.CERTIFIED_ALREADY if now.has_code(then.hash) else CertifyOutcome.NO_CUDA


def _judge(
    then: Solution,
    now: Solution,
    revision: str,
    former: MachineCode | str,
    present: MachineCode | str,
    host_change: str | None,
) -> Certificate | list[certified.CodeDifference | str]:
    """The certificate, or why there is none."""
    if isinstance(former, str) or isinstance(present, str):
        return [former if isinstance(former, str) else str(present)]
    change = None
    if host_change is not None and (former.host, former.python) != (present.host, present.python):
        change = HostChange(host_change, former.host, former.python)
        former = replace(former, host=present.host, python=present.python)
    if unequal := build.differences(former, present):
        return [*unequal]
    versions = Version(then.hash, then.text_hash, revision), Version(now.hash, now.text_hash)
    return Certificate(*versions, present, datetime.now(UTC).date().isoformat(), change)


def _replaced(root: Path, former: Solution) -> set[str]:
    """Workloads of the certificate that a new one of the same former version replaces."""
    found = read_certificates(certificates_path(root, former.name))
    return {uuid for each in found if each.before.hash == former.hash for uuid in each.launches or ()}


def _write(root: Path, name: str, certificate: Certificate, reason: str = "") -> certified.CertificateWritten:
    path = certificates_path(root, name)
    others = [each for each in read_certificates(path) if each.before.hash != certificate.before.hash]
    data = msgspec.json.encode(Certificates((*others, certificate)))
    write_whole(path, msgspec.json.format(data, indent=1) + b"\n")
    kernels = None if certificate.code.compiler == build.UNBUILT else len(certificate.code.kernels)
    return certified.CertificateWritten(str(path), kernels, certificate.host_change is not None, reason)


def _build_all(catalog: Catalog, jobs: Iterable[tuple[Path, Solution]]) -> dict[str, Libraries]:
    """By the hash of the text. jobs: solutions, with the sets that have them."""
    once = {solution.text_hash: (solution, found_in) for found_in, solution in jobs}
    with ThreadPoolExecutor(_BUILDS) as pool, interruptible():
        return dict(zip(once, pool.map(lambda job: _built(catalog, *job), once.values()), strict=True))


def _joined(libraries: Libraries, names: Sequence[str] | None = None) -> MachineCode | str:
    return libraries if isinstance(libraries, str) else build.joined(libraries, names)


def _built(catalog: Catalog, solution: Solution, found_in: Path, form: int = FORM) -> Libraries:
    try:
        return build.machine_code(catalog, solution, found_in, form)
    except DerbyError as error:
        return str(error)
