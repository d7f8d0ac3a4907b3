"""Every kernel of triton_compact, in every configuration at full size, compiled for sm_90 and sm_100.

The signatures are those of real calls: run() is called on tensors whose memory nothing touches, and its launches are
looked at.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from moe_cases import sizes, solution
from on_host import recalled_for
from triton.tools.tensor_descriptor import TensorDescriptor

MODULE = solution("triton_compact")
# One token count of each of choose_config's answers; the H200 has 132 multiprocessors.
SEQ_LENS = [1, 80, 901, 14107]
SM_COUNT = 132
TYPES = {torch.float8_e4m3fn: "fp8e4nv", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}


def full_size(seq_len):
    """The arguments of run() at the definition's full axes. Nothing reads or writes them, so they take no memory."""
    size = {"seq_len": seq_len, **sizes(7168, 2048)}
    hidden, intermediate, blocks = size["hidden_size"], size["intermediate_size"], size["num_hidden_blocks"]

    def empty(dtype, *shape):
        return torch.empty(shape, dtype=dtype)

    fp8 = torch.float8_e4m3fn
    return (
        empty(torch.float32, seq_len, 256),
        empty(torch.bfloat16, 256),
        empty(fp8, seq_len, hidden),
        empty(torch.float32, blocks, seq_len),
        empty(fp8, 32, 2 * intermediate, hidden),
        empty(torch.float32, 32, 32, blocks),
        empty(fp8, 32, hidden, intermediate),
        empty(torch.float32, 32, blocks, 16),
        96,
        2.5,
        empty(torch.bfloat16, seq_len, hidden),
    )


def triton_type(value):
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>".replace(" ", "")
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return {int: "i32", float: "fp32"}[type(value)]


@pytest.fixture
def launches(monkeypatch):
    """launches(seq_len) -> name -> (kernel, grid, signature, constants, options), as on a GPU with PDL."""

    def look(seq_len):
        seen, choose = [], MODULE.choose_config
        with monkeypatch.context() as patch:
            patch.setattr(MODULE, "choose_config", lambda seq_len, sm_count: choose(seq_len, SM_COUNT))
            patch.setattr(MODULE, "_launch", lambda calls, aligned, stream: seen.extend(calls))
            patch.setattr(MODULE.workspace, "kept", {})
            MODULE.run(*full_size(seq_len))
        return {call[0].__name__: described(*call) for call in seen}

    return look


def described(kernel, grid, arguments, given):
    signature = {name: triton_type(value) for name, value in zip(kernel.arg_names, arguments, strict=False)}
    constants = {**given, "PDL": True}
    options = {"num_warps": constants.pop("num_warps", 4)}
    if kernel is not MODULE.moe_route:  # the first has none before it to wait for
        options["launch_pdl"] = True
    return kernel, grid, signature, constants, options


def resources(binary):
    """cuobjdump's report on a cubin: registers, bytes of stack. Skips where this triton brings no cuobjdump."""
    beside = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    tool = beside if beside.exists() else shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("no cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(binary.asm["cubin"])
        cubin.flush()
        printed = subprocess.run([tool, "-res-usage", cubin.name], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", printed)}


@compiled
@pytest.mark.parametrize("seq_len", SEQ_LENS)
@pytest.mark.parametrize("name", ["moe_route", "moe_combine"])
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@recalled_for("triton_compact", compiler=triton.__version__)
def test_small_kernels_compile(target, name, seq_len, launches):
    kernel, _, signature, constants, options = launches(seq_len)[name]
    binary = compile_kernel(kernel, signature, constants, target, **options)
    assert f".target {target}" in binary.asm["ptx"]
    assert name == "moe_route" or "griddepcontrol.wait" in binary.asm["ptx"]
    assert resources(binary)["STACK"] == 0


@compiled
@pytest.mark.parametrize("seq_len", SEQ_LENS)
@pytest.mark.parametrize("name", ["moe_gemm1", "moe_gemm2"])
@pytest.mark.parametrize("target, tensor_core", [("sm_90", "wgmma.mma_async"), ("sm_100", "tcgen05.mma")])
@recalled_for("triton_compact", compiler=triton.__version__)
def test_gemm_compiles(target, tensor_core, name, seq_len, launches):
    """On the tensor cores, fed by TMA, without a register spilled, and as many programs an SM as are launched."""
    kernel, grid, signature, constants, options = launches(seq_len)[name]
    assert signature["w_desc"] == "tensordesc<fp8e4nv[128,128]>"
    binary = compile_kernel(kernel, signature, constants, target, **options)
    ptx = binary.asm["ptx"]
    for instruction in (tensor_core, "cp.async.bulk.tensor", "griddepcontrol.wait", "griddepcontrol.launch_dependents"):
        assert instruction in ptx, instruction
    assert ptx.index("griddepcontrol.wait") < ptx.index("cp.async.bulk.tensor")
    used = resources(binary)
    if target == "sm_90":
        assert used["STACK"] == 0, "registers are spilled"
        per_sm = grid[0] // SM_COUNT
        # Of one SM: 64 Ki registers, 228 KiB of shared memory, 1 KiB of that lost to each block.
        assert per_sm * 32 * options["num_warps"] * used["REG"] <= 65536
        assert per_sm * (binary.metadata.shared + 1024) <= 228 * 1024


@pytest.mark.parametrize("seq_len", SEQ_LENS)
def test_workspace_and_grids_at_full_size(seq_len, launches):
    calls = launches(seq_len)
    assert calls["moe_route"][1] == (seq_len, 1, 1) and calls["moe_combine"][1] == (seq_len, 7, 1)
    for name in ("moe_gemm1", "moe_gemm2"):
        _, grid, _, constants, _ = calls[name]
        assert grid[1:] == (1, 1) and grid[0] % SM_COUNT == 0
        # The workspace has room for the pieces of one program an SM, 16 pairs wide.
        assert not constants["SPLIT"] or (grid[0] == SM_COUNT and constants["BLOCK_M"] == 16 and constants["SWAP"])
