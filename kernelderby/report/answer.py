"""An answer: the computed record, and all its forms for people and programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kernelderby.errors import DerbyError, LeftOut
from kernelderby.report.frame import Frame
from kernelderby.report.model import Report

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
PIPE_WIDTH = 80  # columns, without a terminal and without $COLUMNS
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Answer(Generic[Value]):
    """value: the computed record. warnings: one line for each part that was left out.

    make_reports and make_frames are called if a form needs them.
    """

    value: Value
    make_data: Callable[[], Any]
    make_reports: Callable[[], Sequence[Report]]
    make_frames: Callable[[], Sequence[Frame]]
    warnings: tuple[str, ...] = ()
    draw: Callable[[Path], None] | None = None

    def __repr__(self) -> str:
        kind = type(self.value).__name__
        return f"Answer({kind} of {len(self.value)})" if isinstance(self.value, list | tuple) else f"Answer({kind})"

    def plot(self, path: Path | str) -> Path:
        """Draws the answer into a .png, .svg or .pdf file. DerbyError for an answer without a picture."""
        if self.draw is None:
            raise DerbyError(
                "plot(): this answer has no picture; .rank() of one operator, .roofline() and profiles have"
            )
        self.draw(Path(path))
        return Path(path)

    @property
    def left_out(self) -> list[str]:
        """The warnings about broken parts."""
        return [each for each in self.warnings if isinstance(each, LeftOut)]

    @property
    def frames(self) -> dict[str, Frame]:
        """The tidy tables by name. to_pandas and to_csv take the first one by default."""
        return {each.name: each for each in self.make_frames()}

    def frame(self, table: str | None = None) -> Frame:
        frames = self.frames
        if table is not None and table not in frames:
            raise DerbyError(f"table: there is no {table!r}; there are {', '.join(frames)}")
        return frames[table] if table is not None else next(iter(frames.values()))

    def to_pandas(self, table: str | None = None) -> Any:
        """A pandas.DataFrame of one tidy table (default: the first of `frames`)."""
        return self.frame(table).to_pandas()

    def to_csv(self, path: Path | str | None = None, table: str | None = None) -> str:
        """One tidy table as CSV; with a path it is also written there."""
        return self.frame(table).to_csv(path)

    def to_json(self) -> str:
        """The whole answer. Numbers that are not finite become null, since JSON has none."""
        return to_json(self.make_data())

    def to_markdown(self) -> str:
        from kernelderby.report import markdown

        text = "\n".join(map(markdown.render, self.make_reports()))
        return markdown.with_left_out(text, self.left_out)

    def to_text(self, width: int = PIPE_WIDTH, color: bool = False) -> str:
        from kernelderby.report import text

        return "\n".join(text.render(report, width=width, color=color) for report in self.make_reports())

    def __str__(self) -> str:
        return self.to_text()

    def _repr_markdown_(self) -> str:
        """The form for notebooks."""
        return self.to_markdown()


def to_json(data: Any) -> str:
    """data: plain values, records, enums and paths. NaN and infinities become null. Letters outside ASCII are escaped,
    so any stdout can take them."""
    try:
        text = msgspec.json.format(msgspec.json.encode(data, enc_hook=_simpler), indent=2).decode()
    except UnicodeEncodeError:  # half a surrogate pair, as in a file's name: JSON can escape it, UTF-8 cannot hold it
        text = json.dumps(msgspec.to_builtins(data, enc_hook=_simpler))
        return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2)
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _simpler(value: Any) -> Any:
    """Converts types that msgspec does not know: numpy's numbers, other mappings, paths."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
