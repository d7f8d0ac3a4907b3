"""common/wgmma.cuh: each width and operand form is the instruction that its name says (nvcc, no GPU), and multiplies
what its comments say lies in shared memory and in registers (on a GPU, exactly: the operands are small integers)."""

import ctypes
import functools
import re
import shutil
import subprocess
from pathlib import Path

import nvcc
import pytest
import torch

HERE = Path(__file__).parent
COMMON = HERE.parent.parent / "solutions" / "kernelderby" / "common"
FORMS = ("ss", "ss_b_mn", "ss_a_mn", "rs", "rs_b_mn", "ss_e4m3", "rs_e4m3")
CASES = [(n, form, 128) for n in range(8, 257, 8) for form in ("ss", "rs", "ss_e4m3", "rs_e4m3")]
CASES += [(64, form, swizzle) for form in FORMS for swizzle in (128, 64, 32)]
FLAGS = ("-O1", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "--shared", "-Xcompiler", "-fPIC")
B_AT, SHARED = 32768, 65536  # bytes


def compiled(folder, name):
    """The library of a .cu file beside this one; skips without nvcc."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc")
    source = Path(shutil.copy(HERE / f"{name}.cu", folder))
    made = nvcc.program(compiler, source, *FLAGS, includes=[COMMON])
    # C7510: the compiler put products one after the other, since it had to move sums between them.
    assert "warning" not in made.said, made.said
    return made.path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("wgmma"), "products")


def test_every_width_is_one_instruction(request):
    triton, compiler = pytest.importorskip("triton"), shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc")

    def products():
        """Each kernel with its n, form and products."""
        cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        library = request.getfixturevalue("library")
        sass = subprocess.run([cuobjdump, "-sass", library], capture_output=True, text=True, check=True).stdout
        name = re.compile(r"\S*productILi(\d+)\S*?FormE?(\d)\S*?SwizzleE?(\d)")
        return [
            [*map(int, name.match(kernel).groups()[:2]), re.findall(r"[HQ]GMMA\.\S+ R\d+, .*?;", kernel)]
            for kernel in re.split(r"Function : ", sass)[1:]
        ]

    kernels = nvcc.recalled([nvcc.release(compiler), FLAGS, nvcc.tokens(HERE / "products.cu", [COMMON])], products)
    assert len(kernels) == len(set(CASES))
    for n, form, found in kernels:
        assert len(found) == 1, (n, form, found)
        name = f"QGMMA.64x{n}x32.F32.E4M3.E4M3" if "e4m3" in FORMS[form] else f"HGMMA.64x{n}x16.F32.BF16"
        assert found[0].startswith(f"{name} ")
        assert ("tnspA" in found[0], "tnspB" in found[0]) == ("a_mn" in FORMS[form], "b_mn" in FORMS[form])
        assert bool(re.search(r"R\d+, R\d+, gdesc", found[0])) == FORMS[form].startswith("rs")


def place(rows, swizzle):
    """Bytes of a [rows, swizzle bytes] box as TMA lays them out: chunks of 16 bytes change places within eight rows."""
    at = torch.arange(rows.numel())
    to = at ^ (at >> 3 & swizzle - 16)
    placed = torch.empty(rows.numel(), dtype=torch.uint8)
    placed[to] = rows.flatten()
    return placed


def laid_out(matrix, swizzle, mn_major):
    """matrix [m or n, k] of 16 or 8 bits, 32 bytes along k -> the operand's bytes, and `leading`."""
    if not mn_major:
        rows = torch.zeros(matrix.shape[0], swizzle, dtype=torch.uint8)
        rows[:, :32] = matrix.contiguous().view(torch.uint8)
        return place(rows, swizzle), 16
    across = swizzle // 2
    boxes = [place(matrix[i : i + across].T.contiguous().view(torch.uint8), swizzle) for i in range(0, 64, across)]
    return torch.cat(boxes), boxes[0].numel()


def of_threads(matrix, together):
    """matrix [64, k] -> words [4, 128]: the fragments of a warpgroup, `together` values along k a word."""
    t = torch.arange(128)
    row, column = 16 * (t // 32) + t % 32 // 4, together * (t % 4)
    words = [
        torch.stack([matrix[row + 8 * (i % 2), column + 4 * together * (i // 2) + j] for j in range(together)], 1)
        for i in range(4)
    ]
    return torch.stack([word.contiguous().view(torch.uint8).reshape(128, 4) for word in words])


def sums_of(d, n):
    """[n / 2, 128] of the threads -> [64, n]."""
    i, t = torch.arange(n // 2)[:, None], torch.arange(128)[None]
    result = torch.empty(64, n)
    result[16 * (t // 32) + t % 32 // 4 + 8 * (i % 4 // 2), 8 * (i // 4) + 2 * (t % 4) + i % 2] = d
    return result


@functools.cache
def function(path):
    run = ctypes.CDLL(str(path)).product_run
    run.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p] * 3 + [ctypes.c_int]
    return run


@pytest.mark.gpu
@pytest.mark.parametrize("n, form, swizzle", dict.fromkeys(CASES))
def test_it_multiplies(library, n, form, swizzle):
    generator = torch.Generator().manual_seed(n)
    kind, k = (torch.float8_e4m3fn, 32) if "e4m3" in form else (torch.bfloat16, 16)
    a, b = (torch.randint(-4, 5, (rows, k), generator=generator).float() for rows in (64, n))
    before = torch.randint(-9, 10, (n // 2, 128), generator=generator).float()
    a_bytes, a_leading = laid_out(a.to(kind), swizzle, "a_mn" in form)
    b_bytes, b_leading = laid_out(b.to(kind), swizzle, "b_mn" in form)
    operands = torch.zeros(SHARED, dtype=torch.uint8)
    operands[: a_bytes.numel()] = a_bytes
    operands[B_AT : B_AT + b_bytes.numel()] = b_bytes
    words = of_threads(a.to(kind).view(torch.uint8 if k == 32 else torch.int16), 4 if k == 32 else 2)
    d, operands, words = before.cuda(), operands.cuda(), words.cuda()
    leading = max(a_leading, b_leading)
    addresses = [each.data_ptr() for each in (d, operands, words)]
    assert function(library)(n, FORMS.index(form), swizzle, *addresses, leading) == 0
    assert torch.equal(sums_of(d.cpu(), n), sums_of(before, n) + a @ b.T)


def test_a_ring_compiles(tmp_path):
    compiled(tmp_path, "ring")


@pytest.mark.gpu
@pytest.mark.parametrize("k", [8, 64, 192, 200, 4096])
def test_a_ring_of_two_ctas(tmp_path, k):
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randint(-4, 5, (rows, k), generator=generator).float() for rows in (128, 64))
    operands = [each.bfloat16().cuda() for each in (a, b)]
    d = torch.zeros(2, 32, 128, device="cuda")
    run = ctypes.CDLL(str(compiled(tmp_path, "ring"))).ring_run
    run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int]
    for _ in range(3):
        assert run(*(each.data_ptr() for each in (*operands, d)), k) == 0
    assert torch.equal(torch.cat([sums_of(half, 64) for half in d.cpu()]), a @ b.T)
