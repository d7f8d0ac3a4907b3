"""The one file: model, samples, style and scripts in a page that opens from disk and asks no network."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import msgspec

from kernelderby.page.build import BuiltPage
from kernelderby.page.samples import packed

SCRIPTS = (
    "data.js",
    "numbers.js",
    "dom.js",
    "table.js",
    "charts.js",
    "overview.js",
    "operators.js",
    "roofline.js",
    "race.js",
    "pipeline.js",
    "layers.js",
    "kernels.js",
    "trust.js",
    "main.js",
)
# Nothing is fetched, and no script runs but ours, whatever a name in the data holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{hash}'"


def page_html(page: BuiltPage) -> str:
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"
    policy = _POLICY.format(hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    blocks = "\n".join(
        f'<script type="application/octet-stream" id="samples-{place}">{packed(samples)}</script>'
        for place, samples in enumerate(page.samples)
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>KernelDerby</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
{_asset("body.html")}
<script type="application/json" id="model">{_json(page)}</script>
{blocks}
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (files("kernelderby.page") / "assets" / name).read_text(encoding="utf-8")


def _json(page: BuiltPage) -> str:
    """Compact, and without a `<`: nothing in a name can end the element."""
    return msgspec.json.encode(page.model).decode().replace("<", "\\u003c")
