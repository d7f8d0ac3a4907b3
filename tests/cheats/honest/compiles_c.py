"""A C function, built by the machine's compiler at load."""

import ctypes
import os
import subprocess
import tempfile

SLOW = True

SOURCE = """void add(const float *x, const float *y, float f, float *out, long n) {
    for (long i = 0; i < n; i++) out[i] = x[i] + f * y[i];
}
"""
folder = tempfile.mkdtemp(dir=os.path.dirname(os.environ["XDG_CACHE_HOME"]))
with open(f"{folder}/add.c", "w") as file:
    file.write(SOURCE)
subprocess.run(
    ["cc", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", f"{folder}/add.so", f"{folder}/add.c"], check=True
)
library = ctypes.CDLL(f"{folder}/add.so")


def run(x, y, factor, out):
    library.add(
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(y.data_ptr()),
        ctypes.c_float(factor),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_long(out.numel()),
    )
