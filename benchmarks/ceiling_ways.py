"""What benchmarks/ceilings.py tries on a GPU: every way with its work, and how torch checks its result."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelderby.hardware import TRAFFIC_KINDS

SOURCE = Path(__file__).with_name("ceilings.cu")
FLAGS = ("-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "--shared", "-Xcompiler", "-fPIC")
STEP, SEED, SINKS = 0x9E3779B1, 0x1234567, 4096  # as in ceilings.cu: word i of a fill is STEP * i + SEED
BOX_WORDS = 128 * 128 // 4
PART = 2**26  # words that are compared at a time
PASSES = {2: 7000, 3: 4700}  # by warpgroups: some 20 ms
GEMM_SIZES = (4096, 8192, 12288, 16384)
FUNCTIONS = {  # i: int, p: pointer, q: 64-bit size, u: 32-bit word; the last p is the stream
    "read_linear": "iiipqpp",
    "fill_linear": "iiipqup",
    "copy_linear": "iiippqp",
    "add_linear": "iiipppqp",
    "read_tma": "iiipqpp",
    "fill_tma": "iipqup",
    "copy_tma": "iippqp",
    "memcpy": "ppqp",
    "multiply": "iiippipp",
    "empty": "p",
    "load_store": "ppp",
}
TYPES = {"i": ctypes.c_int, "p": ctypes.c_void_p, "q": ctypes.c_uint64, "u": ctypes.c_uint32}


class WayFailed(Exception):
    """This way gives no figure; the message says why."""


@dataclass
class Way:
    """kind: of TRAFFIC_KINDS, or a dtype. work: bytes or flops of a launch. run launches once; check raises WayFailed
    if the result is wrong. prepare makes what both need; release frees it."""

    kind: str
    name: str
    work: float
    run: Callable[[], None]
    check: Callable[[], None]
    seconds: float = 0.3
    prepare: Callable[[], None] = lambda: None
    release: Callable[[], None] = lambda: None


def compile_library(folder: str) -> ctypes.CDLL:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [shutil.which("nvcc"), *(f"{home}/bin/nvcc" for home in homes if home)]
    nvcc = next((place for place in places if place and os.access(place, os.X_OK)), None)
    if nvcc is None:
        raise SystemExit("ceilings: no nvcc on the PATH, in $CUDA_HOME or in /usr/local/cuda")
    made = Path(folder) / "ceilings.so"
    result = subprocess.run([nvcc, *FLAGS, "-o", made, SOURCE], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"ceilings: nvcc failed:\n{result.stderr}")
    library = ctypes.CDLL(str(made))
    for name, kinds in FUNCTIONS.items():
        getattr(library, f"ceilings_{name}").argtypes = [TYPES[kind] for kind in kinds]
    return library


class Plan:
    """Every way, over buffers of `size` bytes that exist from allocate() on. processors: SMs."""

    def __init__(self, library: ctypes.CDLL, size: int, processors: int, device: str = "cuda") -> None:
        self.library, self.size, self.processors, self.device = library, size, processors, device
        self.held: dict[str, torch.Tensor] = {}

    def allocate(self) -> None:
        def random_words() -> torch.Tensor:
            return torch.randint(-(2**31), 2**31 - 1, (self.size // 4,), dtype=torch.int32, device=self.device)

        self.held = {
            "one": random_words(),
            "other": random_words(),
            "to": random_words(),
            "sink": torch.zeros(SINKS, dtype=torch.int32, device=self.device),
        }
        self.sum_of_one = int(self.held["one"].sum(dtype=torch.int64)) % 2**32

    def call(self, name: str, *arguments) -> None:
        """A function of the library on torch's stream; a string means a buffer."""
        values = [self.held[value].data_ptr() if isinstance(value, str) else value for value in arguments]
        error = getattr(self.library, f"ceilings_{name}")(*values, torch.cuda.current_stream().cuda_stream)
        if error:
            raise WayFailed(f"error {error} from ceilings_{name}")

    def memory_ways(self) -> list[Way]:
        size, many, few = self.size, 64 * self.processors, 4 * self.processors
        ways = []

        def add(kind: str, name: str, times: int, check: Callable[[Callable[[], None]], None], *call) -> None:
            def run() -> None:
                self.call(*call)

            ways.append(Way(kind, name, times * size, run, lambda: check(run)))

        for ctas in (few, many):
            grid = f"{ctas // self.processors} CTAs an SM"
            for hint in (0, 1):
                stores = "streaming stores" if hint else "plain stores"
                for unroll in (4, 8, 16):
                    add(
                        "read",
                        f"linear, {unroll} x 16 bytes, {'256-byte prefetch, ' * hint}{grid}",
                        1,
                        self.check_sum,
                        "read_linear",
                        unroll,
                        hint,
                        ctas,
                        "one",
                        size,
                        "sink",
                    )
                    add(
                        "copy",
                        f"linear, {unroll} x 16 bytes, {stores}, {grid}",
                        2,
                        self.check_copy,
                        "copy_linear",
                        unroll,
                        hint,
                        ctas,
                        "one",
                        "to",
                        size,
                    )
                for unroll in (4, 8):
                    add(
                        "fill",
                        f"linear, {unroll} x 16 bytes, {stores}, {grid}",
                        1,
                        self.check_fill,
                        "fill_linear",
                        unroll,
                        hint,
                        ctas,
                        "to",
                        size,
                        SEED,
                    )
                for unroll in (2, 4, 8):
                    add(
                        "mixed",
                        f"linear, {unroll} x 16 bytes, {stores}, {grid}",
                        3,
                        self.check_mixed,
                        "add_linear",
                        unroll,
                        hint,
                        ctas,
                        "one",
                        "other",
                        "to",
                        size,
                    )
        for runs in (0, 1):
            order = "one run a CTA" if runs else "CTAs in turn"
            for tiled in (0, 1):
                add(
                    "read",
                    f"TMA {'boxes of 128 x 128 bytes' if tiled else 'bulk copies of 16 KB'}, {order}",
                    1,
                    self.check_sum,
                    "read_tma",
                    tiled,
                    runs,
                    self.processors,
                    "one",
                    size,
                    "sink",
                )
            add(
                "copy",
                f"TMA load and store of 16 KB, {order}",
                2,
                self.check_copy,
                "copy_tma",
                runs,
                self.processors,
                "one",
                "to",
                size,
            )
            add(
                "fill",
                f"TMA stores of 16 KB, {order}",
                1,
                self.check_fill_by_boxes,
                "fill_tma",
                runs,
                few,
                "to",
                size,
                SEED,
            )
        add("copy", "cudaMemcpyAsync", 2, self.check_copy, "memcpy", "one", "to", size)
        return sorted(ways, key=lambda way: TRAFFIC_KINDS.index(way.kind))

    def check_sum(self, run: Callable[[], None]) -> None:
        self.held["sink"].zero_()
        run()
        found = int(self.held["sink"].sum(dtype=torch.int64)) % 2**32
        if found != self.sum_of_one:
            raise WayFailed(f"the words' sum is {found}, not {self.sum_of_one}")

    def check_copy(self, run: Callable[[], None]) -> None:
        self.held["to"].fill_(7)
        run()
        if not torch.equal(self.held["to"], self.held["one"]):
            raise WayFailed("the copy differs")

    def check_mixed(self, run: Callable[[], None]) -> None:
        self.held["to"].fill_(7)
        run()
        parts = (self.held[name].split(PART) for name in ("to", "one", "other"))
        if not all(torch.equal(to, one + other) for to, one, other in zip(*parts, strict=True)):
            raise WayFailed("the sums differ")

    def check_fill(self, run: Callable[[], None], period: int | None = None) -> None:
        """period: number of words after which the pattern starts again."""
        self.held["to"].fill_(7)
        run()
        for number, part in enumerate(self.held["to"].split(PART)):
            index = torch.arange(part.numel(), device=self.device) + number * PART
            words = (index % period if period else index) * STEP + SEED
            if not torch.equal(part.long() % 2**32, words % 2**32):
                raise WayFailed("the words differ")

    def check_fill_by_boxes(self, run: Callable[[], None]) -> None:
        self.check_fill(run, BOX_WORDS)

    def loops(self) -> list[Way]:
        """wgmma from shared memory: 4 blocks of 128 bytes of K, M 64 a warpgroup, N 256."""
        ways = []
        for kind, dtype, k in (("bfloat16", torch.bfloat16, 64), ("float8_e4m3fn", torch.float8_e4m3fn, 128)):
            for groups in PASSES:
                ways.append(self.loop(kind, dtype, k, groups))
        return ways

    def loop(self, kind: str, dtype: torch.dtype, k: int, groups: int) -> Way:
        def run(passes: int = PASSES[groups]) -> None:
            self.call("multiply", int(kind != "bfloat16"), groups, self.processors, "a", "b", passes, "d")

        def prepare() -> None:
            self.held["a"] = torch.randn(groups, 4, 64, k, device=self.device).to(dtype)
            self.held["b"] = torch.randn(4, 256, k, device=self.device).to(dtype)
            self.held["d"] = torch.empty(self.processors, groups, 64, 256, device=self.device)

        def check() -> None:
            run(3)
            expected = 3 * torch.einsum("wsmk,snk->wmn", self.held["a"].double(), self.held["b"].double())
            error = ((self.held["d"] - expected).norm() / (expected.norm() * self.processors**0.5)).item()
            if not error < 1e-2:  # e4m3 products are added with some 14 bits
                raise WayFailed(f"the products differ by {error:.1e}")

        work = 2.0 * 64 * 256 * 4 * k * groups * PASSES[groups] * self.processors
        return Way(kind, f"wgmma loop, {groups} warpgroups an SM", work, run, check, 1.5, prepare, self.forget)

    def gemms(self) -> list[Way]:
        kinds = [
            ("bfloat16", "torch.mm", None),
            ("float8_e4m3fn", "torch._scaled_mm, fast accumulation", True),
            ("float8_e4m3fn", "torch._scaled_mm", False),
        ]
        return [self.gemm(kind, name, fast, n) for kind, name, fast in kinds for n in GEMM_SIZES]

    def gemm(self, kind: str, name: str, fast: bool | None, n: int) -> Way:
        def multiply() -> torch.Tensor:
            a, b = self.held["a"], self.held["b"].t()
            if fast is None:
                return torch.mm(a, b)
            scale = self.held["scale"]
            return torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=fast)

        def prepare() -> None:
            self.held["scale"] = torch.ones((), device=self.device)
            for matrix in ("a", "b"):
                parts = [torch.randn(2048, n, device=self.device).to(getattr(torch, kind)) for _ in range(n // 2048)]
                self.held[matrix] = torch.cat([part.view(torch.uint8) for part in parts]).view(getattr(torch, kind))

        def check() -> None:
            some = self.held["a"][:64].float()
            expected = torch.cat([some @ part.float().t() for part in self.held["b"].split(2048)], 1)
            error = ((multiply()[:64].float() - expected).norm() / expected.norm()).item()
            if not error < 0.1:  # fast accumulation keeps some 14 bits
                raise WayFailed(f"the product differs by {error:.1e}")

        return Way(kind, f"{name}, {n} x {n} x {n}", 2.0 * n**3, multiply, check, 0.8, prepare, self.forget)

    def forget(self) -> None:
        for name in ("a", "b", "d", "scale"):
            self.held.pop(name, None)
        torch.cuda.empty_cache()
