"""What is put right in Triton's interpreter, with stand-ins for the versions that are wrong."""

import types
import warnings

import numpy
import pytest

from kernelderby.measure.worker.interpreter import take_whole_numbers

interpreter = pytest.importorskip("triton.runtime.interpreter")


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
