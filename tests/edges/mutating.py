"""Seeded mutations of every kind of file, and one way to run a verb on what they made."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelderby import cli

SEED = 20261122
LIMIT_SECONDS = 10  # of the processor, for a verb on a small set: it takes some 10 ms; pytest ends what waits for ever


@dataclass(frozen=True)
class Outcome:
    """code: exit code of the command. out, err: its output."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.err + "".join(line for line in self.out.splitlines(True) if line.startswith("broken"))


def run(*arguments: object) -> Outcome:
    """A verb in this process. Whatever escapes it is a traceback for people, and raised here. AssertionError for more
    than one line of error, for what takes far too long, and for control characters."""
    out, err = io.StringIO(), io.StringIO()
    start, code = time.process_time(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _argv(arguments):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
    assert code in (0, 1, 2), code
    found = Outcome(code, out.getvalue(), err.getvalue())
    seconds = time.process_time() - start
    assert seconds < LIMIT_SECONDS, f"{arguments} took {seconds:.1f} s"
    assert "\x1b" not in found.out + found.err and "\x07" not in found.out + found.err, "control characters"
    lines = [line for line in found.err.splitlines() if not line.startswith(("derby: ", "broken  "))]
    assert code == 2 or not any("Traceback" in line for line in lines), found.err
    if code == 1 and not found.out:
        assert found.err.count("\n") >= 1 and found.err.splitlines()[-1].startswith("derby: "), found.err
    if "--json" in arguments and code == 0:
        json.loads(found.out, parse_constant=_no_constant)
    return found


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} in the JSON")


@contextlib.contextmanager
def _argv(arguments: tuple[object, ...]) -> Iterator[None]:
    import sys

    before, sys.argv = sys.argv, ["derby", *map(str, arguments)]
    try:
        yield
    finally:
        sys.argv = before


# ----------------------------------------------------------------------------------------------------------- mutations


@dataclass(frozen=True)
class Mutation:
    """apply writes the broken file. must_show: the change cannot be a fine file, so that it must be told, or change
    nothing that is shown."""

    name: str
    apply: Callable[[Path], None]
    must_show: bool


WRONG = [
    "text",
    "",
    -1,
    3.5,
    1e308,
    True,
    [],
    {},
    [1],
    ["a", 2],
    {"a": 1},
    "\x1b]0;owned\x07",
    10**30,
    "NaN",
    "2000-01-01",
]
INSERTED = [b"\xff", b"\x00", b"\x1b", b"{", b"]", b'"', b"\xe2\x80\xa8", b"NaN", b"\n"]
FREE = {
    "description",
    "reason",
    "title",
    "log",
    "libs",
    "environment",
    "tags",
    "reference",
    "content",
    "session",
    "graph_missing",
    "source",
    "facts",
}


def places(data: Any, at: tuple = ()) -> Iterator[tuple]:
    """Every path into nested data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(data: Any, place: tuple, value: Any, *, delete: bool = False, rename: bool = False) -> Any:
    data = copy.deepcopy(data)
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    if rename and isinstance(holder, dict):
        holder[f"{place[-1]}s"] = holder.pop(place[-1])
    elif delete or rename:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return data


def kind_of(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def structured(data: Any, write: Callable[[Path, Any], None], rng: random.Random, count: int) -> Iterator[Mutation]:
    """Values of other kinds, missing and misspelt fields."""
    every = list(places(data))
    for _ in range(count):
        place = rng.choice(every)
        before = data
        for key in place:
            before = before[key]
        how = rng.random()
        if how < 0.12:
            new = changed(data, place, None, delete=True)
            yield Mutation(f"without {place}", lambda path, new=new: write(path, new), False)
        elif how < 0.2:
            new = changed(data, place, None, rename=True)
            yield Mutation(f"{place} renamed", lambda path, new=new: write(path, new), False)
        elif how < 0.25:
            new = changed(data, place, None)
            yield Mutation(f"{place} = null", lambda path, new=new: write(path, new), False)
        else:
            value = rng.choice(WRONG)
            new = changed(data, place, value)
            other = kind_of(value) != kind_of(before) and not FREE & {str(key) for key in place}
            yield Mutation(f"{place} = {value!r}", lambda path, new=new: write(path, new), other)


def raw(text: bytes, rng: random.Random, count: int) -> Iterator[Mutation]:
    """Bytes cut, put in, doubled; nesting beyond measure."""
    ways = [
        lambda: text[: rng.randrange(len(text))],
        lambda: text[: (at := rng.randrange(len(text)))] + rng.choice(INSERTED) + text[at:],
        lambda: b"[" * 100_000 + text,
        lambda: text[:1] + b'"x":' + b'{"a":' * 50_000 + text[1:],
        lambda: b"",
        lambda: b"null\n",
        lambda: b"\xef\xbb\xbf" + text,
        lambda: text.decode().encode("utf-16"),
        lambda: text.replace(b"1", b"9" * 5000, 1),
        lambda: text.replace(b"2", b"1e999", 1),
        lambda: text.replace(b'"', b"'", 2),
    ]
    for number in range(count):
        new = ways[number % len(ways)]()
        yield Mutation(f"bytes {number} {new[:30]!r}", lambda path, new=new: path.write_bytes(new), False)


def of_file_system() -> Iterator[Mutation]:
    """Mutations that replace the file: a folder, a pipe, a link and the like."""

    def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
        def apply(path: Path) -> None:
            path.unlink()
            make(path)

        return apply

    yield Mutation("a pipe", replaced(os.mkfifo), False)
    yield Mutation("a folder", replaced(Path.mkdir), False)
    yield Mutation("a link to itself", replaced(lambda path: path.symlink_to(path.name)), False)
    yield Mutation("a link to a device", replaced(lambda path: path.symlink_to("/dev/zero")), False)
    yield Mutation("a link to nothing", replaced(lambda path: path.symlink_to("/nowhere/at/all")), False)
    yield Mutation("unreadable", lambda path: path.chmod(0), False)


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1))


def write_line(number: int) -> Callable[[Path, Any], None]:
    def write(path: Path, data: Any) -> None:
        lines = path.read_text().splitlines()
        lines[number] = json.dumps(data)
        path.write_text("\n".join(lines) + "\n")

    return write


def write_toml(path: Path, data: Any) -> None:
    path.write_text(toml(data))


def toml(data: dict[str, Any], prefix: str = "") -> str:
    """Plain tables, arrays of tables and values: enough for the files here."""
    lines, tables = [], []
    for key, value in data.items():
        name = json.dumps(key)
        if isinstance(value, dict) and value:
            tables.append(f"[{prefix}{name}]\n{toml(value, f'{prefix}{name}.')}")
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            tables += [f"[[{prefix}{name}]]\n{toml(each, f'{prefix}{name}.')}" for each in value]
        elif value is not None:
            lines.append(f"{name} = {_toml_value(value)}")
    return "\n".join([*lines, *tables, ""])


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float) and value == 1e308:
        return "inf"
    return json.dumps(value).replace("\x7f", "\\u007f")


def mutations_of(path: Path, rng: random.Random, values: int, texts: int) -> list[Mutation]:
    """A fixed number of mutations of a file, by its kind."""
    found = [*raw(path.read_bytes(), rng, texts), *of_file_system()]
    if path.suffix == ".json":
        found += structured(json.loads(path.read_text()), write_json, rng, values)
    elif path.suffix == ".jsonl":
        number = rng.randrange(len(path.read_text().splitlines()))
        found += structured(json.loads(path.read_text().splitlines()[number]), write_line(number), rng, values)
    elif path.suffix == ".toml":
        data = tomllib.loads(path.read_text())
        assert tomllib.loads(toml(data)) == data
        found += structured(data, write_toml, rng, values)
    return found


@contextlib.contextmanager
def mutated(path: Path, mutation: Mutation) -> Iterator[None]:
    """The file as it was comes back."""
    before = path.read_bytes()
    try:
        mutation.apply(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            if not path.is_symlink():
                path.chmod(0o644)
            path.unlink()
        path.write_bytes(before)
