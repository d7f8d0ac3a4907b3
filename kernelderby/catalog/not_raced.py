"""Libraries that have a kernel for an operator and were not raced: why, and what a race would need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from kernelderby.catalog.templates import left_out, templates
from kernelderby.errors import DerbyError
from kernelderby.store.fields import read_toml, suggestion


class NotRaced(Struct, frozen=True, forbid_unknown_fields=True):
    """name: library and version, or which of its kernels. operators: none where it is for no single one. needs: empty
    where the kernel does not fit the operator."""

    name: str
    operators: tuple[str, ...]
    why: str
    needs: str


class _AllNotRaced(Struct, frozen=True, forbid_unknown_fields=True):
    library: tuple[NotRaced, ...] = ()


def not_raced(root: Path, definitions: Iterable[str], left_out_of: Callable[[str], None]) -> tuple[NotRaced, ...]:
    """Those of solutions/not_raced.toml, then what templates leave out, a reason each. left_out_of: told what is broken
    and passed over: a file, or an entry whose operator is unknown."""
    path, known = root / "solutions" / "not_raced.toml", set(definitions)
    found: list[NotRaced] = []
    try:
        for folder in templates(root):
            found += _of_template(folder)
        listed = read_toml(path, _AllNotRaced).library if path.is_file() else ()
    except DerbyError as error:
        left_out_of(str(error))
        return tuple(found)
    for each in reversed(listed):
        unknown = [name for name in each.operators if name not in known]
        if unknown:
            left_out_of(f"{path}: {each.name}: {unknown[0]!r:.80} is no definition; {suggestion(unknown[0], known)}")
        else:
            found.insert(0, each)
    return tuple(found)


def _of_template(folder: Path) -> Iterator[NotRaced]:
    by_reason: dict[str, list[str]] = {}
    for definition, reason in left_out(folder).items():
        by_reason.setdefault(reason, []).append(definition)
    for reason, names in by_reason.items():
        yield NotRaced(folder.parent.name, tuple(names), f"{reason[:1].upper()}{reason[1:]}.", "")
