"""Tokens per second of a decoder with each variant's operators: predicted, then measured in turn (A B B A)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelderby.errors import DerbyError
from kernelderby.measure.decoder.layers import Decoder, DecoderSizes, LatentDecoder, LatentSizes, StepLoad
from kernelderby.measure.decoder.prediction import Prediction, predicted
from kernelderby.measure.decoder.variants import KINDS, PLAIN_TORCH, calls_of, of_package, package, plain, which_ran

VARIANTS = ("libraries", "compile", "winners")
OFF = "without "


@dataclass(frozen=True, slots=True)
class DecoderCell:
    """step_us: variant -> median time of a step. prediction: the saving of the winners on the libraries' measured step,
    predicted from recorded times; None on another device than theirs. difference: variant -> the largest difference of
    a logit to the libraries', over the largest logit. eager_us: variant -> the time of the same step launched by the
    host, without a graph. gains_us: operator -> how much longer the winners' step takes if the libraries compute that
    operator. ran: operator -> variant -> its solutions."""

    load: StepLoad
    step_us: dict[str, float]
    prediction: Prediction | None
    difference: dict[str, float]
    eager_us: dict[str, float]
    gains_us: dict[str, float]
    ran: dict[str, dict[str, list[str]]] = field(default_factory=dict)


class DoesNotFit(DerbyError):
    """The device's memory is too small for the step."""


def place(device: str) -> tuple[torch.device, str]:
    """The device, cuda or cpu, and its name. DerbyError without a GPU."""
    if device == "cpu":
        return torch.device("cpu"), "CPU"
    if not torch.cuda.is_available():
        raise DerbyError("needs a GPU, and sees none; --device cpu tries the command out, without times")
    return torch.device("cuda", torch.cuda.current_device()), torch.cuda.get_device_name()


def bench(
    sizes: DecoderSizes, loads: list[StepLoad], device: torch.device, rounds: int = 5, compiles: bool = True
) -> list[DecoderCell]:
    """On a GPU each step is a replayed CUDA graph. On a CPU it is called, and its times mean nothing. DerbyError if the
    package is not installed; DoesNotFit."""
    winners = package()
    kind = LatentDecoder if isinstance(sizes, LatentSizes) else Decoder
    cells = []
    for load in loads:
        try:
            cells.append(_cell(winners, kind(sizes, load, device), rounds, compiles))
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            raise DoesNotFit(
                f"{load.sequences} sequences of {load.context} tokens do not fit into the memory of {device.type}; "
                "give fewer --layers, a shorter --context or --prefill, or a smaller --batch"
            ) from None
    return cells


def _cell(winners: Any, decoder: Decoder, rounds: int, compiles: bool) -> DecoderCell:
    names = [name for name in VARIANTS if compiles or name != "compile"]
    calls = calls_of(decoder)
    is_gpu = decoder.device.type == "cuda"
    switched_off = {f"{OFF}{name}": name for name in dict.fromkeys(each[0] for each in calls)} if is_gpu else {}
    with torch.no_grad():
        eager = {name: _step(winners, name, decoder) for name in names}
        ran = which_ran(winners, calls, decoder.device)
        ready = _all_captured(eager, _without_library(ran)) if is_gpu else eager
        logits = {name: run().float().clone() for name, run in ready.items()}
        medians = _medians(ready, decoder.device, rounds)
        eager_us = _medians({name: eager[name] for name in names if name != "compile"}, decoder.device, rounds)
        del ready
        without = {name: _captured(_step(winners, "winners", decoder, off)) for name, off in switched_off.items()}
        beside = _medians({"winners": _captured(eager["winners"]), **without}, decoder.device, rounds) if is_gpu else {}
    is_measured = is_gpu and torch.cuda.get_device_name(decoder.device) in winners.DATA["gpus"]
    base = logits["libraries"]
    largest = base.abs().max().item() or 1.0
    return DecoderCell(
        decoder.load,
        medians,
        predicted(winners, calls, medians["libraries"], _without_library(ran)) if is_measured else None,
        {name: (own - base).abs().max().item() / largest for name, own in logits.items() if name != "libraries"},
        eager_us if is_gpu else {},
        {off: beside[name] - beside["winners"] for name, off in switched_off.items()},
        ran,
    )


def _without_library(ran: dict[str, dict[str, list[str]]]) -> list[str]:
    """The operators that plain torch computed in the libraries' step."""
    return [name for name, variants in ran.items() if PLAIN_TORCH in variants["libraries"]]


def _medians(runs: dict[str, Callable[[], torch.Tensor]], device: torch.device, rounds: int) -> dict[str, float]:
    """The median us of each, in turn A B B A."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in (*runs, *reversed(runs)):
            times[name].append(_timed(runs[name], device))
    return {name: statistics.median(own) for name, own in times.items()}


def _step(winners: Any, name: str, decoder: Decoder, off: str | None = None) -> Callable[[], torch.Tensor]:
    """The variant's step, after one call. off: an operator that the libraries compute."""
    kinds = KINDS.get(name, KINDS["libraries"])
    operators = of_package(winners, {each[0] for each in calls_of(decoder)})
    if name == "compile":
        operators |= plain(decoder)
    if off is not None:
        whole = operators[off]

        def left_to_libraries(*given: Any) -> Any:
            with winners.only("library"):
                return whole(*given)

        operators[off] = left_to_libraries

    def step() -> torch.Tensor:
        return decoder.step(operators)

    run = torch.compile(step, dynamic=False) if name == "compile" else step

    def called() -> torch.Tensor:
        with winners.only(*kinds):
            return run()

    called()
    return called


def _all_captured(
    eager: dict[str, Callable[[], torch.Tensor]], without_library: list[str]
) -> dict[str, Callable[[], torch.Tensor]]:
    """DerbyError if plain torch stands for a library and reads from the GPU, as the experts' does: that ends a
    capture."""
    try:
        return {name: _captured(run) for name, run in eager.items()}
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not without_library:
            raise
        raise DerbyError(
            f"the libraries' step cannot be captured ({str(error).splitlines()[0]:.80}): no library of "
            f"{', '.join(without_library)} is installed; install one (vllm, deep_gemm or sgl_kernel)"
        ) from None


def _captured(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The step as a replayed CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay


def _timed(run: Callable[[], torch.Tensor], device: torch.device) -> float:
    """The us of one step."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start_event.record()
    run()
    end_event.record()
    end_event.synchronize()
    return float(start_event.elapsed_time(end_event) * 1e3)
