"""Raw samples of a race, compressed: there are half a million numbers in a full set, and few are ever looked at.

JSON [workload][solution] {kind: rounds of us}, gzip, base64. The browser unpacks a race when a row of it is opened.
"""

from __future__ import annotations

import base64
import gzip

import msgspec

from kernelderby.page.races import Samples


def packed(samples: list[list[Samples]]) -> str:
    """The same samples give the same text: no time is written into the gzip header."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(samples), mtime=0)).decode()


def unpacked(text: str) -> list[list[Samples]]:
    found: list[list[Samples]] = msgspec.json.decode(gzip.decompress(base64.b64decode(text)))
    return found
