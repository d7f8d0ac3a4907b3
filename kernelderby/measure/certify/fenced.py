"""Code of solutions, asked by one who measures nothing: it loads and compiles in a worker behind the fences, with a
limit of time.

Such a worker calls a function of this room (`build_here`, `seen_here` ...) with the set's folder and the names that it
needs. It keeps what it compiles in a folder of its own, from call to call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from kernelderby.catalog import Catalog, Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import Done, Failed

R = TypeVar("R", bound=Done)

_SECONDS = 1800.0  # for all libraries of a solution: nvcc takes up to a minute for one


class Ask(Protocol):
    """Of a worker: the answer of a function of this room."""

    def __call__(self, kind: type[R], function: Callable[..., R], seconds: float = ..., **arguments: Any) -> R: ...


@contextmanager
def fenced(catalog: Catalog, solution: Solution, compiles_triton: bool = False) -> Iterator[Ask]:
    """Gives ask(kind, function, seconds=..., **arguments). DerbyError where the solution's code is at fault or takes
    too long. catalog: of the definitions; the solution may be of another one. compiles_triton: else Triton is
    there as an interpreter, and the worker sooner."""
    python = sys.executable if compiles_triton else None
    worker = WorkerProcess(catalog.root, "cpu", True, f"kernels-{solution.text_hash}", python)

    def ask(kind: type[R], function: Callable[..., R], seconds: float = _SECONDS, **arguments: Any) -> R:
        named = {"definition": solution.definition, "solution": solution.name, **arguments}
        try:
            return worker.ask(kind, f"{function.__module__}:{function.__name__}", seconds, **named)
        except Failed as failed:
            first = shown(failed.message).partition("\n")[0]
            raise DerbyError(f"{solution.name}: its code was ended ({failed.status}: {first})") from None

    try:
        yield ask
    finally:
        worker.kill()
