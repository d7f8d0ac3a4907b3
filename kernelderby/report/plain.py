"""Text from data (names, messages, descriptions) without the characters that a terminal or a page interprets."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """One line of printable characters: line breaks and other white space become spaces; escape sequences, controls of
    direction and lone surrogates are left out."""
    if text.isprintable():
        return text
    return "".join(" " if letter.isspace() else letter if letter.isprintable() else "" for letter in text)


_FORMULA = re.compile(r"\s*[=+@\uff1d\uff0b\uff0d\uff20-]")  # spreadsheets take the wide forms, too
_NUMBER = re.compile(r"\s*[+-]?[\d.]*(e[+-]?\d+)?\s?%?")


def cell(text: str) -> str:
    """A cell for a table that a spreadsheet may open: plain, and never a formula. Signed numbers stay."""
    text = plain(text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


_LONGEST = 2000  # letters of a message, so that data cannot fill the screen


def one_line(text: str) -> str:
    """A message for people: plain, and without its middle if it is very long."""
    text = plain(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
