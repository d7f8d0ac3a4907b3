"""Data inside the page: JSON, gzip, base64. Nothing in a name can end the element that holds it, and a full set with
half a million samples stays under 3 MB. The browser unpacks the model at once, a race's samples when one of its rows is
opened.
"""

from __future__ import annotations

import base64
import gzip
from typing import Any

import msgspec


def packed(data: Any) -> str:
    """The same data give the same text: no time is written into the gzip header."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(data), mtime=0)).decode()


def unpacked(text: str) -> Any:
    return msgspec.json.decode(gzip.decompress(base64.b64decode(text)))
