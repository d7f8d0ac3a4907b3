"""What the process that profiles one solution on one workload is asked for; it answers with ProfileDone."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kernelderby.store.fields import Count


class ProfileRequest(Struct, frozen=True):
    """case: Case.to_json. reply: the path of the answer. output: the SQLite file that CUPTI's records go into; None
    where a profiler around the process records between cudaProfilerStart and Stop: all calls and what lies between
    them (nsys), or call_by_call (ncu, which runs every kernel there some ten times)."""

    root: str
    definition: str
    solution: str
    case: dict[str, Any]
    iterations: Count
    reply: str
    output: str | None
    call_by_call: bool = False
