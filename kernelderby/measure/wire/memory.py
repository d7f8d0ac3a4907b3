"""Whether an error says that memory ran out: Python's, torch's on a CPU or a GPU, a library's, Triton's."""

from __future__ import annotations

import errno
import re

_SIGNS = re.compile(r"out of memory|not enough memory|can(?:no|')t allocate memory|_STATUS_ALLOC_FAILED", re.IGNORECASE)


def ran_out(error: BaseException) -> bool:
    """torch.OutOfMemoryError and Triton's errors are RuntimeErrors, as are those of CUDA's libraries."""
    if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or _SIGNS.search(str(error)) is not None
    )
