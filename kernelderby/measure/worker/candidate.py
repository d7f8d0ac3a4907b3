"""A loaded solution: passes its inputs and takes its outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from kernelderby.catalog import Definition
from kernelderby.measure.judge.correctness import Outputs, named_outputs, synchronize
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.wire.replies import SetUpTaken, Wrong
from kernelderby.measure.wire.shared import Place, private_set
from kernelderby.rows.measurement import Status


class Candidate:
    """A loaded entry point, with the way in which it gets its inputs and gives its outputs.

    in_place: output -> the input in its memory. The call gets the output's buffer for that input too: a private copy of
    the input, which correctness.make_ready() rewrites.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        destination_passing_style: bool,
        definition: Definition,
        in_place: dict[str, str] | None = None,
        setup: Callable[..., Any] | None = None,
    ) -> None:
        self.function = function
        self.destination_passing_style = destination_passing_style
        self.definition = definition
        self.in_place = in_place or {}
        self._setup = setup
        self._shared = {name: output for output, name in self.in_place.items()}

    def set_up(self, inputs: dict[str, Any], device: torch.device) -> tuple[dict[str, Any], SetUpTaken | None]:
        """Runs setup on the constant inputs. Keeps its keyword arguments for the calls, and returns its cost; None
        without a setup. Its exceptions pass through; TypeError if it does not return a dict."""
        if self._setup is None:
            return {}, None
        synchronize(device)
        held, start = _free_memory(device), time.perf_counter()
        values = self._setup(**{name: inputs[name] for name in self.definition.of_setup})
        synchronize(device)
        seconds = time.perf_counter() - start
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            raise TypeError(
                f"setup returned a {type(values).__name__}; it must return a dict with names for keys, "
                "which the calls get as keyword arguments"
            )
        return values, SetUpTaken(seconds, max(0, held - _free_memory(device)))

    def new_outputs(self, maker: InputMaker) -> Outputs:
        """Buffers for the outputs; empty for a solution that returns its outputs."""
        if not self.destination_passing_style:
            return {}
        return private_set({}, maker.output_places(), maker.device).outputs

    def __call__(self, inputs: dict[str, Any], outputs: Outputs, prepared: dict[str, Any] | None = None) -> Any:
        """Runs the solution with the arguments from set_up(), if it was called. All exceptions pass through, sys.exit
        included."""
        given: Iterable[Any] = inputs.values()
        if self._shared:
            given = [outputs[self._shared[name]] if name in self._shared else value for name, value in inputs.items()]
        written = outputs.values() if self.destination_passing_style else ()
        if prepared:
            returned = self.function(*given, *written, **prepared)
        else:
            returned = self.function(*given, *written)
        return outputs if self.destination_passing_style else returned

    def fitting(self, returned: Any, places: Mapping[str, Place], device: torch.device) -> Outputs:
        """The outputs of a call, name -> tensor, with the shapes and dtypes in `places`. Wrong if they differ."""
        outputs = named_outputs(self.definition, returned)
        for name, (shape, dtype) in places.items():
            tensor = outputs[name]
            if type(tensor) is not torch.Tensor:
                raise Wrong(Status.WRONG_DTYPE, f"{name} is a {type(tensor).__name__}, not a tensor")
            if tuple(tensor.shape) != shape:
                raise Wrong(Status.WRONG_SHAPE, f"{name} has shape {tuple(tensor.shape)}, not {shape}")
            if tensor.dtype != dtype:
                raise Wrong(Status.WRONG_DTYPE, f"{name} has dtype {tensor.dtype}, not {dtype}")
            if tensor.device.type != device.type:
                raise Wrong(Status.WRONG_DTYPE, f"{name} is on {tensor.device}, not on {device}")
        return outputs


def _free_memory(device: torch.device) -> int:
    """Free bytes of a GPU, including torch's cache; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
