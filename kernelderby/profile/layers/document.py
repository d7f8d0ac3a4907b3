"""Module tables as people write them: a Markdown table of layer group, module, kernel, and a column of times for each
run.

In a copy, cells may have shifted to the left because an empty cell was dropped. A number in the place of a name shows
this. The names of such a row are then recognised by their look, and its number belongs to the first column.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.kernels.attribution import UNKNOWN, attribute
from kernelderby.profile.sources.cells import TIME_NS, CellError, quantity, without_marks
from kernelderby.profile.sources.tables import RULE, bars
from kernelderby.store.counts import counted
from kernelderby.store.files import opened

_HEADINGS = {
    "group": ("层级", "group", "layer", "layer group", "level"),
    "module": ("模块", "module"),
    "kernel": ("kernel", "核函数", "kernel name"),
}
_SUM = re.compile(r"^(?:sum|total|合计|总计)$", re.IGNORECASE)
_LAYERS = re.compile(r"(\d+)\s*(?:层|layers?)", re.IGNORECASE)
_GPU = re.compile(r"(?<![a-z])([habl])[ -]?(\d{2,3})(?!\d)", re.IGNORECASE)
_LARGEST = 1 << 22


def module_table(path: Path) -> tuple[int, list[str]] | None:
    """The line number and lines of a table of modules in the file; None if there is none."""
    try:
        with opened(path) as file:
            data = file.read(_LARGEST + 1)
    except OSError:
        return None
    if b"\0" in data or len(data) > _LARGEST:
        return None
    lines = data.decode("utf-8-sig", errors="replace").splitlines()
    for number, line in enumerate(lines[:-1]):
        if "|" in line and RULE.fullmatch(lines[number + 1]) and _places(_bare_cells(line)) is not None:
            return number, lines
    return None


def read_document(path: Path) -> dict[str, Any]:
    """The contents that a module table's TOML would have: kind, source, unit, columns, printed, rows. DerbyError: a
    cell is not a time."""
    found = module_table(path)
    if found is None:
        raise DerbyError(f"{path}: no table with the columns module and kernel in it; give a page that has one")
    number, lines = found
    header = _bare_cells(lines[number])
    reader = _TableReader(path, header)
    for index in range(number + 2, len(lines)):
        if "|" not in lines[index]:
            break
        reader.take(index + 1, _bare_cells(lines[index]))
    return reader.data()


def _bare_cells(line: str) -> list[str]:
    return [without_marks(cell) for cell in bars(line)]


def _places(header: list[str]) -> dict[str, int] | None:
    """Columns of group, module and kernel; the other columns are times."""
    places = {}
    for meaning, titles in _HEADINGS.items():
        for place, title in enumerate(header):
            if title.lower() in titles:
                places[meaning] = place
    return places if {"module", "kernel"} <= places.keys() and len(header) > len(places) else None


class _TableReader:
    def __init__(self, path: Path, header: list[str]) -> None:
        places = _places(header)
        assert places is not None  # module_table() saw to it
        self.path, self.header, self.places = path, header, places
        self.times = [place for place in range(len(header)) if place not in places.values()]
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.printed: list[dict[str, Any]] = []
        self.moved = 0
        self.group = "model"

    def take(self, line: int, cells: list[str]) -> None:
        cells += [""] * (len(self.header) - len(cells))
        numbers = {place: self._number(line, cell) for place, cell in enumerate(cells) if _is_number(cell)}
        texts = [cell for cell in cells if cell and not _is_number(cell)]
        if set(numbers) <= set(self.times) and len(cells) == len(self.header):
            group, module, kernel = (cells[self.places[name]] if name in self.places else "" for name in _HEADINGS)
            values = {self._id(place): value for place, value in numbers.items()}
        else:
            self.moved += 1
            group, module, kernel = (*texts, "", "", "")[:3]
            values = {self._id(self.times[0]): value for value in list(numbers.values())[:1]}
        if module and not kernel and _is_kernel(module):
            module, kernel = "", module
        if not texts:
            return
        if len(texts) == 1:
            self._total(texts[0], values)
        elif _SUM.match(module):
            self._sum(_plain(group), values)
        else:
            row = {"module": module or kernel, "kernel": kernel} | values
            self.rows.setdefault(_plain(group) or self.group, []).append(row)

    def _id(self, place: int) -> str:
        return f"column{self.times.index(place) + 1}"

    def _number(self, line: int, cell: str) -> float:
        """The cell's number in us. Its own unit counts; without one it is us."""
        try:
            found = quantity(cell, None, TIME_NS, "us")
        except CellError as error:
            raise DerbyError(f"{self.path}:{line}: {error}") from None
        assert found is not None  # _is_number() saw a digit
        return found.value / 1e3

    def _total(self, text: str, values: dict[str, float]) -> None:
        layers = _LAYERS.search(text)
        for column, value in values.items():
            entry: dict[str, Any] = {"column": column, "what": text, "value": value}
            self.printed.append(entry | ({"layers": int(layers[1])} if layers else {}))

    def _sum(self, group: str, values: dict[str, float]) -> None:
        self.printed += [
            {"column": column, "group": group, "value": int(value) if value == int(value) else value}
            for column, value in values.items()
        ]

    def data(self) -> dict[str, Any]:
        layers = [entry["layers"] for entry in self.printed if "layers" in entry]
        notes = ["the document names no unit for its modules; their times are taken for us"]
        if self.moved:
            notes.append(
                f"{counted(self.moved, 'row has', 'rows have')} lost the alignment of their cells; their numbers are "
                "taken for the first column"
            )
        columns = [
            {"id": self._id(place), "title": self.header[place], "gpu": _gpu(self.header[place])}
            for place in self.times
        ]
        used = {key for entries in self.rows.values() for row in entries for key in row}
        return {
            "kind": "module table",
            "source": f"a table of modules in {self.path.name}",
            "unit": "us",
            "layers": layers[0] if layers else 1,
            "notes": notes,
            "columns": [column for column in columns if column["id"] in used],
            "printed": self.printed,
            "rows": self.rows,
        }


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[~≈]?\s*\d[\d.,]*\s*(?:ns|us|μs|µs|ms|s)?", cell) is not None


def _is_kernel(text: str) -> bool:
    return "::" in text or text.count("_") > 1 or attribute(text).library != UNKNOWN


def _plain(group: str) -> str:
    return group.removesuffix("层").strip()


def _gpu(title: str) -> str | None:
    match = _GPU.search(title)
    return f"NVIDIA {match[1].upper()}{match[2]}" if match else None
