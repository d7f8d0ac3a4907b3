"""Blocks of a Markdown file that a command updates: from a line `<!-- derby COMMAND -->` to a line `<!-- /derby
-->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.report.page_guard import expect_no_shorter
from kernelderby.store.fields import read_text
from kernelderby.store.files import write_whole

END = "<!-- /derby -->"
_OPENING = re.compile(r"^<!-- derby ([^\n]*?)[ \t]*-->[ \t]*\r?$", re.MULTILINE)
_CLOSING = re.compile(r"^<!-- /derby -->[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PageBlock:
    """words: the opening marker's text after `derby `. The places are offsets in the page's text: start and end of the
    opening line, and start of the closing line."""

    words: str
    opening: tuple[int, int]
    end: int


def read_page(path: Path) -> str:
    """The page, byte for byte."""
    if not path.is_file():
        raise DerbyError(f"{path}: cannot be read; give a Markdown file with a line <!-- derby COMMAND -->")
    return read_text(path)


def blocks(path: Path, page: str, name: str = "") -> list[PageBlock]:
    """The blocks of the page whose words begin with the name. DerbyError for a block without its own end."""
    openings = list(_OPENING.finditer(page))
    found = []
    for opening, following in zip_longest(openings, openings[1:]):
        if name and not f"{opening.group(1)} ".startswith(f"{name} "):
            continue
        closing = _CLOSING.search(page, opening.end(), following.start() if following else len(page))
        if closing is None:
            raise DerbyError(f"{path}: {opening.group().strip()}: has no {END} of its own; add it after the block")
        found.append(PageBlock(opening.group(1), opening.span(), closing.start()))
    return found


def replace_block(
    path: Path,
    name: str,
    text: str,
    chosen: Callable[[list[PageBlock]], tuple[PageBlock, str]],
    left_out: Sequence[str] = (),
) -> bool:
    """Puts text into one block and keeps the rest of the page byte by byte. True if it changed.

    name: the verb, for errors. chosen: gives, from the blocks whose words begin with the verb, the block to fill and
    its marker's new words. left_out: parts that the text lacks, for page_guard.py. DerbyError if the page or a block is
    missing.
    """
    before = read_page(path)
    candidates = blocks(path, before, name)
    if not candidates:
        raise DerbyError(f"{path}: <!-- derby {name} -->: is missing; write it on a line of its own, {END} below it")
    block, words = chosen(candidates)
    start, end = block.opening
    expect_no_shorter(path, before[end : block.end], text, left_out)
    opening = before[start:end] if words == block.words else f"<!-- derby {words} -->"
    line_break = "\r\n" if "\r\n" in before else "\n"
    # A name in the text that looks like a marker would end the block early, and the next run would repeat the rest.
    body = text.strip().replace("<!--", "&lt;!--").replace("\n", line_break)
    after = f"{before[:start]}{opening.rstrip()}{line_break}{body}{line_break}{before[block.end :]}"
    if after != before:
        write_whole(path, after)
    return after != before
