"""Ahead-of-time compilation of Triton kernels on a machine without a GPU."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {"sm_90": GPUTarget("cuda", 90, 32), "sm_100": GPUTarget("cuda", 100, 32)}


def compile_kernel(kernel, signature, constants, target, multiples_of_16=(), **options):
    """Compiles a @triton.jit function to a cubin; raises what the compiler raises.

    signature: argument name -> Triton type ("*fp8e4nv", "i32", "tensordesc<fp8e4nv[128,128]>"); pointers are taken as
    16-byte aligned, as torch allocates them. constants: argument name -> value. multiples_of_16: integer arguments that
    are, which a launch finds out by itself. Returns the compiled kernel
    (`.asm["ptx"]`, `.metadata.shared`). Needs a process without TRITON_INTERPRET.
    """
    types = {name: "constexpr" if name in constants else signature[name] for name in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if types[name].startswith("*") or name in multiples_of_16
    }
    source = ASTSource(kernel, types, constants, aligned)
    return triton.compile(source, target=TARGETS[target], options=options)
