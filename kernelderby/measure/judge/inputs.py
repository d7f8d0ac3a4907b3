"""Inputs of a case: seeded, so that every competitor gets the same ones, and quick to make on a GPU."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition, TensorSpec
from kernelderby.measure.judge import draws
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.checksums import bytes_of
from kernelderby.measure.judge.definition import DefinitionFailed, blamed_on, given_by
from kernelderby.measure.wire.shared import Place, private_set

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
SameWork = Callable[[Mapping[str, torch.Tensor], torch.Generator], dict[str, torch.Tensor]]
# Where the random inputs that change are less of what a call reads than this, timed calls get generated contents of
# their own, too: in the set that is 0.009 and nothing of two sortings of a routing, 0.74 and more of all others.
_LEAST_RANDOM = 0.1
# Contents that take longer to generate than this are made POOL times, and timed calls get one of those.
_QUICK_SECONDS, POOL = 0.5, 4
_KEPT_BYTES = 1 << 30  # of generated contents, so that those who race get the same ones without making them again


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a definition's dtype. DefinitionFailed when this torch has none."""
    dtype = getattr(torch, {"float4_e2m1": "float4_e2m1fn_x2"}.get(name, name), None)
    if not isinstance(dtype, torch.dtype):
        raise DefinitionFailed(f"dtype {name!r}: torch {torch.__version__} has none; use a newer torch")
    return dtype


def shape_of(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """() of a plain number."""
    return tuple(sizes[axis] for axis in spec.shape or ())


def place_of(spec: TensorSpec, sizes: Mapping[str, int]) -> Place:
    return shape_of(spec, sizes), torch_dtype(spec.dtype)


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
        self._room = _KEPT_BYTES
        self.is_slow_to_generate: bool | None = None  # None: not measured yet
        self._generate: Callable[..., dict[str, torch.Tensor]] | None = getattr(
            module, definition.custom_inputs_entrypoint or "generate_inputs", None
        )
        self._same_work: SameWork | None = getattr(module, "same_work", None)
        self._varied: list[str] = []  # generated inputs that get other contents of the same work before a timed call

    def numbered(self, number: int) -> InputMaker:
        """The same case with other secret contents; for 0 this maker. The workload's own contents stay."""
        if not number:
            return self
        other = copy.copy(self)
        other._secret = f"{self._secret}/{number}/"
        other._kept = {variant: made for variant, made in self._kept.items() if variant == 0}
        other._room = _KEPT_BYTES
        return other

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
                places[name] = place_of(spec, self.case.sizes)
        tensors = {name: place for name, place in places.items() if isinstance(place, tuple)}
        size_of = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in tensors.items()}
        constant = set(self.definition.constants)
        self._random_names = [name for name in tensors if name not in given]
        self._changing = [name for name in self._random_names if name not in constant]
        least = _LEAST_RANDOM * sum(size_of[name] for name in tensors if name not in constant)
        self._generates = sum(size_of[name] for name in self._changing) < least
        self._varied = [] if self._generates else [name for name in self._vary("places") if name in tensors]
        # What refresh() leaves as it is.
        generated = [name for name in given if not self._generates and name not in self._varied]
        self.steady = [name for name in tensors if name in constant or name in generated]
        if self._generates and self._generate is not None and self.is_slow_to_generate is None:
            start = time.monotonic()
            self._given("timed")  # once and beforehand: later, a variant would no longer be what it was
            self.is_slow_to_generate = time.monotonic() - start > _QUICK_SECONDS
        return places

    def _tensor_names(self) -> list[str]:
        return [name for name in self.definition.inputs if name not in self.case.scalars]

    def output_places(self) -> dict[str, Place]:
        """The same of the outputs. DefinitionFailed if one cannot be compared: torch computes nothing with 4 bits."""
        for name, spec in self.definition.outputs.items():
            if spec.dtype == "float4_e2m1":
                told = f"outputs.{name}: {spec.dtype} cannot be compared; write uint8, two values in each"
                raise DefinitionFailed(f"{self.definition.place}: {told}")
        return {name: place_of(spec, self.case.sizes) for name, spec in self.definition.outputs.items()}

    def make(self, variant: int = 0, random_variant: int | None = None) -> dict[str, Any]:
        """Every input in the definition's order: new tensors on the device, plain numbers for scalars.

        random_variant: other contents for the random tensors only, so that the work (the routing, say) stays the same.
        """
        inputs = private_set(self.places(), {}, self.device).inputs
        self.write(inputs, variant, random_variant)
        return inputs

    def write(
        self,
        inputs: dict[str, Any],
        variant: int | str = 0,
        random_variant: int | str | None = None,
        draw: draws.Draw = draws.NORMAL,
        constants: bool = True,
    ) -> None:
        """Writes what make() gives into tensors of places(), changed by `draw`. constants: those, too."""
        without = frozenset() if constants else self.definition.constants
        self._copy_given(inputs, variant, without, draws.of_generator(self.definition, draw))
        for name in self._random_names:
            if name not in without:
                self._fill(name, inputs[name], variant if random_variant is None else random_variant)
        draws.apply(self.definition, draw, inputs)
        if draw is draws.ODD_ROWS:
            draws.odd_rows(self.definition, inputs, self._random_names)

    def refill_random(
        self, inputs: dict[str, Any], variant: int | str, known: Mapping[str, torch.Tensor] = _NONE
    ) -> None:
        """Writes other random contents into the random tensors that make() made. known: tensors that hold them."""
        for name in self._random_names:
            if name in known:
                bytes_of(inputs[name]).copy_(bytes_of(known[name]))
            else:
                self._fill(name, inputs[name], variant)

    def seeds_of_steady(self, variant: int | str) -> dict[str, int]:
        """Of the random tensors that refresh() leaves as they are: the same seeds give the same contents."""
        return {name: self._number(name, variant) for name in self._random_names if name in self.steady}

    def refresh(self, inputs: dict[str, Any], variant: str) -> None:
        """Other contents between two calls, whole tensors: of the random ones that are no constants and, where those
        are next to nothing, of the generated ones. The same variant always gives the same contents."""
        if self._generates:
            self._copy_given(inputs, self._generated_variant(variant), self.definition.constants)
        elif self._varied:
            for name, tensor in self._vary(variant).items():
                inputs[name].copy_(_verified(self.definition, name, tensor, self.case))
        for name in self._changing:
            self._fill(name, inputs[name], variant)

    def _vary(self, variant: str) -> dict[str, torch.Tensor]:
        """By the definition's same_work: the workload's own routing, say, for the same tokens in another order. What a
        solution has prepared for the routing that everybody knows is then of no use."""
        if self._same_work is None:
            return {}
        generator = torch.Generator(device=self.device).manual_seed(self._number("same work", variant))
        with blamed_on(self.definition, "same_work raises"):
            found = self._same_work(self._contents(0), generator)
        found = given_by(self.definition, "same_work", found, self._tensor_names())
        return {name: tensor for name, tensor in found.items() if not self.definition.inputs[name].constant}

    def _generated_variant(self, variant: str) -> int | str:
        """Of all calls another one, as long as that takes no time to speak of. A dataset's files are what they are."""
        if self._generate is None:
            return 0
        if self.is_slow_to_generate:
            return f"pool/{self._number('pool', variant) % POOL}"
        return variant

    def _copy_given(
        self, inputs: dict[str, Any], variant: int | str, without: Collection[str], further: Mapping[str, Any] = _NONE
    ) -> None:
        """The contents that are not random into the tensors, but for some. further: values for the generator."""
        given = self._given(variant, further) if further else self._contents(variant)
        for name, tensor in given.items():
            if name not in without:
                inputs[name].copy_(_verified(self.definition, name, tensor, self.case))

    def _contents(self, variant: int | str) -> dict[str, torch.Tensor]:
        """Made once, as long as there is room for them: those who race get the same ones."""
        if variant in self._kept:
            return self._kept[variant]
        made = self._given(variant)
        nbytes = sum(tensor.nbytes for tensor in made.values())
        if isinstance(variant, int) or variant.startswith("pool/") or nbytes <= self._room:
            self._kept[variant] = made
            self._room -= nbytes if isinstance(variant, str) else 0
        return made

    def _given(self, variant: int | str, further: Mapping[str, Any] = _NONE) -> dict[str, torch.Tensor]:
        """The tensors that are not random: generated, or from the files of a dataset without a generator."""
        case = self.case
        if self._generate is not None:
            # The published contents are seeded by the uuid, which everybody knows; others by the secret, where is one.
            hidden = bool(variant) and bool(self._secret)
            seed = self._number("generated", variant) if hidden or isinstance(variant, str) else case.seed + variant
            hook = getattr(self._generate, "__name__", "generate_inputs")
            with blamed_on(self.definition, f"{hook} raises"):
                found = self._generate(
                    {**case.sizes, **case.scalars, **case.generator, **further, "seed": seed}, self.device
                )
            found = given_by(self.definition, hook, found, self._tensor_names())
            return {name: tensor.to(self.device) for name, tensor in found.items()}
        return {name: read_tensor(self.root, where).to(self.device) for name, where in case.files.items()}

    def _fill(self, name: str, tensor: torch.Tensor, variant: int | str) -> None:
        """Random contents, by way of memory of the judge's own, which is written over for the next piece."""
        generator = torch.Generator(device=self.device).manual_seed(self._number(name, variant))
        held = torch.empty(min(CHUNK, tensor.numel()), dtype=tensor.dtype, device=self.device)
        for flat in torch.split(tensor.view(-1), CHUNK):
            piece = held[: len(flat)]
            _fill_random(piece, generator)
            bytes_of(flat).copy_(bytes_of(piece))  # not every type has a copy

    def _number(self, name: str, variant: int | str) -> int:
        """A seed. By the name too: no tensor repeats another's numbers, and their order does not matter."""
        digest = hashlib.sha256(f"{self.case.seed}/{self._secret}{variant}/{name}".encode()).digest()
        return int.from_bytes(digest[:6], "big")


def read_tensor(root: Path, where: dict[str, str]) -> torch.Tensor:
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
    wanted = place_of(definition.inputs[name], case.sizes)
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
