"""Shared by the plugins of serving engines: their switches, and the calls that an operator of this package takes
there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .operators import DATA, OPERATORS
from .solutions import PREFIX, tell

Replaced = Mapping[
    str, tuple[tuple[str, ...], Callable[[], None]]
]  # name in the switch -> its operators, the function that replaces
NOT_TAKEN = "a slice, another type than bfloat16, sizes that were not measured"


def register_in(engine: str, switch: str, replaced: Replaced, gpu: Callable[[], str | None]) -> list[str]:
    """Replaces what the environment variable `switch` names: "all", or some of `replaced`. A line of the log says what
    runs. Returns what was replaced. gpu: its name, None without one. ValueError for an unknown name."""
    names = _wanted(switch, replaced)
    if not names:
        tell(f"{PREFIX} is installed and off; ${switch}=all, or some of {', '.join(replaced)}, switches it on")
        return []
    if gpu() not in DATA["gpus"]:
        tell(f"{PREFIX} was measured on {DATA['gpus'][0]}; {engine} stays as it is here")
        return []
    done = []
    for name in names:
        operators, replace = replaced[name]
        lacking = [each for each in operators if served(each) not in OPERATORS]
        if lacking:
            tell(f"{PREFIX}: {name} stays {engine}'s: this package brings no {lacking[0]}")
            continue
        try:
            replace()
            done.append(name)
        except (ImportError, AttributeError, KeyError, TypeError) as problem:  # another version
            tell(f"{PREFIX}: {name} stays {engine}'s: {type(problem).__name__}: {problem}")
    tell(
        f"{PREFIX} runs in {engine} for {', '.join(done)}, where a model has such layers"
        if done
        else f"{PREFIX} runs nowhere in {engine}"
    )
    return done


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def stays(name: str, why: str) -> bool:
    """Says once for each name and reason that a call runs the engine's own code. torch.compile runs this while it
    traces a model and puts nothing of it into the graph."""
    tell(f"{PREFIX}: {name} runs the engine's own code in some calls: {why}")
    return True


def _wanted(switch: str, replaced: Replaced) -> list[str]:
    names = [each.strip() for each in os.environ.get(switch, "").split(",") if each.strip()]
    if names == ["all"]:
        return list(replaced)
    unknown = sorted(set(names) - set(replaced))
    if unknown:
        raise ValueError(f"${switch}: there is no {unknown[0]!r}; there are {', '.join(replaced)}, and all")
    return names


def served(name: str) -> str:
    """The operator's form with a bfloat16 output, if the package has one."""
    return f"{name}_bf16" if f"{name}_bf16" in OPERATORS else name


def operator_of(name: str) -> Any:
    return getattr(getattr(torch.ops, PREFIX), name).default


def measured(name: str, **sizes: int) -> bool:
    """Whether these sizes lie in the operator's measured region, whatever its other sizes are."""
    return OPERATORS[name].selector.reaches(sizes)


def on_gpu(*tensors: Any) -> bool:
    """Whether the tensor is bfloat16 and on a GPU."""
    for each in tensors:
        if not isinstance(each, torch.Tensor) or each.dtype is not torch.bfloat16 or not each.is_cuda:
            return False
    return True


def plain_rows(*tensors: Any) -> bool:
    """on_gpu(), and rows without gaps between them. A slice of a wider tensor would cost a copy."""
    if not on_gpu(*tensors):
        return False
    for each in tensors:  # noqa: SIM110  torch.compile traces it
        if not each.is_contiguous():
            return False
    return True
