"""Whose fault it is: what a definition's own code raises is nothing that a solution did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernelderby.catalog import Definition
from kernelderby.errors import DerbyError


class DefinitionFailed(DerbyError):
    """A definition's reference or generator fails; no solution can be judged by it."""


@contextmanager
def blamed_on(definition: Definition, function: str) -> Iterator[None]:
    """What is raised inside, in one line that names the definition and its function. Memory that runs out does so by
    the case's size, and goes through."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, DerbyError):
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise DefinitionFailed(
            f"{definition.place}: {function} raises {type(error).__name__}: {message}; mend the definition"
        ) from error


class Uncountable(Exception):
    """Why the work of a reference cannot be told from its shapes."""
