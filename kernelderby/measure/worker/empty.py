"""Calls that the judge trusts, as solutions: four bytes from an input to an output, and a copy of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kernelderby.catalog import Definition, TensorSpec
from kernelderby.measure.clock.empty_kernel import launcher
from kernelderby.measure.worker.candidate import Candidate


def trusted_definition(count: int = 1) -> Definition:
    spec = TensorSpec(("one",), "float32")
    axes: dict[str, int | None] = {"one": count}
    return Definition("trusted", "", axes, {"source": spec}, {"destination": spec}, (), "", Path(), None, "", None)


def trusted_candidate(copies: bool = False) -> Candidate:
    return Candidate(_copy if copies else _run, True, trusted_definition())


def _run(source: torch.Tensor, destination: torch.Tensor) -> Any:
    launcher(source, destination)()


def _copy(source: torch.Tensor, destination: torch.Tensor) -> None:
    destination.copy_(source)
