"""Writes the page: model, samples, style and scripts in one file that opens from disk without network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from importlib.resources import files
from typing import Any

import msgspec

from kernelderby.page.build import BuiltPage
from kernelderby.store.fields import json_bytes

SCRIPTS = (
    "data.js", "numbers.js", "dom.js", "table.js", "charts.js", "sources.js", "overview.js", "operators.js",
    "roofline.js", "race.js", "pipeline.js", "timeline.js", "layers.js", "kernels.js", "studies.js", "trust.js",
    "main.js",
)  # fmt: skip
# The page fetches nothing and runs only our scripts, whatever names the data contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{hash}'"


def page_html(page: BuiltPage) -> str:
    script = "(async () => {\n'use strict';\n" + "\n".join(map(asset, SCRIPTS)) + "\n})();\n"
    policy = _POLICY.format(hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    data = {"model": page.model, "sources": page.sources} | {
        f"samples-{place}": samples for place, samples in enumerate(page.samples)
    }
    blocks = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{packed(each)}</script>' for name, each in data.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>KernelDerby</title>
<style>
{asset("page.css")}{asset("timeline.css")}</style>
</head>
<body>
{asset("body.html")}
{blocks}
<script>{script}</script>
</body>
</html>
"""


def holds(page: str) -> dict[str, int]:
    """Counts of the contents of a page of ours; empty for any other page."""
    found = re.search(r'<script type="application/octet-stream" id="model">([A-Za-z0-9+/=]*)</script>', page)
    try:
        model = unpacked(found[1]) if found else {}
        return {
            "rows": model["rows"],
            "operators": len(model["operators"]),
            "solutions": len(model["solutions"]),
            "recordings": sum(len(model[part]) for part in ("pipelines", "layers", "kernels", "timelines", "studies")),
        }
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        return {}


def asset(name: str) -> str:
    return (files("kernelderby.page") / "assets" / name).read_text(encoding="utf-8")


def packed(data: Any) -> str:
    """JSON, gzip, base64. No name can end the element that contains it. A full set with half a million samples stays
    under 3 MB. The same data give the same text, since the gzip header has no time."""
    return base64.b64encode(gzip.compress(json_bytes(data), mtime=0)).decode()


def unpacked(text: str) -> Any:
    return msgspec.json.decode(gzip.decompress(base64.b64decode(text)))
