"""Memory that torch's allocator has free, filled with a pattern: who writes into it uses what is no longer his."""

from __future__ import annotations

import torch

_BYTE = 0xA5
_MOST_BYTES = 8 << 30
_SMALL = 1 << 20  # torch's allocator takes requests up to that from segments of their own


class Canaries:
    """Holds the free blocks of a GPU's common pool, each for its own stream; none on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._held: list[torch.Tensor] = []
        if device.type != "cuda":
            return
        for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
            if segment["device"] != (device.index or 0) or tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
                continue  # a graph's own pool
            for block in segment["blocks"]:
                if block["state"] == "inactive" and self.nbytes + block["size"] <= _MOST_BYTES:
                    for size in _requests(block["size"], segment["segment_type"] == "small"):
                        self._held.append(_filled(size, segment["stream"], device))
        torch.cuda.synchronize(device)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held)

    def changed(self) -> int:
        """Bytes that somebody has written since."""
        return sum(int((tensor != _BYTE).sum()) for tensor in self._held)


def _requests(nbytes: int, is_small: bool) -> list[int]:
    """Sizes of tensors that fill a free block of a small or a large segment."""
    if is_small:
        return [_SMALL] * (nbytes // _SMALL) + [nbytes % _SMALL] * (nbytes % _SMALL > 0)
    return [nbytes] * (nbytes > _SMALL)


def _filled(nbytes: int, stream: int, device: torch.device) -> torch.Tensor:
    """The allocator takes the smallest free block of the stream that is large enough: this one."""
    if stream:
        of_block: torch.cuda.Stream = torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
    else:
        of_block = torch.cuda.default_stream(device)
    with torch.cuda.stream(of_block):
        return torch.full((nbytes,), _BYTE, dtype=torch.uint8, device=device)
