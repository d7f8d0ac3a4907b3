"""Which regular expressions can match a text at all, told from its words.

A profile may have thousands of long names, and hundreds of rules are searched in each. Nearly every alternative of a
rule needs some text, such as "softmax", and only those whose text stands in the name have to be searched. Names share
their words, so each word is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

_PARSE = import_module("re._parser").parse  # of Python itself; it has no public name
_SIGN = re.compile(r"\\.|\[\^?\]?|[()|\]]", re.DOTALL)
_WORD = re.compile(r"[a-z0-9_]+")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_START = 2  # letters under which a needle is found; a shorter text is no needle
_WORDS = 1 << 16  # that are kept


def needles(pattern: str, flags: int = 0) -> list[frozenset[str]]:
    """Sets of texts in lower case, the best first. Every match contains a text of each set, whatever its case. They
    consist of letters, digits and _, so each lies inside of one word."""
    found = {each for each in _needles(_PARSE(pattern, flags)) if _shortest(each) >= _START}
    return sorted(found, key=lambda each: (-_shortest(each), len(each), sorted(each)))


def _shortest(texts: frozenset[str]) -> int:
    return min(map(len, texts), default=0)


def _needles(parsed: Any) -> list[frozenset[str]]:
    """A set for each part that every match has."""
    found, run = list[frozenset[str]](), ""
    for kind, value in parsed:
        if letter := _letter(str(kind), value):
            run += letter
            continue
        found += [frozenset({run}), *_inside(str(kind), value)]
        run = ""
    return [*found, frozenset({run})]


def _letter(kind: str, value: Any) -> str:
    """The letter that a part matches, in lower case; empty for any other part. [sS] is one letter."""
    literals = {value} if kind == "LITERAL" else set()
    if kind == "IN" and all(str(each) == "LITERAL" for each, _ in value):
        literals = {code for _, code in value}
    letters = {chr(code).lower() for code in literals}
    return letters.pop() if len(letters) == 1 and letters <= _LETTERS else ""


def _inside(kind: str, value: Any) -> list[frozenset[str]]:
    if kind == "SUBPATTERN":
        return _needles(value[3])
    if kind in _REPEATS and value[0] > 0:
        return _needles(value[2])
    if kind == "BRANCH":
        best = [max(_needles(each), key=_shortest) for each in value[1]]
        return [frozenset[str]().union(*best)] if all(map(_shortest, best)) else []
    return []


@lru_cache(8)  # one name is held against several tables
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def alternatives(pattern: str, flags: int = 0) -> list[str]:
    """ "a|(?:b|c)" -> ["a", "(?:b|c)"]: a text matches the pattern if it matches one of these. A verbose pattern stays
    whole, since its comments may hold any sign."""
    if flags & re.VERBOSE:
        return [pattern]
    found, depth, start, in_set = list[str](), 0, 0, False
    for match in _SIGN.finditer(pattern):
        sign = match[0]
        if in_set:
            in_set = sign[0] == "\\" or sign[-1] != "]"
        elif sign[0] == "[":
            in_set = True
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif sign == "|" and depth == 0:
            found.append(pattern[start : match.start()])
            start = match.end()
    return [*found, pattern[start:]]


class Needles:
    """The needles of several patterns. Sets that are found are an int: bit 3 stands for the best set of the
    fourth pattern, the bits behind those of the patterns for further sets."""

    def __init__(self, patterns: Sequence[str], flags: Sequence[int]) -> None:
        self._all = (1 << len(patterns)) - 1
        self._always = 0
        self._further = [0] * len(patterns)
        by_needle: dict[str, int] = {}
        sets = len(patterns)
        for place, (pattern, own) in enumerate(zip(patterns, flags, strict=True)):
            wanted = needles(pattern, own)
            if not wanted:
                self._always |= 1 << place
            for number, texts in enumerate(wanted):
                bit = 1 << (sets if number else place)
                if number:
                    self._further[place] |= bit
                    sets += 1
                for needle in texts:
                    by_needle[needle] = by_needle.get(needle, 0) | bit
        self._by_start: dict[str, list[tuple[str, int]]] = {}
        for needle, which in by_needle.items():
            self._by_start.setdefault(needle[:_START], []).append((needle, which))
        self._of_word = lru_cache(_WORDS)(self._sets_of)

    def places(self, text: str) -> Iterator[int]:
        """The places of the patterns that may match the text, in order."""
        if not text.isascii():  # other letters have more forms that are alike without case
            yield from range(len(self._further))
            return
        found = self._always
        for word in _words(text):
            found |= self._of_word(word)
        left = found & self._all
        while left:
            lowest = left & -left
            place = lowest.bit_length() - 1
            if self._further[place] & found == self._further[place]:
                yield place
            left ^= lowest

    def _sets_of(self, word: str) -> int:
        """The sets of which a needle stands in the word."""
        found = 0
        for place in range(len(word) - _START + 1):
            for needle, sets in self._by_start.get(word[place : place + _START], ()):
                if word.startswith(needle, place):
                    found |= sets
        return found
