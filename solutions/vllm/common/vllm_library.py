"""vLLM's compiled ops, without importing vLLM: its Python code needs far more than they do."""

import functools
import importlib.util
from pathlib import Path

import torch

# Namespace under torch.ops -> the library that registers it (vLLM 0.25; before 0.20 the files were called otherwise).
FILES = {"_C": "_C_stable_libtorch.abi3.so", "_C_cache_ops": "_C_stable_libtorch.abi3.so",
         "_moe_C": "_moe_C_stable_libtorch.abi3.so"}


@functools.cache
def load(namespace):
    """torch.ops.<namespace> after its library was loaded, once. RuntimeError in one line when it is not installed.

    find_spec() finds an installed vllm without running it, and a folder of the libraries alone just as well.
    """
    spec = importlib.util.find_spec("vllm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / FILES[namespace]
        if path.is_file():
            torch.ops.load_library(str(path))
            return getattr(torch.ops, namespace)
    where = f"is not in {', '.join(folders)}" if folders else "is missing, and so is the module vllm"
    raise RuntimeError(f"{FILES[namespace]} {where}; pip install vllm==0.25.1")
