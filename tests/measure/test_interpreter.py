"""The mends of Triton's interpreter, with stand-ins for the wrong versions."""

import inspect
import re
import types
import warnings

import numpy
import pytest
import torch

interpreter = pytest.importorskip("triton.runtime.interpreter")
from kernelderby.measure.worker import interpreter as worker_interpreter  # noqa: E402
from kernelderby.measure.worker import libdevice  # noqa: E402
from kernelderby.measure.worker.interpreter import (  # noqa: E402
    convert_right,
    describe_shapes_once,
    take_whole_numbers,
)

tl = interpreter.tl


def test_a_number_bounds_a_loop_whatever_the_versions(monkeypatch):
    """Triton 3.6 takes int() of an array of one value: NumPy warned of it up to 2.4 and has refused it since."""

    def of_triton_3_6(tensor, scope):
        tensor.__index__ = lambda self: int(self.handle.data)

    class Tensor:
        handle = types.SimpleNamespace(data=numpy.array([3]))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", of_triton_3_6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interpreter._patch_lang_tensor(Tensor, None)
        with pytest.raises((DeprecationWarning, TypeError)):
            range(Tensor())
        take_whole_numbers()
        interpreter._patch_lang_tensor(Tensor, None)
        assert list(range(Tensor())) == [0, 1, 2]


NARROW = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2, "bf16": torch.bfloat16}
TL = {"fp8e4nv": "float8e4nv", "fp8e5": "float8e5", "bf16": "bfloat16"}


@pytest.fixture
def converted(monkeypatch):
    """converted(values, source, target, rounding) -> the bits that the interpreter makes of those bits."""
    monkeypatch.setattr(interpreter, "_convert_float", interpreter._convert_float)
    convert_right()

    def convert(values, source, target, rounding=None):
        return interpreter._convert_float(values, getattr(tl, source), getattr(tl, target), rounding)

    return convert


def bits_of(tensor):
    size = tensor.dtype.itemsize
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    return tensor.view(view).numpy().view(f"uint{8 * size}")


@pytest.mark.parametrize("name", NARROW)
def test_every_narrow_value_is_widened_to_what_it_is(converted, name):
    size = NARROW[name].itemsize
    every = numpy.arange(1 << 8 * size, dtype=f"uint{8 * size}")
    expected = torch.from_numpy(every.view(f"int{8 * size}")).view(NARROW[name]).float()
    wide = converted(every, TL[name], "float32")
    numpy.testing.assert_array_equal(wide.view("float32"), expected.numpy())  # NaN where NaN is
    assert converted(every.reshape(4, -1).T, TL[name], "float32").shape == (every.size // 4, 4)
    assert converted(every[3].reshape(()), TL[name], "float32").shape == ()


@pytest.mark.parametrize("name", NARROW)
def test_values_are_rounded_to_the_nearest(converted, name):
    generator = numpy.random.default_rng(1)
    some = generator.normal(size=5000) * 2.0 ** generator.integers(-20, 12, 5000)
    values = numpy.concatenate([some, [0.0, -0.0, 1.97, 1.0625, 1.1875, 448, 470, 1e9, -1e9, 1e38]]).astype("float32")
    largest = torch.finfo(NARROW[name]).max
    expected = torch.from_numpy(values).clamp(-largest, largest).to(NARROW[name])
    numpy.testing.assert_array_equal(converted(values, "float32", TL[name]), bits_of(expected))


def test_rounding_towards_zero_stays(converted):
    value = numpy.array([1.9999], dtype="float32")
    towards_zero = interpreter._ir.ROUNDING_MODE.RTZ
    assert converted(value, "float32", "bfloat16", towards_zero) == bits_of(torch.tensor([1.9921875]).bfloat16())
    assert converted(value, "float32", "bfloat16") == bits_of(torch.tensor([2.0]).bfloat16())


def test_shapes_are_described_as_before(monkeypatch):
    core = tl.core
    shapes = [[1], [4], [2, 8], [core.constexpr(2), 8], core.tuple([2, 8]), [2, 8]]

    def described():
        blocks = [core.block_type(each, shape) for shape in shapes for each in (tl.int32, tl.pointer_type(tl.float32))]
        tensors = [core.tensor("handle", each) for each in [*blocks, tl.int32]]
        return [vars(each) for each in blocks], [
            (each.handle, str(each.type), str(each.dtype), str(each.shape), each.numel.value, str(each))
            for each in tensors
        ]

    before = described()
    for each in (core.block_type, core.tensor):
        monkeypatch.setattr(each, "__init__", each.__init__)
    describe_shapes_once()
    assert core.block_type.__init__.__module__ == core.tensor.__init__.__module__ == worker_interpreter.__name__
    for _ in range(2):
        after = described()
        assert str(after) == str(before)
        assert [sorted(each) for each in after[0]] == [sorted(each) for each in before[0]]
    with pytest.raises(TypeError):
        core.block_type(tl.int32, [])
    with pytest.raises(ValueError):
        core.block_type(tl.int32, [3])


def test_every_function_of_libdevice_that_is_computed_has_a_kernel_to_call_it():
    from triton.language.extra.cuda import libdevice as of_cuda

    source = inspect.getsource(of_cuda)
    lacking = [name for name in libdevice._FUNCTIONS if not re.search(rf'"__nv_(fast_)?{name}f"', source)]
    assert not lacking, f"no such function in libdevice: {lacking}"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("round", [[0.5, -0.5, 2.5, 1.2]], [1, -1, 3, 1]),
        ("rint", [[0.5, -0.5, 2.5, 1.2]], [0, 0, 2, 1]),
        ("cbrt", [[-8.0, 27.0]], [-2, 3]),
        ("fma", [[3.0], [4.0], [5.0]], [17]),
        ("saturate", [[-1.0, 0.25, 2.0, float("nan")]], [0, 0.25, 1, 0]),
    ],
)
def test_a_function_of_libdevice_gives_what_it_gives_on_a_gpu(name, given, expected):
    found = libdevice._FUNCTIONS[name](*map(torch.tensor, given))
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


PATCHED = (
    *("_convert_float", "_patch_lang_tensor", "_patch_builtin", "_get_np_dtype"),
    *("InterpreterBuilder", "interpreter_semantic"),
)


def test_the_autotuner_has_the_function_that_is_patched():
    from triton.runtime.autotuner import Autotuner

    assert {"config", "meta"} <= {*inspect.signature(Autotuner._bench).parameters}


@pytest.mark.parametrize("name", PATCHED)
def test_the_private_functions_that_are_patched_exist(name):
    assert hasattr(interpreter, name), (
        f"this Triton has no interpreter.{name}, which kernelderby/measure/worker/interpreter.py patches: "
        "adapt it, or lower Triton's upper bound in pyproject.toml"
    )


def test_every_private_function_that_is_patched_is_listed():
    source = inspect.getsource(worker_interpreter) + inspect.getsource(libdevice)
    used = set(re.findall(r"\binterpreter\.(_(?!ir\b)\w+)", source))
    assert used <= {*PATCHED}, f"patched, but not in PATCHED: {sorted(used - {*PATCHED})}"
