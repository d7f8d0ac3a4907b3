"""The server: a session's verbs as tools with typed answers, over standard input and output (the SDK `mcp`)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast

from kernelderby import __version__
from kernelderby.errors import DerbyError
from kernelderby.serving.session import REQUEST, Request, Session

_GIVEN = ParamSpec("_GIVEN")
_T = TypeVar("_T")
Language = Literal["python", "triton", "cuda", "cute-dsl", "tilelang", "helion"]
_INSTRUCTIONS = """Write kernels that are right and fast. A loop: `prompt` gives the task, `new` writes a candidate into
the scratch folder, `check` compares it with the reference, `bench` measures it (needs a GPU), `explain` says what
bounds it and what to try, `rank` compares it with all other solutions. Checking and measuring spend the budget."""


@dataclass
class OperatorReply:
    name: str
    op_type: str
    dtypes: list[str]
    shapes: int
    solutions: int
    importance_percent: float | None


@dataclass
class CandidateReply:
    """folder: where its sources lie. files: those in it."""

    name: str
    folder: str
    files: list[str]


@dataclass
class CaseReply:
    """why: of wrong values: the first ones, their rows, columns and tiles, whether other inputs are wrong too."""

    case: str
    status: str
    message: str
    matched_ratio: float | None
    why: list[str]


@dataclass
class CheckReply:
    """passed: all cases of the solution. skipped: why it cannot run here. secret: draws the same inputs again."""

    passed: bool
    device: str
    secret: str
    cases: list[CaseReply]
    skipped: str | None
    seconds_left: float


@dataclass
class TimedReply:
    solution: str
    workload: str
    axes: dict[str, int]
    status: str
    graph_us: float | None
    eager_us: float | None
    message: str


@dataclass
class BenchReply:
    gpu: str
    rows: list[TimedReply]
    skipped: str | None
    seconds_left: float


@dataclass
class Try:
    what: str
    saves_us: float


@dataclass
class ExplainReply:
    """Times in us. kernels: registers, shared memory, occupancy of each. experiments: the most to save first."""

    verdict: str
    workload: str
    axes: dict[str, int]
    floor_us: float | None
    reachable_us: float | None
    time_us: float | None
    rival: str | None
    rival_us: float | None
    experiments: list[Try]
    kernels: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


@dataclass
class RankedReply:
    """over_best: geomean of its times over those of the first."""

    place: int | None
    solution: str
    author: str
    passed: int
    over_best: float | None
    share_of_floor: float | None


@dataclass
class RankReply:
    operator: str
    gpu: str
    solutions: list[RankedReply]
    notes: list[str]


@dataclass
class GatedReply:
    workload: str
    verdict: str
    change_percent: float | None
    detectable_percent: float | None
    failure: str | None


@dataclass
class GateReply:
    verdict: str
    workloads: list[GatedReply]
    seconds_left: float


def server(session: Session) -> Any:
    """The MCP server of a session; .run() speaks over standard input and output. DerbyError without the SDK."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise DerbyError("derby mcp: the package mcp is missing; pip install 'kernelderby[mcp]'") from None

    class Server(MCPServer):
        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                errors = getattr(error.__cause__, "errors", None)  # of a pydantic.ValidationError
                if errors is None:
                    raise
                raise ToolError(_wrong_arguments(name, errors())) from None

    found = Server("kernelderby", version=__version__, instructions=_INSTRUCTIONS, log_level="CRITICAL")

    def tool(function: Callable[_GIVEN, _T]) -> Callable[_GIVEN, Awaitable[_T]]:
        @wraps(function)
        async def told(*given: _GIVEN.args, **named: _GIVEN.kwargs) -> _T:
            call = Request()
            REQUEST.set(call)
            try:
                return await asyncio.to_thread(partial(function, *given, **named))
            except DerbyError as error:
                raise ToolError(str(error)) from None
            except asyncio.CancelledError:
                call.withdraw()
                raise

        registered: Callable[_GIVEN, Awaitable[_T]] = found.tool(structured_output=True)(told)
        return registered

    asking = Verbs(session)
    for name in ("list", "show", "prompt", "new", "check", "bench", "explain", "rank", "gate"):
        tool(getattr(asking, name))
    return found


def _wrong_arguments(name: str, errors: Sequence[Mapping[str, Any]]) -> str:
    """One line instead of pydantic's several. errors: of a pydantic.ValidationError."""
    wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors]
    takes = [each for each in inspect.signature(getattr(Verbs, name)).parameters if each != "self"]
    return f"{name}: {'; '.join(wrong)}; it takes {', '.join(takes)}"


class Verbs:
    """What the tools do; each docstring is what a program reads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def show(self, operator: str) -> dict[str, Any]:
        """An operator's contract: axes, inputs, outputs, tolerances, workloads with costs, solutions, best times."""
        return self._session.derby("show", operator)

    def prompt(self, operator: str) -> str:
        """The task of writing a kernel for an operator: contract, reference, shapes, floors, rules, best times."""
        from kernelderby.api.trace_set import open_set

        return open_set(self._session.scratch).prompt(operator)

    def new(
        self, name: str, operator: str, language: Language = "triton", files: dict[str, str] | None = None
    ) -> CandidateReply:
        """Write a candidate. files: source path to text, main.py first of all, whose run() takes the inputs and the
        outputs to write into; without files a solution that is right and slow, to start from. A second call with the
        same name replaces the named files."""
        folder = self._session.write(name, operator, language, files or {})
        return CandidateReply(name, str(folder), sorted(path.name for path in folder.iterdir()))

    def check(self, solution: str) -> CheckReply:
        """Is it right? On a GPU at the full shapes, without one at small ones."""
        found = self._session.derby("check", solution)
        cases = [_taken(CaseReply, each, matched_ratio=_worst(each["correctness"])) for each in found["results"]]
        return _taken(
            CheckReply,
            found,
            passed=bool(cases) and all(each.status == "passed" for each in cases) and not found["broken"],
            cases=cases,
            skipped=found["skipped"].get(solution) or next(iter(found["broken"].values()), None),
            seconds_left=round(self._session.seconds, 1),
        )

    def bench(self, solutions: list[str], workloads: list[str] | None = None) -> BenchReply:
        """Measure solutions in turn on this GPU; rows go into the scratch folder. workloads: starts of uuids, sizes of
        axes, or axis=size; all without."""
        words = [f"--solutions={','.join(solutions)}", "--again", *_only(workloads)]
        found = self._session.derby("bench", options=words)
        rows = [
            TimedReply(
                row["solution"],
                row["workload"]["uuid"],
                row["workload"]["axes"],
                row["measurement"]["status"],
                _median(row, "graph"),
                row["measurement"].get("latency_us"),
                row["measurement"].get("message", ""),
            )
            for row in found["rows"]
        ]
        skipped = "; ".join(f"{name}: {reason}" for name, reason in found["skipped"].items())
        return BenchReply(found["gpu"], rows, skipped or None, round(self._session.seconds, 1))

    def explain(self, solution: str, workload: str | None = None) -> ExplainReply:
        """What bounds a solution on a workload, and what to try next. Compiles its kernels for sm_90."""
        found = self._session.derby("explain", solution, options=[f"--workload={workload}"] if workload else [])
        floors, time, rival = found["floors_us"], found["time_us"], found["rival"]
        return _taken(
            ExplainReply,
            found,
            floor_us=floors and floors["floor_us"],
            time_us=time and time["total"],
            rival=rival and rival["solution"],
            rival_us=rival and rival["total"],
            experiments=[_taken(Try, each) for each in found["experiments"]],
        )

    def rank(self, operator: str) -> RankReply:
        """Every solution of an operator from the recorded times, candidates too; the fastest first."""
        found = self._session.derby("rank", operator)
        ranking = found["rankings"][0]
        rows = [
            _taken(
                RankedReply, each, over_best=each["geomean"] and each["geomean"]["value"], share_of_floor=each["share"]
            )
            for each in ranking["summaries"]
        ]
        return RankReply(operator, ranking["group"]["gpu"], rows, ranking["notes"])

    def gate(self, base: str, candidate: str, workloads: list[str] | None = None) -> GateReply:
        """Is a candidate slower than a base, by a paired test with known error rates? Needs a GPU."""
        found = self._session.derby("gate", base, candidate, options=_only(workloads))
        rows = [_taken(GatedReply, each, workload=each["uuid"]) for each in found["workloads"]]
        return GateReply(found["verdict"], rows, round(self._session.seconds, 1))

    def list(self, words: str = "") -> list[OperatorReply]:
        """The operators of the set, most important first. words: parts of a name, op_type or dtype."""
        found = self._session.derby("list", *words.split())
        return [_taken(OperatorReply, each) for each in found["operators"]]


def _taken(kind: type[_T], found: Mapping[str, Any], **own: Any) -> _T:
    """A reply whose fields are of the answer but for these."""
    names = [each.name for each in fields(cast(Any, kind)) if each.name not in own]
    return kind(**{name: found[name] for name in names}, **own)


def _only(workloads: Sequence[str] | None) -> Sequence[str]:
    return [f"--workloads={','.join(workloads)}"] if workloads else []


def _worst(correctness: dict[str, Any] | None) -> float | None:
    """Of the tolerance that is closest to failing."""
    return min(correctness["matched_ratio"].values(), default=None) if correctness else None


def _median(row: dict[str, Any], kind: str) -> float | None:
    timed = row["measurement"].get("times", {}).get(kind)
    return float(timed["median_us"]) if timed else None
