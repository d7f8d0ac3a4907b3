"""The secret of a session: the judge's inputs and fresh shapes are drawn from it, so that nobody else can know them.

Printed when the session has ended. Given back with `--secret`, it draws the same ones again, bit for bit on the same
kind of device.
"""

from __future__ import annotations

import hashlib
import re
import secrets


def drawn() -> str:
    """A new one: 32 hex digits."""
    return secrets.token_hex(16)


def is_drawn(secret: str) -> bool:
    """Whether drawn() could have given it."""
    return re.fullmatch("[0-9a-f]{32}", secret) is not None


def of_workload(session: str, uuid: str, apart: str = "") -> str:
    """The secret of one workload, which stands in its rows while others are still to come: nothing leads back.

    apart: the solution that is measured by itself. The rows of those before it are there by then, for it to read."""
    place = f"{uuid}/{apart}" if apart else uuid
    return hashlib.sha256(f"{session}/{place}".encode()).hexdigest()[:32]
