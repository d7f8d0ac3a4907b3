"""CUDA C++ beside a main.py: compiled with nvcc at first use, kept in the user's cache folder, called through ctypes.

The library is named by a hash of its sources, its flags and the GPU's architecture, so an edited source never runs an
old library. Needs nvcc on the PATH, in $CUDA_HOME or in /usr/local/cuda at the first call ever.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_float


def find_nvcc():
    """Path of nvcc, or RuntimeError."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for candidate in [shutil.which("nvcc"), *(f"{home}/bin/nvcc" for home in homes if home)]:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise RuntimeError("a CUDA solution compiles its kernels at first use and found no nvcc (PATH, CUDA_HOME)")


class CudaLibrary:
    """main: __file__ of the main.py that owns it. name: also of the library's C function, `<name>_run`, which returns a
    cudaError_t and takes `parameters` and then the stream. source: the .cu beside main.py, or a list that begins with
    it; the headers that it includes are found by themselves."""

    def __init__(self, main, name, source, parameters):
        self.folder, self.name = Path(main).resolve().parent, name
        self.source = source if isinstance(source, str) else source[0]
        self.parameters, self.functions = [*parameters, POINTER], {}

    @property
    def sources(self):
        """File names beside main.py: the .cu, the headers that it includes, and those that these include."""
        names = [self.source]
        for name in names:
            found = INCLUDE.findall((self.folder / name).read_text())
            names += [each for each in found if each not in names and (self.folder / each).is_file()]
        return names

    def build(self, architecture, folder=None):
        """Path of the shared library for "90a", "100a" ..., which is compiled unless the cache holds it. RuntimeError
        in one line if nvcc is missing or fails. folder: of the cache, by default the user's."""
        flags = ["-O3", "-std=c++17", f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "--shared",
                 "-Xcompiler", "-fPIC"]
        texts = [(self.folder / name).read_bytes() for name in self.sources]
        digest = hashlib.sha256(b"\0".join([*texts, " ".join(flags).encode()])).hexdigest()[:16]
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(folder or Path(base) / "kernelderby")
        library = folder / f"{self.name}_{digest}.so"
        if library.exists():
            return library
        nvcc = find_nvcc()
        folder.mkdir(parents=True, exist_ok=True)
        # Compiled beside its place and renamed, so that no other process loads half a file.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            command = [nvcc, *flags, "-o", str(made), str(self.folder / self.source)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
                raise RuntimeError(f"{self.name}: nvcc failed: {(lines or ['no message'])[0]}")
            os.replace(made, library)
        return library

    def load(self, path):
        """The C function of the library at `path`."""
        function = getattr(ctypes.CDLL(str(path)), f"{self.name}_run")
        function.argtypes = self.parameters
        return function

    def __call__(self, device, *arguments):
        """Calls the C function on the device's current stream. Tensors are passed as their addresses."""
        function = self.functions.get(device)
        if function is None:
            if device.type != "cuda":
                raise ValueError(f"{self.name}: the tensors are on {device}; it takes those of a CUDA device")
            major, minor = torch.cuda.get_device_capability(device)
            function = self.functions[device] = self.load(self.build(f"{major}{minor}a"))
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        arguments = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        if device.index == torch._C._cuda_getDevice():
            error = function(*arguments, stream)
        else:
            with torch.cuda.device(device):
                error = function(*arguments, stream)
        if error:
            raise RuntimeError(f"{self.name}: launch failed: CUDA error {error}")
