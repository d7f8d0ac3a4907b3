"""Files as a wheel (PEP 427), with RECORD; the same files give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping

_MOMENT = (2026, 1, 1, 0, 0, 0)


def wheel_bytes(files: Mapping[str, bytes], folder: str, tag: str) -> bytes:
    """files: path in the wheel -> bytes. folder: the .dist-info one. tag: such as py3-none-any."""
    about = f"Wheel-Version: 1.0\nGenerator: kernelderby\nRoot-Is-Purelib: false\nTag: {tag}\n"
    every = {**files, f"{folder}/WHEEL": about.encode()}
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in sorted(every.items())]
    every[f"{folder}/RECORD"] = "\n".join([*lines, f"{folder}/RECORD,,", ""]).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, data in every.items():
            entry = zipfile.ZipInfo(path, _MOMENT)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return stream.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
