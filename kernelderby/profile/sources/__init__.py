"""Reading profiles of every kind behind one interface (kernelderby.profile.spans.Profile)."""

from __future__ import annotations

from kernelderby.profile.sources.recognise import open_source

__all__ = ["open_source"]
