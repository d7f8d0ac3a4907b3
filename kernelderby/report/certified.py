"""Results of `derby certify` in words."""

from __future__ import annotations

from textwrap import shorten

from kernelderby.rows import certified
from kernelderby.rows.certified import CertifyOutcome, CodeDifference, CodePart
from kernelderby.store.counts import counted

_OUTCOMES = {
    CertifyOutcome.NEW_SOLUTION: "nothing to certify: {solution} was not there",
    CertifyOutcome.SAME_TOKENS: "nothing to certify: the same tokens",
    CertifyOutcome.CERTIFIED_ALREADY: "nothing to certify: certified already",
    CertifyOutcome.NO_CUDA: "nothing to certify: it compiles no CUDA with nvcc",
    CertifyOutcome.CONFIRMED: "what a build gives",
    CertifyOutcome.CONFIRMED_UNBUILT: "nothing to build, the same Python",
    CertifyOutcome.OTHER_SOURCES: "code: the sources that nvcc takes, or the Python, are not the same; make it again",
}
_PARTS = {
    CodePart.ARCHITECTURE: "architecture: {former} and {present}",
    CodePart.COMPILER: "compiler: {former} and {present}",
    CodePart.CHANGED_KERNEL: "kernel {name}: other instructions",
    CodePart.FORMER_KERNEL: "kernel {name}: only in the first",
    CodePart.PRESENT_KERNEL: "kernel {name}: only in the second",
    CodePart.KERNEL_COUNT: "kernels: one stands there more often",
    CodePart.GPU_DATA: "variables on the GPU differ",
    CodePart.HOST_CODE: "host code of {name} differs, so it may launch otherwise",
    CodePart.PYTHON: "Python code differs (names of headers in lists do not count)",
}


def certified_lines(found: certified.Certified) -> list[str]:
    lines = [_line(each, found.solution) for each in found.findings]
    if found.certificate:
        return [f"{found.certificate}: {line}" for line in lines]
    if found.revision:
        lines.append(f"instructions: python benchmarks/compare_sass.py {found.solution} {found.revision[:10]} .")
    return lines


def _line(finding: certified.CertifyFinding, solution: str) -> str:
    match finding:
        case str():
            return finding
        case CertifyOutcome():
            return _OUTCOMES[finding].format(solution=solution)
        case CodeDifference(part, name, former, present):
            return _PARTS[part].format(name=name, former=former, present=present)
        case certified.CertificateWritten(path, kernels, has_other_host, reason):
            what = "the same kernels, other host code" if has_other_host else "the same machine code"
            built = "nothing to build" if kernels is None else counted(kernels, "kernel")
            return f"{f'{reason}: ' if reason else ''}{what} ({built}): wrote {path}"
        case certified.LaunchDifference(uuid, gpu, former, present):
            sides = [_first_line(former), _first_line(present)]
            return f"{uuid[:8]} on {gpu}: {' | '.join(dict.fromkeys(sides))}"
        case certified.SideContradicted(side, str() as message):
            return f"{side}: {message}"
        case certified.SideContradicted(side, difference):
            return f"{side}: {_line(difference, solution)}; make it again"
        case certified.OtherCompiler(former, here):
            return f"code.compiler: is {former}, here is {here}; check it with that one"
        case certified.OtherHash(field, revision, found):
            return f"before.{field}: at {revision[:10]} it is {found}; make it again"
        case certified.LaunchesContradicted(uuid):
            return f"launches.{uuid}: is not what a call launches there; make it again"


def _first_line(launches: list[str] | str) -> str:
    return shorten(launches if isinstance(launches, str) else "; ".join(launches), 150, placeholder=" ...")
