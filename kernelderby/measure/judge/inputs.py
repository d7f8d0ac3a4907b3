"""Inputs of a case: seeded, so that every competitor gets the same ones, and quick to make on a GPU."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition, TensorSpec
from kernelderby.measure.judge import draws
from kernelderby.measure.judge.blame import DefinitionFailed, blamed_on
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.shared import Place

# Values of random integers, [low, high), as flashinfer-bench 0.1.2 draws them (bench/utils.py).
INTEGER_RANGE = {
    torch.int8: (-128, 128),
    torch.int16: (-1024, 1024),
    torch.int32: (-1024, 1024),
    torch.int64: (-1024, 1024),
}
FP8 = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name))
# fp8 is drawn in float32 and cast. In chunks, since a gigabyte of weights would take four gigabytes at once.
CHUNK = 1 << 26
_NONE: Mapping[str, Any] = MappingProxyType({})
POOL = 4  # contents that timed calls get in turn where every input is generated


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a definition's dtype. DefinitionFailed when this torch has none."""
    dtype = getattr(torch, {"float4_e2m1": "float4_e2m1fn_x2"}.get(name, name), None)
    if not isinstance(dtype, torch.dtype):
        raise DefinitionFailed(f"dtype {name!r}: torch {torch.__version__} has none; use a newer torch")
    return dtype


def shape_of(spec: TensorSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """() of a plain number."""
    return tuple(sizes[axis] for axis in spec.shape or ())


class InputMaker:
    """Makes and refills the inputs of one case.

    Variant 0 is the workload as published; other variants have the same sizes and scalars and other contents. What
    neither the workload nor generate_inputs gives is random as in flashinfer-bench, but seeded (the numbers depend on
    the kind of device). secret: goes into those seeds, so that nobody who knows the workload knows the numbers.
    """

    def __init__(
        self, definition: Definition, module: ModuleType, case: Case, device: torch.device, root: Path, secret: str = ""
    ) -> None:
        self.definition, self.case, self.device, self.root = definition, case, device, root
        self._secret = secret
        self._kept: dict[int | str, dict[str, torch.Tensor]] = {}
        self._generate: Callable[..., dict[str, torch.Tensor]] | None = getattr(
            module, definition.custom_inputs_entrypoint or "generate_inputs", None
        )

    def places(self) -> dict[str, Place | int | float | bool]:
        """Every input in the definition's order: (shape, dtype) of a tensor, the value of a plain number."""
        given = self._contents(0)
        places: dict[str, Place | int | float | bool] = {}
        for name, spec in self.definition.inputs.items():
            if name in self.case.scalars:
                places[name] = self.case.scalars[name]
            elif name not in given and spec.shape is None:
                number = torch.empty((), dtype=torch_dtype(spec.dtype), device=self.device)
                self._fill(name, number, 0)
                places[name] = number.item()
            else:
                places[name] = shape_of(spec, self.case.sizes), torch_dtype(spec.dtype)
        tensors = [name for name, place in places.items() if isinstance(place, tuple)]
        constant = set(self.definition.constants)
        self._random_names = [name for name in tensors if name not in given]
        self.changing = [name for name in self._random_names if name not in constant]
        # Whether refresh() of the same variant always gives the same contents: no tensor is refilled in part.
        self.restores = all(
            isinstance(place := places[name], tuple) and math.prod(place[0]) <= CHUNK for name in self.changing
        )
        return places

    def output_places(self) -> dict[str, Place]:
        """The same of the outputs."""
        return {
            name: (shape_of(spec, self.case.sizes), torch_dtype(spec.dtype))
            for name, spec in self.definition.outputs.items()
        }

    def make(self, variant: int = 0, random_variant: int | None = None) -> dict[str, Any]:
        """Every input in the definition's order: new tensors on the device, plain numbers for scalars.

        random_variant: other contents for the random tensors only, so that the work (the routing, say) stays the same.
        """
        inputs = {
            name: torch.empty(place[0], dtype=place[1], device=self.device) if isinstance(place, tuple) else place
            for name, place in self.places().items()
        }
        self.write(inputs, variant, random_variant)
        return inputs

    def write(
        self,
        inputs: dict[str, Any],
        variant: int = 0,
        random_variant: int | str | None = None,
        draw: draws.Draw = draws.NORMAL,
    ) -> None:
        """Writes what make() gives into tensors of places(), changed by `draw`."""
        self._copy_given(inputs, variant, frozenset(), draws.of_generator(self.definition, draw))
        self.refill_random(inputs, variant if random_variant is None else random_variant)
        draws.apply(self.definition, draw, inputs)

    def refill_random(self, inputs: dict[str, Any], variant: int | str) -> None:
        """Writes other random contents into the random tensors that make() made."""
        for name in self._random_names:
            self._fill(name, inputs[name], variant)

    def refresh(self, inputs: dict[str, Any], variant: str) -> None:
        """Other contents between two calls: of the random tensors that are no constants; of one that is larger than
        CHUNK elements a part of that size, somewhere in it, so that it stays quick. Where there are none, one of POOL
        generated contents."""
        if not self.changing:
            self._copy_given(inputs, f"pool/{self._number('pool', variant) % POOL}", self.definition.constants)
            return
        for name in self.changing:
            flat = inputs[name].view(-1)
            if flat.numel() > CHUNK:
                number = self._number(f"{name} from", variant) % (flat.numel() - CHUNK)
                flat = flat[number : number + CHUNK]
            self._fill(name, flat, variant)

    def rewrite(self, inputs: dict[str, Any], variant: int) -> None:
        """Writes what make(variant) gives, without the constants, into the tensors that make() made."""
        self._copy_given(inputs, variant, self.definition.constants)
        for name in self.changing:
            self._fill(name, inputs[name], variant)

    def _copy_given(
        self, inputs: dict[str, Any], variant: int | str, without: Collection[str], further: Mapping[str, Any] = _NONE
    ) -> None:
        """The contents that are not random into the tensors, but for some. further: values for the generator."""
        given = self._given(variant, further) if further else self._contents(variant)
        for name, tensor in given.items():
            if name not in without:
                inputs[name].copy_(_verified(self.definition, name, tensor, self.case))

    def _contents(self, variant: int | str) -> dict[str, torch.Tensor]:
        """Those of the pool, of the workload itself and of the check are made once."""
        if variant not in self._kept:
            self._kept[variant] = self._given(variant)
        return self._kept[variant]

    def _given(self, variant: int | str, further: Mapping[str, Any] = _NONE) -> dict[str, torch.Tensor]:
        """The tensors that are not random: generated, or from the files of a dataset without a generator."""
        case = self.case
        if self._generate is not None:
            # The published contents are seeded by the uuid, which everybody knows; others by the secret, where is one.
            hidden = bool(variant) and bool(self._secret)
            seed = self._number("generated", variant) if hidden or isinstance(variant, str) else case.seed + variant
            with blamed_on(self.definition, getattr(self._generate, "__name__", "generate_inputs")):
                values = {**case.sizes, **case.scalars, **case.generator, **further, "seed": seed}
                return self._generate(values, self.device)
        return {name: _read_tensor(self.root, where).to(self.device) for name, where in case.files.items()}

    def _fill(self, name: str, tensor: torch.Tensor, variant: int | str) -> None:
        flat = tensor.view(-1)
        generator = self._generator(name, variant)
        for offset in range(0, flat.numel(), CHUNK):
            _fill_random(flat[offset : offset + CHUNK], generator)

    def _generator(self, name: str, variant: int | str) -> torch.Generator:
        return torch.Generator(device=self.device).manual_seed(self._number(name, variant))

    def _number(self, name: str, variant: int | str) -> int:
        """A seed. By the name too: no tensor repeats another's numbers, and their order does not matter."""
        digest = hashlib.sha256(f"{self.case.seed}/{self._secret}{variant}/{name}".encode()).digest()
        return int.from_bytes(digest[:6], "big")


def _read_tensor(root: Path, where: dict[str, str]) -> torch.Tensor:
    from safetensors import SafetensorError, safe_open

    path = root / where["path"]
    if not path.is_file():
        raise DefinitionFailed(f"{path}: is missing; fetch the dataset's blobs, or make them with `derby pack`")
    try:
        with safe_open(path, framework="pt") as tensors:
            tensor: torch.Tensor = tensors.get_tensor(where["tensor_key"])
            return tensor
    except (SafetensorError, OSError) as error:
        message = " ".join(str(error).split())[:200]
        raise DefinitionFailed(f"{path}: {where['tensor_key']}: {message}; fetch the dataset's blobs again") from error


def _verified(definition: Definition, name: str, tensor: torch.Tensor, case: Case) -> torch.Tensor:
    spec = definition.inputs[name]
    wanted = (shape_of(spec, case.sizes), torch_dtype(spec.dtype))
    if (tuple(tensor.shape), tensor.dtype) != wanted:
        raise DefinitionFailed(
            f"{definition.place}: input {name}: generated as {tuple(tensor.shape)} {tensor.dtype}, but the "
            f"definition says {wanted[0]} {wanted[1]}; mend generate_inputs or the definition"
        )
    return tensor


def _fill_random(piece: torch.Tensor, generator: torch.Generator) -> None:
    """Numbers as in flashinfer-bench: normal; fp8 normal cut off at 2; integers in INTEGER_RANGE; fair booleans."""
    if piece.dtype in (torch.float32, torch.float16, torch.bfloat16):
        piece.normal_(generator=generator)
    elif piece.dtype in FP8:
        normal = torch.empty(piece.shape, dtype=torch.float32, device=piece.device).normal_(generator=generator)
        piece.copy_(normal.clamp_(-2.0, 2.0))
    elif piece.dtype in INTEGER_RANGE:
        piece.random_(*INTEGER_RANGE[piece.dtype], generator=generator)
    elif piece.dtype is torch.bool:
        piece.random_(0, 2, generator=generator)
    else:  # two fp4 codes a byte, where every byte is a number
        piece.view(torch.uint8).random_(0, 256, generator=generator)
