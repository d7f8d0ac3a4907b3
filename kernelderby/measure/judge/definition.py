"""A definition's own code: the module with its reference, loaded once in a process."""

from __future__ import annotations

import hashlib
from types import ModuleType

from kernelderby.catalog import Definition
from kernelderby.errors import DerbyError
from kernelderby.measure.wire.sources import import_file, write_once

_modules: dict[str, ModuleType] = {}


def load_definition_module(definition: Definition) -> ModuleType:
    """The module with run() and, in our own sets, generate_inputs(), count_cost() and SMALL_AXES."""
    if definition.source_path is not None:
        return import_file(definition.source_path, f"kernelderby_definition_{definition.name}")
    digest = hashlib.sha256(definition.reference.encode()).hexdigest()[:16]
    folder = write_once(f"definition-{definition.name}-{digest}", {"reference.py": definition.reference})
    return import_file(folder / "reference.py", f"kernelderby_definition_{definition.name}")


def definition_module(definition: Definition) -> ModuleType:
    """Its code, loaded once in this process. Whatever that raises goes through."""
    if str(definition.path) not in _modules:
        _modules[str(definition.path)] = load_definition_module(definition)
    return _modules[str(definition.path)]


def module_of(definition: Definition) -> ModuleType:
    """The same. DerbyError in one line where it does not load."""
    try:
        return definition_module(definition)
    except DerbyError:
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DerbyError(f"{definition.place}: does not load: {said}; mend the definition") from error
