"""A definition's own code: its module, loaded once in a process, and errors that are never a solution's fault."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from kernelderby.catalog import Definition
from kernelderby.errors import DerbyError
from kernelderby.measure.wire import memory
from kernelderby.measure.wire.sources import import_file, write_once

_modules: dict[str, ModuleType] = {}


class DefinitionFailed(DerbyError):
    """A definition's reference or generator fails; no solution can be judged by it."""


class Uncountable(Exception):
    """Why the work of a reference cannot be told from its shapes."""


@contextmanager
def blamed_on(definition: Definition, what: str) -> Iterator[None]:
    """DefinitionFailed for whatever is raised inside, sys.exit() too: the definition, `what` ("run raises"), the error.
    Memory that runs out does so by the case's size, and goes through, as MemoryError or torch.OutOfMemoryError; so does
    a signal to this process."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, KeyboardInterrupt, DerbyError, Uncountable):
        raise
    except BaseException as error:
        if memory.ran_out(error):
            raise MemoryError(str(error)) from error
        if isinstance(error, SystemExit) and type(error) is not SystemExit:  # cli/signals.py: Signalled
            raise
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DefinitionFailed(f"{definition.place}: {what} {message}; mend the definition") from error


def given_by(
    definition: Definition, hook: str, found: Any, names: Collection[str], whole: bool = False
) -> dict[str, torch.Tensor]:
    """What a hook of the definition gave: dense tensors by name. DefinitionFailed for anything else, and for other
    names than these; whole: if one of them is missing."""

    def failed(told: str) -> DefinitionFailed:
        return DefinitionFailed(f"{definition.place}: {hook}: {told}; mend the definition")

    if not isinstance(found, Mapping):
        raise failed(f"gave a {type(found).__name__}, no dict of tensors")
    if odd := [name for name in found if name not in names]:
        raise failed(f"gave {odd[0]!r:.40}, not one of {', '.join(names)}")
    if whole and (missing := [name for name in names if name not in found]):
        raise failed(f"gave no {missing[0]}")
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            raise failed(f"{name} is a {type(tensor).__name__}, no tensor")
        if tensor.layout is not torch.strided or tensor.is_complex():
            kind = "complex" if tensor.is_complex() else str(tensor.layout).removeprefix("torch.")
            raise failed(f"{name} is a {kind} tensor, and cannot be compared or kept")
    return dict(found)


def load_definition_module(definition: Definition) -> ModuleType:
    """The module with run() and, in our own sets, generate_inputs(), count_cost() and SMALL_AXES. Whatever its code
    raises goes through."""
    if definition.source_path is not None:
        return import_file(definition.source_path, f"kernelderby_definition_{definition.name}")
    digest = hashlib.sha256(definition.reference.encode()).hexdigest()[:16]
    folder = write_once(f"definition-{definition.name}-{digest}", {"reference.py": definition.reference})
    return import_file(folder / "reference.py", f"kernelderby_definition_{definition.name}")


def module_of(definition: Definition) -> ModuleType:
    """The same, loaded once in this process. DefinitionFailed where it does not load."""
    if str(definition.path) not in _modules:
        with blamed_on(definition, "does not load:"):
            _modules[str(definition.path)] = load_definition_module(definition)
    return _modules[str(definition.path)]
