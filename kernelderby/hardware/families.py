"""Compute capability by the driver's name of a GPU, for every variant of a model.

All variants of a model (SXM, PCIe, NVL, memory sizes) share the architecture. They differ in their peaks, so peaks are
listed by whole names (gpus/*.toml).
"""

from __future__ import annotations

import re

from kernelderby.hardware import find_gpu

# NVIDIA: developer.nvidia.com/cuda-gpus. AMD: the gfx targets of ROCm's table of GPUs. The first match decides.
_FAMILIES: tuple[tuple[str, str], ...] = (
    (r"(?<![A-Z\d])G?B300(?!\d)", "10.3"),
    (r"(?<![A-Z\d])G?B(?:200|100)(?!\d)", "10.0"),
    (r"GB10\b|DGX Spark", "12.1"),
    (r"\bThor\b", "11.0"),
    (r"RTX PRO \d+\w*|RTX (?:50[5-9]0|PRO)|GeForce RTX 50\d\d|RTX \d+ Blackwell|Blackwell", "12.0"),
    (r"(?<![A-Z\d])G?H(?:100|200|800|20)(?!\d)", "9.0"),
    (r"\bL(?:40S?|20|4|2)\b|RTX (?:40[5-9]0|[456]\d00 Ada|6000 Ada)|GeForce RTX 40\d\d|Ada Generation", "8.9"),
    (r"\bOrin\b", "8.7"),
    (r"\bA(?:10G?|16|2|40|6000|5500|5000|4500|4000|2000|3000)\b|RTX A\d{4}|GeForce RTX 30\d\d|RTX 30[5-9]0", "8.6"),
    (r"\bA(?:100|800|30)\b", "8.0"),
    (r"\bT4G?\b|RTX 20[678]0|Quadro RTX|GTX 16\d\d|TITAN RTX", "7.5"),
    (r"\bV100|TITAN V|Quadro GV100", "7.0"),
    (r"\bP100|Quadro GP100", "6.0"),
    (r"\bP40?\b|GTX 10\d\d|TITAN X", "6.1"),
)
_AMD: tuple[tuple[str, str], ...] = (
    (r"MI35\dX?", "gfx950"),
    (r"MI3(?:00|25|08)[AX]?", "gfx942"),
    (r"MI2\d\dX?", "gfx90a"),
    (r"MI100", "gfx908"),
)
_TARGET = re.compile(r"\bgfx\d{1,2}[\da-f]{2}\b")


def compute_capability_of(name: str) -> str | None:
    """ "9.0" for any H100, H200 or GH200; None for a name without a known NVIDIA architecture."""
    known = find_gpu(name)
    if known is not None:
        return known.compute_capability
    return next((capability for pattern, capability in _FAMILIES if re.search(pattern, name, re.IGNORECASE)), None)


def amd_architecture_of(name: str) -> str | None:
    """ "gfx942" for an MI300X and for "gfx942"; None if the GPU is not AMD's."""
    if target := _TARGET.search(name):
        return target[0]
    return next((target for pattern, target in _AMD if re.search(pattern, name, re.IGNORECASE)), None)
