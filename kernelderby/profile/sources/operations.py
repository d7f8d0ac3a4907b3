"""Names of copies and memsets in one spelling for every source: nsys's newer one, "[CUDA memcpy Host-to-Device]".

AMD's tools have other names for the copy engines' work. A copy that the HIP runtime makes with a kernel
(__amd_rocclr_copyBuffer) stays a kernel.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kernelderby.profile.spans import SpanKind

MEMSET = "[CUDA memset]"
# CUpti_ActivityMemcpyKind, which nsys stores as copyKind; the labels are those of its ENUM_CUDA_MEMCPY_OPER.
COPY_LABELS = {
    0: "Unknown", 1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host",
    5: "Array-to-Array", 6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host",
    10: "Peer-to-Peer", 11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
_PLACES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_OPERATION = re.compile(r"^\[?\s*(?:CUDA\s+)?(Unified Memory\s+)?(memcpy|memset)\b\s*([^\]()]*)", re.IGNORECASE)
_SHORT = re.compile(r"^(Unified\s+)?([HDAP])to([HDAP])$", re.IGNORECASE)

_ROCM_COPY = re.compile(r"(?:MEMORY_COPY_|Copy)(Host|Device)_?To_?(Host|Device)(?:Async)?", re.IGNORECASE)
_ROCM_FILL = re.compile(r"FillBuffer|FillBufferAsync")


def copy_name(kind: int | None) -> str:
    return f"[CUDA memcpy {COPY_LABELS.get(kind or 0, 'Unknown')}]"


@lru_cache(maxsize=50_000)
def operation(name: str) -> tuple[SpanKind, str]:
    """Kind and spelling of GPU work by its name in a summary or trace. "[CUDA memcpy HtoD]" and Kineto's "Memcpy HtoD
    (Pinned -> Device)" are copies; any other name is a kernel's."""
    match = _OPERATION.match(name)
    if match is None or not name.startswith(("[", "Memcpy", "Memset")):
        if copy := _ROCM_COPY.fullmatch(name):
            return SpanKind.MEMCPY, f"[CUDA memcpy {copy[1].capitalize()}-to-{copy[2].capitalize()}]"
        return (SpanKind.MEMSET, MEMSET) if _ROCM_FILL.fullmatch(name) else (SpanKind.KERNEL, name)
    if match[2].lower() == "memset":
        return SpanKind.MEMSET, MEMSET
    label = ("Unified " if match[1] else "") + match[3].strip()
    short = _SHORT.match(label)
    if short:
        label = f"{'Unified ' if short[1] else ''}{_PLACES[short[2].upper()]}-to-{_PLACES[short[3].upper()]}"
    return SpanKind.MEMCPY, f"[CUDA memcpy {label or 'Unknown'}]"
