"""Is an output right? Poison, checksums of inputs, the reference and the definition's tolerances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition, Tolerance
from kernelderby.measure.judge.checksums import bytes_of
from kernelderby.measure.judge.definition import DefinitionFailed, blamed_on, given_by
from kernelderby.measure.wire import memory
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.rows.measurement import Correctness, Status
from kernelderby.store.counts import counted

# Bytes that outputs are filled with before each of the two rounds. An element that holds both in turn was never
# written. 0xFF.. is NaN in every float type, 0x7F.. a huge number or NaN.
POISON = (0xFF, 0x7F)
CHUNK = 1 << 24  # elements compared at once: 64 MB in float32
FEW, WIDE = 64, 256  # values of an output, of a row: what a bound of a norm needs

# Where a definition names none: flashinfer-bench 0.1.2's defaults (bench/config.py).
DEFAULT_TOLERANCE = Tolerance("flashinfer_bench_default", 1e-2, 1e-2, 1.0, "flashinfer-bench's default")

Outputs = dict[str, torch.Tensor]

# Competitors are checked side by side; references side by side would need the memory of all of them.
_one_at_a_time = threading.Lock()


def named_outputs(definition: Definition, returned: Any) -> dict[str, Any]:
    """A returned tensor, tuple or dict as name -> value. Wrong when their number or names do not fit."""
    names = list(definition.outputs)
    if isinstance(returned, dict):
        if set(returned) != set(names):
            raise Wrong(Status.WRONG_SHAPE, f"returned {sorted(returned)}, not {names}")
        return {name: returned[name] for name in names}
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(values) != len(names):
        raise Wrong(Status.WRONG_SHAPE, f"returned {counted(len(values), 'output')}, not {len(names)}")
    return dict(zip(names, values, strict=True))


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """float32 matrix products in full float32 for the reference, whatever a solution has switched on."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def reference_outputs(definition: Definition, module: ModuleType, inputs: dict[str, Any]) -> Outputs:
    """DefinitionFailed where it raises, or gives what are no outputs."""
    with exact_arithmetic(), torch.no_grad(), blamed_on(definition, "run raises"):
        returned = module.run(*inputs.values())
    try:
        outputs = named_outputs(definition, returned)
    except Wrong as wrong:
        raise DefinitionFailed(f"{definition.place}: run: {wrong}; mend the definition") from wrong
    return given_by(definition, "run", outputs, definition.outputs)


def canonical_pair(
    definition: Definition, module: ModuleType, inputs: Mapping[str, Any], outputs: Outputs, references: Outputs
) -> tuple[Outputs, Outputs]:
    """Outputs and references through the definition's canonical_outputs, if it has one. It may change contents and
    types, but drops nothing. Wrong if it cannot read the outputs: what they hold is the solution's doing."""
    hook = "canonical_outputs"
    if (canonical := getattr(module, hook, None)) is None:
        return outputs, references

    def read(tensors: Outputs) -> Outputs:
        found = given_by(definition, hook, canonical(tensors, inputs), definition.outputs, whole=True)
        for name, tensor in tensors.items():
            if found[name].shape != tensor.shape:
                told = f"{name} has shape {tuple(found[name].shape)}, not {tuple(tensor.shape)}"
                raise DefinitionFailed(f"{definition.place}: {hook}: {told}; mend the definition")
        return found

    with torch.no_grad():
        with blamed_on(definition, f"{hook} raises"):
            expected = read(references)
        try:
            return read(outputs), expected
        except Exception as error:
            if memory.ran_out(error):
                raise
            raise Wrong(Status.WRONG_VALUES, f"{hook} cannot read them: {type(error).__name__}") from error


def judge(
    definition: Definition,
    module: ModuleType,
    inputs: dict[str, Any],
    outputs: Outputs,
    known: Callable[[], Outputs] | None = None,
) -> Verdict:
    """Outputs against the reference of these inputs. Where the definition has canonical_outputs, both go through it
    first, so that different numbers which mean the same compare as equal. known: gives the reference's outputs."""
    with _one_at_a_time:
        references = known() if known else reference_outputs(definition, module, inputs)
        for name, tensor in outputs.items():
            if references[name].shape != tensor.shape:
                raise DefinitionFailed(
                    f"{definition.place}: run: {name} has shape {tuple(references[name].shape)}, the definition says "
                    f"{tuple(tensor.shape)}; mend one of them"
                )
        try:
            outputs, references = canonical_pair(definition, module, inputs, outputs, references)
        except Wrong as wrong:
            return wrong.verdict
        return compare(definition, outputs, references)


def has_rows(module: ModuleType) -> bool:
    """Whether a reference of some rows is less work than the whole one."""
    return hasattr(module, "REFERENCE_ROWS") or hasattr(module, "reference_rows")


def row_dimensions(module: ModuleType, inputs: Mapping[str, Any]) -> dict[str, int]:
    """REFERENCE_ROWS of a definition's module: input -> the dimension along which it goes with the rows; none without
    it. ValueError for anything else."""
    found = getattr(module, "REFERENCE_ROWS", {})
    for name, dimension in dict(found).items():
        tensor = inputs.get(name)
        if not isinstance(tensor, torch.Tensor) or dimension not in range(tensor.dim()):
            raise ValueError(f"REFERENCE_ROWS: {name!r:.40}: {dimension!r:.40} is no dimension of an input")
    return dict(found)


def some_rows(
    definition: Definition, module: ModuleType, inputs: dict[str, Any], outputs: Outputs, rows: Sequence[int]
) -> tuple[dict[str, Any], Outputs]:
    """The inputs for a reference of these output rows, and these rows of the outputs. By reference_rows(inputs, rows)
    of the definition's module, or its REFERENCE_ROWS."""
    with blamed_on(definition, "the reference of some rows raises"):
        if hasattr(module, "reference_rows"):
            found = module.reference_rows(inputs, list(rows))
            if set(found) != set(inputs):
                raise ValueError(f"reference_rows gave {sorted(found)}, not {sorted(inputs)}")
            taken = {name: found[name] for name in inputs}
        else:
            dimensions = row_dimensions(module, inputs)
            taken = {
                name: _taken(value, dimensions[name], rows) if name in dimensions else value
                for name, value in inputs.items()
            }
    return taken, {name: _taken(tensor, 0, rows) for name, tensor in outputs.items()}


def joined_rows(module: ModuleType, inputs: dict[str, Any], of_calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The inputs for one reference of several calls: by the REFERENCE_ROWS of the definition's module their rows stand
    one call after another. inputs: what the calls share. of_calls: what goes with the rows, of each."""
    dimensions: dict[str, int] = module.REFERENCE_ROWS
    return {
        name: _joined([each[name] for each in of_calls], dimensions[name]) if name in dimensions else value
        for name, value in inputs.items()
    }


def _joined(tensors: Sequence[torch.Tensor], dimension: int) -> torch.Tensor:
    """As _taken."""
    if tensors[0].element_size() == 1:
        return torch.cat([each.view(torch.uint8) for each in tensors], dimension).view(tensors[0].dtype)
    return torch.cat(list(tensors), dimension)


def _taken(tensor: torch.Tensor, dimension: int, rows: Sequence[int]) -> torch.Tensor:
    """By its bytes where they are single: not every such type can be indexed."""
    index = torch.tensor(rows, dtype=torch.int64, device=tensor.device)
    if tensor.element_size() == 1:
        return tensor.view(torch.uint8).index_select(dimension, index).view(tensor.dtype)
    return tensor.index_select(dimension, index)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------------------------------------------------- poison

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def make_ready(inputs: dict[str, Any], outputs: Outputs, in_place: Mapping[str, str], byte: int) -> None:
    """Before a call: poison in the outputs, the input's contents in those that lie in one."""
    for name, tensor in outputs.items():
        if name in in_place:
            tensor.copy_(inputs[in_place[name]])
        else:
            # A boolean left unwritten is True in one round and False in the other: all other bytes are True.
            bytes_of(tensor).fill_(byte >> 7 if tensor.dtype is torch.bool else byte)


def still_poisoned(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    """Mask of the elements whose every byte is the poison. None of them for booleans, whose values are too few. Element
    by element: a reduction of over 2^31 elements takes eight bytes of a GPU for each."""
    if tensor.dtype is torch.bool:
        return torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
    size = tensor.element_size()
    return tensor.reshape(-1).view(_OF_SIZE[size]) == int.from_bytes(bytes([byte]) * size, "little", signed=size > 1)


# ------------------------------------------------------------------------------------------------------ comparison


def differences(output: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Both in a wide type, and element by element how far they are apart: absolute (0 where both are NaN, NaN where one
    is) and relative to the reference."""
    wide = torch.float32 if reference.is_floating_point() else torch.float64
    x, y = output.to(wide), reference.to(wide)
    absolute = torch.where((x == y) | (x.isnan() & y.isnan()), 0, (x - y).abs())
    if output.dtype is torch.int64 and reference.dtype is torch.int64:  # from 2^53 on float64 leaves numbers out
        absolute = torch.where(output == reference, 0, absolute.clamp_min(1))
    return x, y, absolute, absolute / (y.abs() + 1e-8)


class _Distance:
    """Sums over chunks of one or several outputs."""

    def __init__(self, tolerances: tuple[Tolerance, ...]) -> None:
        self.tolerances = tolerances
        self.judged: dict[tuple[str, str], int] = {}  # (tolerance, output): each output stands for itself
        self.failing: dict[tuple[str, str], int] = {}
        self.elements = self.not_numbers = 0
        self.max_absolute = self.max_relative = self.squared_error = self.squared_reference = 0.0

    def add(self, name: str, output: torch.Tensor, reference: torch.Tensor) -> None:
        x, y, absolute, relative = differences(output, reference)
        self.elements += x.numel()
        self.not_numbers += int((~x.isfinite() & y.isfinite()).sum())
        for tolerance in self.tolerances:
            if tolerance.outputs and name not in tolerance.outputs:
                continue
            within = (absolute <= tolerance.atol) | (relative <= tolerance.rtol)  # false for NaN
            place = (tolerance.name, name)
            self.judged[place] = self.judged.get(place, 0) + x.numel()
            self.failing[place] = self.failing.get(place, 0) + int((~within).sum())
        self.max_absolute = max(self.max_absolute, float(absolute.nan_to_num(torch.inf).max()))
        self.max_relative = max(self.max_relative, float(relative.nan_to_num(torch.inf).max()))
        self.squared_error += float(absolute.double().square().sum())
        self.squared_reference += float(y.double().square().sum())

    def correctness(self) -> Correctness:
        if self.squared_reference:
            norm = (self.squared_error / self.squared_reference) ** 0.5
        else:
            norm = 0.0 if self.squared_error == 0 else float("inf")
        share = {tolerance.name: 1.0 for tolerance in self.tolerances}  # of the output that matches least
        for (tolerance, output), judged in self.judged.items():
            matched = 1 - self.failing[tolerance, output] / judged if judged else 1.0
            share[tolerance] = min(share[tolerance], matched)
        return Correctness(_told(self.max_absolute), _told(self.max_relative), _told(norm), share)

    def too_few(self, tolerance: Tolerance) -> str:
        """What to say where fewer elements of an output lie within than must; empty where enough do."""
        ratio = tolerance.required_matched_ratio
        for (name, output), judged in self.judged.items():
            if name != tolerance.name:
                continue
            failing, least = self.failing[name, output], tolerance.least_ratio(judged)
            if failing > judged * (1 - least) * (1 + 1e-9):
                may = f"{int(judged * (1 - least) * (1 + 1e-9)):,}"
                many = f" (of many {(1 - ratio) * 100:.4g} %)" if least != ratio else ""
                return f"{name}: {failing:,} of {judged:,} elements are wrong, {may} may be{many}"
        return ""


def _told(number: float) -> float:
    """To six digits: a wrong output could be made such that further ones spell a message, and rows keep them."""
    return float(f"{number:.6g}")


def compare(definition: Definition, outputs: Outputs, references: Outputs) -> Verdict:
    """Outputs of the right shape against the reference: PASSED, NOT_A_NUMBER or WRONG_VALUES, with the distances."""
    tolerances = definition.tolerances or (DEFAULT_TOLERANCE,)
    distance = _Distance(tolerances)
    for name, reference in references.items():
        flat, expected = outputs[name].reshape(-1), reference.reshape(-1)
        for start in range(0, flat.numel(), CHUNK):
            distance.add(name, flat[start : start + CHUNK], expected[start : start + CHUNK])
    correctness = distance.correctness()
    if distance.not_numbers:
        return Verdict(
            Status.NOT_A_NUMBER,
            f"{distance.not_numbers} of {counted(distance.elements, 'element is', 'elements are')} NaN or infinite "
            "where the reference is finite",
            correctness,
        )
    short = [each for tolerance in tolerances if (each := distance.too_few(tolerance))]
    short += _out_of_bounds(tolerances, outputs, references)
    if short:
        return Verdict(Status.WRONG_VALUES, "; ".join(short), correctness)
    return Verdict(Status.PASSED, correctness=correctness)


def _out_of_bounds(tolerances: tuple[Tolerance, ...], outputs: Outputs, references: Outputs) -> list[str]:
    """Where a tolerance's row_error or scale_error is exceeded. Rows of zeros are judged by their elements alone."""
    found = []
    for tolerance in tolerances:
        if tolerance.row_error is None and tolerance.scale_error is None:
            continue
        for name in tolerance.outputs or references:
            worst, factor = row_and_scale(outputs[name], references[name])
            if tolerance.row_error is not None and worst > tolerance.row_error:
                found.append(
                    f"{tolerance.name}: a row of {name} is off by {worst:.3f} of its norm; at most "
                    f"{tolerance.row_error:g} is allowed"
                )
            if tolerance.scale_error is not None and abs(factor - 1) > tolerance.scale_error:
                found.append(
                    f"{tolerance.name}: {name} is {factor:.3f} times the reference; at most "
                    f"{tolerance.scale_error:g} off is allowed"
                )
    return found


def row_and_scale(output: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """The largest error of a row over the row's norm, and the factor that fits the output best to the reference.

    Neighbouring rows of fewer than WIDE values count as one row, and an output of fewer than FEW values has no such
    error: the norm of eight values may be near zero by chance, and one value on the edge between two of bfloat16
    moves it by 0.008."""
    if reference.numel() < FEW:
        return 0.0, 1.0
    width = reference.shape[-1] if reference.dim() else 1
    x, y = output.reshape(-1, width), reference.reshape(-1, width)
    together = -(-WIDE // width)  # rows
    step = max(1, CHUNK // width // together) * together
    worst, product, square = 0.0, 0.0, 0.0
    for start in range(0, len(y), step):
        one, two = x[start : start + step].double(), y[start : start + step].double()
        norms, errors = _together(two.square().sum(1), together), _together((one - two).square().sum(1), together)
        worst = max(worst, float(torch.where(norms > 0, errors / norms, 0).nan_to_num(0.0).max()))
        product += float((one * two).nan_to_num(0.0).sum())
        square += float(two.square().nan_to_num(0.0).sum())
    return worst**0.5, product / square if square else 1.0


def _together(squares: torch.Tensor, rows: int) -> torch.Tensor:
    """Sums of so many neighbours; what is left over goes to the last of them."""
    sums = squares[: len(squares) // rows * rows].reshape(-1, rows).sum(1)
    if not len(sums):
        return squares.sum().reshape(1)
    sums[-1] += squares[len(sums) * rows :].sum()
    return sums
