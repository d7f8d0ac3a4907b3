"""Reading fields out of parsed JSON and TOML, with errors of one line that name the file, the field and the mend."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError

_MISSING = object()
_KIND = {str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "an object",
         list: "a list"}


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DerbyError(f"{path}: cannot be read ({error}); mend or remove the file") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DerbyError(f"{path}:{error.lineno}: not JSON ({error.msg}); mend that line") from None
    return checked(path, "the file", found, dict)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DerbyError(f"{path}: not TOML ({error}); mend that line") from None


def checked(where: Path | str, field: str, value: Any, kind: type) -> Any:
    """The value, when it is of the kind; an integer counts as a number, a boolean never does."""
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise DerbyError(f"{where}: {field}: must be {_KIND[kind]}, not {value!r:.60}; mend the field")
    return value


def take(where: Path | str, table: dict[str, Any], field: str, kind: type, default: Any = _MISSING,
         prefix: str = "") -> Any:
    """table[field], of the kind. Without a default the field must be there; null counts as absent."""
    value = table.get(field)
    if value is None:
        if default is _MISSING:
            raise DerbyError(f"{where}: {prefix}{field}: is missing; add it ({_KIND[kind]})")
        return default
    return checked(where, prefix + field, value, kind)


def take_strings(where: Path | str, table: dict[str, Any], field: str, prefix: str = "") -> tuple[str, ...]:
    """A list of strings, empty when absent."""
    return tuple(checked(where, f"{prefix}{field}", item, str) for item in take(where, table, field, list, [], prefix))


def only_known(where: Path | str, table: dict[str, Any], known: Iterable[str], prefix: str = "") -> None:
    """DerbyError for a field that nobody reads: most often a misspelt one."""
    for field in table:
        if field not in known:
            raise DerbyError(f"{where}: {prefix}{field}: is no field; {suggestion(field, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The near names of an unknown one, or all of them when none is near."""
    known = sorted(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(known)}" if known else "there is none yet"


def agree(path: Path, field: str, value: str, in_path: str) -> None:
    """The path is the key: what the file says must stand in it."""
    if value != in_path:
        raise DerbyError(f"{path}: {field}: is {value!r} but the path says {in_path!r}; rename one of them")
