"""What the reference gives, computed once for all who race: they are compared on the same contents."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition
from kernelderby.measure.judge.correctness import Outputs, reference_outputs

_KEPT_BYTES = 1 << 30
_OF_MEMORY = 64  # and no more than this part of a GPU's


class References:
    """Of one case. seconds: what the last one took to compute."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._kept: dict[frozenset[tuple[str, int]], Outputs] = {}
        self._nbytes = 0
        self.redraw()

    def of(
        self, definition: Definition, module: ModuleType, inputs: dict[str, Any], sums: Mapping[str, int]
    ) -> Outputs:
        """sums: checksums of all tensors among the inputs. What is kept is a copy: a reference may give back its
        inputs, and those are written over."""
        contents = frozenset(sums.items())
        if contents in self._kept:
            return self._kept[contents]
        start = time.monotonic()
        found = reference_outputs(definition, module, inputs)
        nbytes, most = sum(tensor.nbytes for tensor in found.values()), _most_bytes(next(iter(found.values())).device)
        while self._kept and self._nbytes + nbytes > most:
            self._nbytes -= sum(tensor.nbytes for tensor in self._kept.pop(next(iter(self._kept))).values())
        if nbytes <= most:
            self._kept[contents] = {name: tensor.clone() for name, tensor in found.items()}
            self._nbytes += nbytes
        self.seconds = time.monotonic() - start
        return found

    def drawn(self, name: str, iterations: int) -> list[int]:
        """The calls of a series in the order in which they are compared, the same for all who race, each order as
        likely as any other."""
        return random.Random(f"{self._token}/{name}").sample(range(iterations), iterations)

    def clear(self) -> None:
        self._kept, self._nbytes = {}, 0

    def redraw(self) -> None:
        """Once somebody is out: another solution could see that, and know of a call that is compared."""
        self._token = secrets.token_hex(16)


def _most_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _KEPT_BYTES
    return min(_KEPT_BYTES, int(torch.cuda.get_device_properties(device).total_memory) // _OF_MEMORY)
