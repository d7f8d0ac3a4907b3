"""The one way in: TOML, JSON, JSONL and CSV become typed records here, or one line that names file, field and mend.

What a file may hold is said by a msgspec.Struct beside the code that reads it, with the types of this module where a
number or a name has bounds. `read_toml(path, Type)`, `read_json(path, Type)`, `read_jsonl(path, Type)` and
`read_csv(path, Type)` give records; `convert(where, data, Type)` types data that is parsed already. Fields that a type
does not know are ignored (a newer version's); `unknown_fields` names them where people write by hand. A check that
spans fields is a Struct's __post_init__, raising ValueError("field: what is wrong; mend").
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from kernelderby.errors import DerbyError
from kernelderby.store.explain import DESCRIBED, explained
from kernelderby.store.explain import suggestion as suggestion
from kernelderby.store.explain import unknown_fields as unknown_fields
from kernelderby.store.files import LARGEST_TEXT, read_bytes, relative_problem

T = TypeVar("T")

_LARGEST = 1.7976931348623157e308  # of the finite doubles
# Control characters, what moves, hides or varies letters, blanks that are no plain ones, and letters that are blank: of
# two names that look alike one would rank beside the other.
_UNSEEN = (
    r"\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_NO_BREAK = re.compile(rb"[^\n]")
EXPLAINED = 20  # broken lines of a file
_MOST_PARTS = 50  # of a dotted key in TOML
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_PARTS}}}""")
LONGEST_LINE = 64 << 20  # bytes; a row with all its samples has some thousands


def must_be(words: str, **bounds: Any) -> Meta:
    """For Annotated: bounds of msgspec.Meta, and in words what they demand."""
    return Meta(extra={DESCRIBED: words}, **bounds)


Size = Annotated[int, must_be("an integer of 0 or more", ge=0, le=2**53)]
Count = Annotated[int, must_be("an integer of 0 or more", ge=0, le=2**63 - 1)]
Positive = Annotated[float, must_be("a finite number above 0", gt=0, le=_LARGEST)]
NotNegative = Annotated[float, must_be("a finite number of 0 or more", ge=0, le=_LARGEST)]
RelativeError = Annotated[
    float, must_be("a number of 0 or more, below 1: at 1 an output of zeros would pass", ge=0, lt=1)
]
Most = Annotated[float, must_be("a number from 0.5 to 1: of most elements", ge=0.5, le=1)]
Importance = Annotated[float, must_be("a number above 0, 1e9 at most", gt=0, le=1e9)]
Number = Annotated[float, must_be("a finite number", ge=-_LARGEST, le=_LARGEST)]
Name = Annotated[
    str,
    must_be(
        "a name of 255 letters at most, without control characters, unseen ones and outer blanks",
        pattern=rf"\A(?!\s)[^{_UNSEEN}]+(?<!\s)\Z",
        max_length=255,
    ),
]
Identifier = Annotated[str, must_be("a name of letters, digits and _", pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
ModuleName = Annotated[
    str,
    must_be(
        "the name of a Python module, such as deep_gemm",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z",
    ),
]
ProgramName = Annotated[str, must_be("the name of a program, such as nvcc", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")]
Capability = Annotated[str, must_be('a compute capability such as "9.0"', pattern=r"^[0-9]{1,3}\.[0-9]\Z")]
Function = Annotated[str, must_be("<file>::<function>", pattern=r"^[^:\x00-\x1f]+::[A-Za-z_][A-Za-z0-9_.]*\Z")]


def read_text(path: Path) -> str:
    try:
        return read_bytes(path, LARGEST_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DerbyError(f"{path}: cannot be read (not UTF-8 at byte {error.start}); mend the file") from None


def read_json(path: Path, kind: type[T] = dict) -> T:  # type: ignore[assignment]
    data = read_bytes(path, LARGEST_TEXT)
    found = decode_json(path, data, kind)
    expect_keys_once(path, data)
    return found


def decode_json(where: Path | str, data: bytes, kind: type[T] = dict, *, brief: bool = False) -> T:  # type: ignore[assignment]
    """brief: the error's text does not matter; finding what is wrong takes a hundred times what reading takes."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if brief:
            raise DerbyError(f"{where}: {error}; mend it") from None
        raise explained(where, error, _loosely(where, data), kind) from None
    except (ValueError, RecursionError) as error:
        loose = _loosely(where, data)  # most often it says better where
        if "surrogate" in str(error):  # half a pair, which some write: there is no such text
            return convert(where, loose, kind)
        raise DerbyError(f"{where}: not JSON ({_short(error)}); mend it") from None


def expect_keys_once(where: Path | str, data: bytes) -> None:
    """DerbyError where an object of fine JSON names a field twice: every reader takes the last in silence."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise DerbyError(f"{where}: {name:.60}: stands twice in one object; remove one of them")
        return found

    json.loads(data, object_pairs_hook=once, parse_int=str, parse_float=str)


def read_toml(path: Path, kind: type[T] = dict) -> T:  # type: ignore[assignment]
    text = read_text(path)
    if _LONG_KEY.search(text):  # tomllib takes memory by the square of a key's parts
        raise DerbyError(f"{path}: not TOML (a key of more than {_MOST_PARTS} parts); mend that line")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DerbyError(f"{path}: not TOML ({_short(error)}); mend that line") from None
    return convert(path, data, kind)


class TextLine(NamedTuple):
    """Of a file. is_cut: no line break ends it."""

    number: int
    text: memoryview
    is_cut: bool


def lines_of(path: Path) -> Iterator[TextLine]:
    """Those that are not empty. Nothing is copied: traces may have hundreds of megabytes."""
    return lines_in(read_bytes(path))


def lines_in(text: bytes, first: int = 1) -> Iterator[TextLine]:
    """As lines_of(). first: number of the first one."""
    view, start = memoryview(text), 0
    while (end := text.find(b"\n", start)) >= 0:
        if end == start:  # millions of empty ones at once
            found = _NO_BREAK.search(text, start)
            after = found.start() if found else len(text)
            start, first = after, first + after - start
            continue
        yield TextLine(first, view[start:end], False)
        start, first = end + 1, first + 1
    if start < len(text):
        yield TextLine(first, view[start:], True)


def record_of(
    path: Path, line: TextLine, kind: type[T], left_out: Callable[[str], None] | None = None, *, brief: bool = False
) -> T | None:
    """None for a blank line, and for a broken one, which is told to left_out; without it the DerbyError is raised.
    brief: see decode_json."""
    where = f"{path}:{line.number}"
    text = bytes(line.text[:LONGEST_LINE])
    if not text.strip():
        return None
    try:
        if len(line.text) > LONGEST_LINE:
            raise DerbyError(f"{where}: has {len(line.text):,} bytes, more than any line can need; remove it")
        found = decode_json(where, text, kind, brief=brief)
        expect_keys_once(where, text)
        return found
    except DerbyError as problem:
        told = str(problem)
        if line.is_cut and not _is_json(text) and len(line.text) <= LONGEST_LINE:
            told = f"{where}: the last line was cut short; mend or remove it"
        if left_out is None:
            raise DerbyError(told) from None
        left_out(told)
        return None


def read_jsonl(path: Path, kind: type[T], left_out: Callable[[str], None] | None = None) -> Iterator[tuple[str, T]]:
    """("path:line", record) for each line that is not blank. A broken line is told to left_out and passed over; without
    it the DerbyError is raised."""
    decode, broken = msgspec.json.Decoder(kind).decode, 0
    for line in lines_of(path):
        record: T | None
        try:
            record = decode(line.text)
            expect_keys_once(f"{path}:{line.number}", bytes(line.text))
        except (ValueError, RecursionError, DerbyError):
            # Slower, with the field and the mend: of the first ones, since nobody reads those of all.
            record = record_of(path, line, kind, left_out, brief=broken >= EXPLAINED)
            broken += record is None and bool(bytes(line.text[:99]).strip())
        if record is not None:
            yield f"{path}:{line.number}", record


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_csv(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """("path:line", record) for each row; lines that begin with # are comments, the first other one names the fields.
    The type says which of them are numbers."""
    lines = read_text(path).removeprefix("\ufeff").split("\n")
    numbers = [number for number, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")]
    if not numbers:
        raise DerbyError(f"{path}: has no line that names the fields; restore or remove the file")
    reader = csv.DictReader((lines[number - 1] + "\n" for number in numbers), strict=True)
    try:
        names = [*(reader.fieldnames or ())]
        for name, count in Counter(names).items():
            if count > 1:
                raise DerbyError(f"{path}:{numbers[0]}: {name!r:.60}: names two fields; rename one of them")
        for row in reader:
            where = f"{path}:{numbers[min(reader.line_num, len(numbers)) - 1]}"
            if None in row:
                raise DerbyError(f"{where}: has more fields than the first line names; mend that line")
            given = {name: value for name, value in row.items() if value is not None}
            yield where, convert(where, given, kind, lax=True)
    except csv.Error as error:
        raise DerbyError(f"{path}: not CSV ({_short(error)}); mend that line") from None


def convert(where: Path | str, data: Any, kind: type[T], *, lax: bool = False) -> T:
    """Parsed data as a record. lax: texts that are numbers count as numbers."""
    try:
        return msgspec.convert(data, kind, strict=not lax)
    except msgspec.ValidationError as error:
        raise explained(where, error, data, kind, lax) from None
    except (OverflowError, SystemError):  # msgspec 0.21, of an integer that fits into no float
        raise DerbyError(f"{where}: holds an integer beyond measure; mend the file") from None
    except UnicodeEncodeError:  # half a surrogate pair: there is no such text
        return convert(where, _whole_texts(data), kind, lax=lax)
    except RecursionError:
        raise DerbyError(f"{where}: is nested too deep; mend the file") from None


def agree(path: Path | str, field: str, value: str, in_path: str) -> None:
    """The path is the key: what the file says must stand in it."""
    if value != in_path:
        raise DerbyError(f"{path}: {field}: is {value!r:.80} but the path says {in_path!r}; rename one of them")


def expect_inner_path(field: str, text: str) -> None:
    """ValueError, for a __post_init__, where a path could lead out of the folder that it belongs to."""
    problem = relative_problem(text)
    if problem:
        raise ValueError(f"{field}: {text!r:.80} {problem}; write a path inside the set")


def _loosely(where: Path | str, data: bytes) -> Any:
    """The JSON as plain Python, its texts whole. DerbyError with the line of a syntax error."""
    try:
        return _whole_texts(json.loads(data))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) and b"\n" in data.rstrip(b"\n") else ""
        raise DerbyError(f"{where}{line}: not JSON ({_short(error)}); mend that line") from None


def _short(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return " ".join(getattr(error, "msg", str(error)).split())[:120]


def _whole_texts(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, dict):
        return {_whole_texts(key): _whole_texts(value) for key, value in data.items()}
    return [_whole_texts(each) for each in data] if isinstance(data, (list, tuple)) else data


def json_bytes(data: Any) -> bytes:
    """Plain values and records as JSON. Half a surrogate pair, as in a file's name, becomes `?`: UTF-8 cannot hold
    it."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole_texts(msgspec.to_builtins(data)))
