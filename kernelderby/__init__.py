"""KernelDerby: which kernel is fastest on this GPU for these shapes, where its time goes, how far it is from the
hardware's limit.

    trace_set = kernelderby.open(".")      # definitions, workloads, solutions, rows; .rank(), .roofline()
    profile = kernelderby.profile(file)    # .kernels(), .stages(), .whatif(), .compare()
    counters = kernelderby.counters(file)  # what ncu counted

Nothing is imported before it is used. docs/api.md describes the module.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__version__ = "0.2.0"
__all__ = [
    *("Answer", "DerbyError", "Frame", "ProfileFile", "TraceSet", "__version__"),
    *("counters", "doctor", "layers", "open", "profile"),
]

_HOMES = {
    "Answer": ("report.answer", "Answer"),
    "DerbyError": ("errors", "DerbyError"),
    "Frame": ("report.frame", "Frame"),
    "ProfileFile": ("api.profile_file", "ProfileFile"),
    "TraceSet": ("api.trace_set", "TraceSet"),
    "counters": ("api.profile_file", "counters"),
    "doctor": ("api.machine", "doctor"),
    "layers": ("api.profile_file", "layers"),
    "open": ("api.trace_set", "open_set"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "profile":
        return import_module("kernelderby.profile")
    if name not in _HOMES:
        raise AttributeError(f"module 'kernelderby' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(f"kernelderby.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`kernelderby.profile` is the package of profiles. Called, it opens a profile."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "profile" and isinstance(value, ModuleType):
            value.__class__ = _ProfilePackage
        super().__setattr__(name, value)


class _ProfilePackage(ModuleType):
    def __call__(self, file: Any) -> Any:
        """The profile in a file (api.profile_file.ProfileFile). DerbyError if the file is not a profile."""
        from kernelderby.api.profile_file import open_profile_file

        return open_profile_file(file)


sys.modules[__name__].__class__ = _Package
