"""What a step's annotation tells of its sequences, beside what a model's configuration does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

# vLLM: execute_context_2(888)_generation_30(30), and with the sums of the lengths of queries (sq) and of keys (sk):
# execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)
_COUNTS = re.compile(r"execute_context_(\d{1,9})\((\d{1,12})\)_generation_(\d{1,9})\((\d{1,12})\)")
_SUMS = re.compile(
    r"execute_\d{1,9}_context_(\d{1,9})\(sq(\d{1,12})sk(\d{1,12})\w*\)"
    r"_generation_(\d{1,9})\(sq(\d{1,12})sk(\d{1,12})\w*\)"
)
# SGLang: step[DECODE bs=32], step[EXTEND bs=4 toks=8192]
_STEP = re.compile(r"step\[(\w+) bs=(\d{1,9})(?: toks=(\d{1,12}))?")
NAMES = (
    *("context_seqs", "context_tokens", "context_cached"),
    *("generation_seqs", "generation_tokens", "generation_cached"),
)


def facts_of(ranges: Sequence[str], context: int | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """name -> number: of the step's prompts and of its decoding sequences how many there are, their tokens, and the
    tokens that their attention reads; absent where nothing tells it. ranges: around the launch. context: tokens of a
    sequence, where the trace does not tell it. known: facts of a model."""
    facts = dict(known)
    for name in ranges:
        found = _of_annotation(name)
        if found is None:
            continue
        seqs, tokens, cached, running, drafts, read = found
        cached = tokens if cached is None else cached
        if read is None and running:
            read = None if context is None else running * context
        if cached is not None and read is not None:
            facts |= dict(zip(NAMES, (seqs, tokens, cached, running, drafts, read), strict=True))
    return facts


@lru_cache(maxsize=4096)
def _of_annotation(name: str) -> tuple[int, int, int | None, int, int, int | None] | None:
    if match := _SUMS.search(name):
        seqs, tokens, cached, running, drafts, read = map(int, match.groups())
        return seqs, tokens, cached, running, drafts, read
    if match := _COUNTS.search(name):
        seqs, tokens, running, drafts = map(int, match.groups())
        return seqs, tokens, None, running, drafts, None if running else 0
    if match := _STEP.search(name):
        count = int(match[2])
        if match[1] == "DECODE":
            return 0, 0, 0, count, count, None
        return (count, int(match[3]), None, 0, 0, 0) if match[3] else None
    return None
