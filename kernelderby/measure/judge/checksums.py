"""Checksums of inputs and outputs, by numbers that only this process knows.

A solution that writes into its inputs could make up for what it changes by another change, if it knew how the sum is
made: one word that nobody reads is enough. So each position has a secret factor.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from typing import Any

import torch

CHUNK = 1 << 21  # words summed at once: they, their factors and the products stay in a GPU's L2

_SECRET = secrets.token_bytes(16)
_odd: dict[torch.device, torch.Tensor] = {}
_making_odd = threading.Lock()


def checksum(inputs: Mapping[str, Any]) -> dict[str, int]:
    """Sum over all words of word x odd number of its position, modulo 2^64: any single change alters it. The numbers
    are this process's secret: who does not know them cannot make up for a change by another one. Words have 32 bits:
    of larger ones the highest bits would meet the numbers' lowest alone, and two changed signs make up for each other.
    """
    sums = {name: _chunk_sums(value) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    parts = [part for chunks in sums.values() for part in chunks]
    if not parts:
        return dict.fromkeys(sums, 0)
    found = iter(torch.stack(parts).tolist())  # one wait for the GPU
    return {
        name: sum(next(found) * _of_chunk(number) for number in range(len(chunks))) % (1 << 64)
        for name, chunks in sums.items()
    }


def _chunk_sums(tensor: torch.Tensor) -> list[torch.Tensor]:
    words = bytes_of(tensor)
    if tensor.nbytes % 4 == 0:  # by the size alone: the same contents lie elsewhere, too
        words = (words if words.data_ptr() % 4 == 0 else words.clone()).view(torch.int32)
    return [(chunk * _odd_numbers(len(chunk), words.device)).sum() for chunk in torch.split(words, CHUNK) if len(chunk)]


def _odd_numbers(count: int, device: torch.device) -> torch.Tensor:
    """The secret numbers of the first words of a chunk: each chunk has the same ones, times _of_chunk()."""
    with _making_odd:
        held = _odd.get(device)
        if held is None or len(held) < count:
            known = held if held is not None else torch.empty(0, dtype=torch.int64, device=device)
            generator = torch.Generator(device=device).manual_seed(_drawn(f"{device}/{len(known)}"))
            more = torch.empty(max(count, 2 * len(known), 1 << 12) - len(known), dtype=torch.int64, device=device)
            _odd[device] = held = torch.cat([known, more.random_(generator=generator) | 1])
    return held[:count]


def _of_chunk(number: int) -> int:
    return _drawn(f"chunk/{number}") | 1


def _drawn(what: str) -> int:
    """63 bits."""
    return int.from_bytes(hashlib.sha256(_SECRET + what.encode()).digest()[:8], "big") >> 1


def changed_inputs(before: Mapping[str, int], inputs: Mapping[str, Any]) -> list[str]:
    return [name for name, value in checksum(inputs).items() if before[name] != value]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
