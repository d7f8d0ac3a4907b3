"""The row-wise kernels at full shape, compiled for sm_90 and sm_100: 16 bytes an access, no register spilled.

The signatures are those of real calls: run_with() is called on tensors without memory, and its launch is looked at.
"""

import re

import pytest
import torch
from aot import compile_kernel
from interpreted import compiled
from rowwise_cases import CATALOG, OPERATORS, meta_arguments, module
from test_triton_compact_compiles import resources

TYPES = {torch.float8_e4m3fn: "fp8e4nv", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
SM_COUNT = 132


class Launch:
    """Stands for a kernel: remembers how it was launched."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        self.grid = grid
        return self.remember

    def remember(self, *arguments, num_warps, **constants):
        self.arguments, self.num_warps, self.constants = arguments, num_warps, constants

    def compile(self, target):
        names = zip(self.kernel.arg_names, self.arguments, strict=False)
        signature = {name: triton_type(value) for name, value in names}
        return compile_kernel(self.kernel, signature, self.constants, target, num_warps=self.num_warps)


def triton_type(value):
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return {int: "i32", float: "fp32"}[type(value)]


@pytest.fixture
def launched(monkeypatch):
    """launched(operator, workload, choose) -> the launch of the configuration that `choose` takes of its candidates."""
    def look(operator, workload, choose):
        one = module(operator)
        launch = Launch(getattr(one, f"derby_{operator}"))
        monkeypatch.setattr(one, f"derby_{operator}", launch)
        monkeypatch.setattr(one.rowwise, "multiprocessors", lambda tensor: SM_COUNT)
        arguments = meta_arguments(operator, workload)
        config = choose(one.candidates(*arguments[:len(CATALOG.definition(operator).inputs)]))
        one.run_with(config, *arguments)
        return launch

    return look


def largest(operator):
    return max(CATALOG.workloads(operator), key=lambda workload: workload.cost.bytes_read)


def accesses(ptx):
    """Bits of each global load and store of the wide tensors, without the single numbers that scales are."""
    return [(kind, int(count or 1) * int(bits)) for kind, count, bits in re.findall(
        r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)]


@compiled
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_the_largest_workload(target, operator, launched):
    launch = launched(operator, largest(operator), lambda found: found[0])
    binary = launch.compile(target)
    assert f".target {target}" in binary.asm["ptx"]
    found = accesses(binary.asm["ptx"])
    assert all(bits >= 128 for kind, bits in found if kind == "ld") and found
    narrow = [bits for kind, bits in found if kind == "st" and bits < 128]
    if "quant" in operator:  # eight codes of a byte, and a scale
        assert set(narrow) <= {64, 32} and narrow.count(32) <= 1
    else:
        assert not narrow
    used = resources(binary)
    assert used["STACK"] == 0, "registers are spilled"
    # Enough on its way at once where there is enough: 40 KiB of input of one multiprocessor, by registers and threads.
    programs = min(65536 // (32 * launch.num_warps * used["REG"]), 2048 // (32 * launch.num_warps), 32)
    assert launch.grid[0] < programs * SM_COUNT or programs * input_bytes(operator, launch) >= 40 * 1024


def input_bytes(operator, launch):
    """What one program reads, weights left out; all inputs have two bytes a number."""
    tile = launch.constants["ROWS"] * launch.constants["CHUNK"]
    tensors = {"silu_and_mul": 2, "moe_sum_reduce": 8}.get(operator)
    if tensors:
        return 2 * tile * tensors
    inputs = 2 if operator in ("fused_add_rms_norm", "gated_rms_norm", "fused_rmsnorm_quant") else 1
    return 2 * launch.constants["ROWS"] * launch.constants["COLUMNS"] * inputs


@compiled
@pytest.mark.parametrize("operator", [operator for operator in OPERATORS if operator != "fused_qk_rmsnorm"])
def test_persistent_and_ahead(operator, launched):
    """Where a program takes many tiles, the next ones' rows come through shared memory while this one is reduced.
    fused_qk_rmsnorm's workloads are all of one token."""
    launch = launched(operator, largest(operator),
                      lambda found: next(config for config in found if config["stages"] >= 2))
    binary = launch.compile("sm_90")
    assert "cp.async" in binary.asm["ptx"] and binary.metadata.shared > 0
    used = resources(binary)
    assert used["STACK"] == 0, "registers are spilled"
    assert launch.grid[0] % SM_COUNT == 0
    # As many of them as are launched fit a multiprocessor, so that none waits for another to end.
    per_sm = launch.grid[0] // SM_COUNT
    assert per_sm * 32 * launch.num_warps * used["REG"] <= 65536, (per_sm, used)
    assert per_sm * (binary.metadata.shared + 1024) <= 228 * 1024
