"""Blocks of a Markdown file that a command keeps: from `<!-- derby NAME ... -->` to `<!-- /derby -->`."""

from __future__ import annotations

import re
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.fields import read_text
from kernelderby.files import write_whole

_END = "<!-- /derby -->"


def replace_block(path: Path, name: str, text: str) -> bool:
    """Puts text between the markers of that name; the rest of the file stays byte by byte. True when it changed.

    name may be any leading part of what follows `derby ` in the opening marker, at a word's end: "roofline" finds
    `<!-- derby roofline --gpu h200 -->`. DerbyError when the file or a marker is missing, or the name fits two blocks.
    """
    if not path.is_file():
        raise DerbyError(f"{path}: cannot be read; give a Markdown file that holds <!-- derby {name} -->")
    before = read_text(path)
    openings = list(re.finditer(rf"<!-- derby {re.escape(name)}(?=[ \n])[^\n]*?-->", before))
    if len(openings) != 1:
        problem = "is missing" if not openings else f"stands {len(openings)} times"
        raise DerbyError(f"{path}: <!-- derby {name} -->: {problem}; write it once, and {_END} after it")
    start = openings[0].end()
    end = before.find(_END, start)
    if end < 0 or "<!-- derby " in before[start:end]:
        raise DerbyError(f"{path}: <!-- derby {name} -->: has no {_END} of its own; add it after the block")
    # A name in the text that looks like a marker would end the block early, and the next run add what is left of it.
    after = f"{before[:start]}\n{text.strip().replace('<!--', '&lt;!--')}\n{before[end:]}"
    if after != before:
        write_whole(path, after)
    return after != before
