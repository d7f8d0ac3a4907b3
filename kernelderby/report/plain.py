"""Text from data (names, messages, descriptions) without what a terminal or a page would act on."""

from __future__ import annotations


def plain(text: str) -> str:
    """One line of printable characters: line breaks and other white space become spaces; escape sequences, controls of
    direction and lone surrogates are left out."""
    if text.isprintable():
        return text
    return "".join(" " if letter.isspace() else letter if letter.isprintable() else "" for letter in text)


_LONGEST = 2000  # letters of a message: what data puts into it must not fill the screen


def one_line(text: str) -> str:
    """A message for people: plain, and without its middle where it is longer than anybody reads."""
    text = plain(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
