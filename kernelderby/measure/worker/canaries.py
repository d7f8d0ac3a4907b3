"""Memory that torch's allocator has free, filled with a pattern: who writes into it uses what is no longer his."""

from __future__ import annotations

import torch

_BYTE = 0xA5
_MOST_BYTES = 8 << 30


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
                    self._held.append(_filled(block["size"], segment["stream"], device))
        torch.cuda.synchronize(device)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held)

    def changed(self) -> int:
        """Bytes that somebody has written since."""
        return sum(int((tensor != _BYTE).sum()) for tensor in self._held)


def _filled(nbytes: int, stream: int, device: torch.device) -> torch.Tensor:
    """The allocator takes the smallest free block of the stream that is large enough: this one."""
    of_block = torch.cuda.ExternalStream(stream, device) if stream else torch.cuda.default_stream(device)
    with torch.cuda.stream(of_block):
        return torch.full((nbytes,), _BYTE, dtype=torch.uint8, device=device)
