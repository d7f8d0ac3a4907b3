"""CUDA C++, compiled with nvcc when it is loaded, called through ctypes."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = """
__global__ void scaled_add(const float4* x, const float4* y, float factor, float4* out, long count) {
  long i = blockIdx.x * 256L + threadIdx.x;
  if (i >= count) return;
  float4 a = x[i], b = y[i];
  out[i] = make_float4(a.x + factor * b.x, a.y + factor * b.y, a.z + factor * b.z, a.w + factor * b.w);
}
extern "C" int launch(const void* x, const void* y, float factor, void* out, long count, void* stream) {
  scaled_add<<<(count + 255) / 256, 256, 0, (cudaStream_t)stream>>>(
      (const float4*)x, (const float4*)y, factor, (float4*)out, count);
  return cudaGetLastError();
}
"""

nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
folder = Path(tempfile.mkdtemp())
(folder / "kernel.cu").write_text(SOURCE)
subprocess.run(
    [nvcc, "-O3", "-arch=native", "--shared", "-Xcompiler", "-fPIC", "-o", "kernel.so", "kernel.cu"],
    cwd=folder,
    check=True,
    capture_output=True,
)
launch = ctypes.CDLL(str(folder / "kernel.so")).launch
launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]


def run(x, y, factor, out):
    stream = torch.cuda.current_stream().cuda_stream
    if error := launch(x.data_ptr(), y.data_ptr(), factor, out.data_ptr(), out.numel() // 4, stream):
        raise RuntimeError(f"CUDA error {error}")
