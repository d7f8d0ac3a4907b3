"""The row-wise kernels at full shape, compiled for sm_90 and sm_100: 16 bytes an access, no register spilled.

The signatures are those of real calls: run_with() is called on tensors without memory, and its launch is looked at.
"""

import re

import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from on_host import recalled_for
from rowwise_cases import CATALOG, OPERATORS, meta_arguments, module
from test_triton_compact_compiles import resources

from kernelderby.catalog.selection import of_origin

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
        kernel = getattr(one, f"derby_{operator}")
        launch = Launch(kernel.kernel if isinstance(kernel, Launch) else kernel)  # a test may look more than once
        monkeypatch.setattr(one, f"derby_{operator}", launch)
        monkeypatch.setattr(one.rowwise, "multiprocessors", lambda tensor: SM_COUNT)
        arguments = meta_arguments(operator, workload)
        config = choose(one.candidates(*arguments[: len(CATALOG.definition(operator).inputs)]))
        one.run_with(config, *arguments)
        return launch

    return look


def largest(operator):
    return max(of_origin(CATALOG.workloads(operator), ["survey"]), key=lambda workload: workload.cost.bytes_read)


def accesses(ptx):
    """Bits of each global load and store of the wide tensors, without the single numbers that scales are."""
    return [
        (kind, int(count or 1) * int(bits))
        for kind, count, bits in re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)
    ]


@compiled
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@recalled_for("derby_{operator}", compiler=triton.__version__)
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
    """The bytes that one program reads, weights left out; all inputs have two bytes a number."""
    tile = launch.constants["ROWS"] * launch.constants["CHUNK"]
    tensors = {"silu_and_mul": 2, "moe_sum_reduce": 8}.get(operator)
    if tensors:
        return 2 * tile * tensors
    inputs = 2 if operator in ("fused_add_rms_norm", "gated_rms_norm", "fused_rmsnorm_quant") else 1
    return 2 * launch.constants["ROWS"] * launch.constants["COLUMNS"] * inputs


@compiled
@pytest.mark.parametrize("columns", [768, 1536, 2048, 2560])
@recalled_for("derby_silu_and_mul", compiler=triton.__version__)
def test_tiles_that_do_not_follow_rows(columns, launched):
    """The reads are vectors although a tile ends in the middle of a row."""
    workload = max(
        (one for one in CATALOG.workloads("silu_and_mul") if one.axes["intermediate_size"] == columns),
        key=lambda one: one.cost.bytes_read,
    )
    launch = launched("silu_and_mul", workload, lambda found: next(config for config in found if config["rows"] == 0))
    binary = launch.compile("sm_90")
    assert [bits for _, bits in accesses(binary.asm["ptx"])] == [128, 128, 128]
    assert launch.grid[0] * launch.constants["CHUNK"] >= workload.axes["num_tokens"] * columns
    assert resources(binary)["REG"] <= 64, "half of a multiprocessor's warps at least"


@compiled
@pytest.mark.parametrize(("stream", "hints"), [("", []), ("loads", ["ld"] * 2), ("both", ["ld"] * 2 + ["st"])])
@pytest.mark.parametrize("rows", [0, 1])
@recalled_for("derby_silu_and_mul", compiler=triton.__version__)
def test_what_leaves_the_cache_first(rows, stream, hints, launched):
    config = {"rows": rows, "chunk": 1024, "warps": 4, "stages": 0, "per_sm": 0, "stream": stream}
    ptx = launched("silu_and_mul", largest("silu_and_mul"), lambda found: config).compile("sm_90").asm["ptx"]
    assert re.findall(r"\b(ld|st)\.global\S*evict_first", ptx) == hints


# fused_qk_rmsnorm's workloads are all of one token; these are all too large to gain by it.
NEVER_PERSISTENT = ("fused_qk_rmsnorm", "gated_rms_norm", "moe_sum_reduce", "per_token_group_quant_fp8")


@compiled
@pytest.mark.parametrize("operator", [operator for operator in OPERATORS if operator not in NEVER_PERSISTENT])
@recalled_for("derby_{operator}", compiler=triton.__version__)
def test_persistent_and_ahead(operator, launched):
    """Where a program takes many tiles, the next ones' rows come through shared memory while this one is reduced."""
    surveyed = [workload for workload in CATALOG.workloads(operator) if workload.origin == "survey"]
    workloads = sorted(surveyed, key=lambda workload: -workload.cost.bytes_read)

    def ahead(found):
        return next((config for config in reversed(found) if config["stages"] >= 2), found[0])

    launch = next(
        one for one in (launched(operator, workload, ahead) for workload in workloads) if one.constants["STAGES"]
    )
    binary = launch.compile("sm_90")
    assert "cp.async" in binary.asm["ptx"] and binary.metadata.shared > 0
    used = resources(binary)
    assert used["STACK"] == 0, "registers are spilled"
    assert launch.grid[0] % SM_COUNT == 0
    # As many of them as are launched fit a multiprocessor, so that none waits for another to end.
    per_sm = launch.grid[0] // SM_COUNT
    assert per_sm * 32 * launch.num_warps * used["REG"] <= 65536, (per_sm, used)
    assert per_sm * (binary.metadata.shared + 1024) <= 228 * 1024


@compiled
@pytest.mark.parametrize("operator", ["per_token_group_quant_fp8", "silu_and_mul"])
@recalled_for("derby_{operator}", compiler=triton.__version__)
def test_more_numbers_than_32_bits_count(operator, launched):
    """3.1 M tokens of 16 groups are 6.3e9 numbers: the grid stays within its limit, and row offsets are widened before
    they are multiplied."""
    workload = largest(operator)
    for config in (
        module(operator).candidates(*meta_arguments(operator, workload)[:1], 1e-10)[:6]
        if operator != "silu_and_mul"
        else [{"rows": 0, "chunk": 256, "warps": 1, "stages": 0, "per_sm": 0, "stream": ""}]
    ):
        launch = launched(operator, workload, lambda found, config=config: config)
        assert 0 < launch.grid[0] < 2**31
        steps = launch.compile("sm_90").asm["ttir"].splitlines()
        start = next(line.split()[0] for line in steps if "tt.get_program_id" in line)
        assert any("arith.extsi" in line and start in line for line in steps)
