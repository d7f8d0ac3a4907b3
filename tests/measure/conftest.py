"""A copy of the set of misbehaviours, to run and to spoil."""

from __future__ import annotations

from pathlib import Path

import pytest
from measuring import copied_set


@pytest.fixture
def misbehaviours(tmp_path: Path) -> Path:
    return copied_set(tmp_path)
