"""stdout and stderr of any encoding, or closed: a missing character becomes its nearest ASCII, never a traceback."""

from __future__ import annotations

import codecs
import os
import sys

_NEAREST = {
    "─": "-", "…": "...", "†": "+", "·": "-", "–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "×": "x",
    "±": "+-",
}  # fmt: skip


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_NEAREST.get(letter, "?") for letter in letters), error.end


def make_streams_safe() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    codecs.register_error("kernelderby.nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="kernelderby.nearest")
