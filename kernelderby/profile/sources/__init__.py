"""Reading profiles of every kind behind one interface (kernelderby.profile.spans.Profile): open_profile(path)."""

from __future__ import annotations

from kernelderby.profile.sources.recognise import open_profile

__all__ = ["open_profile"]
