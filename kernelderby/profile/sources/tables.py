"""Tables in a text with any separator: comma, semicolon, tab, Markdown's bars, or blanks under dashes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.cells import MEND, csv_cells, is_header
from kernelderby.store.counts import counted

# nsys's line before a table, which names the report.
_REPORT = re.compile(
    r"with \[(?:[^][]*[^][\w])?(?P<script>\w+)\.py[\]:]|Executing '(?P<executing>\w+)'"
    r"|^[^\w*]*\*\*.*\((?P<title>\w+)\):?\s*$|^[^\w#]*#.*\((?P<heading>\w+)\):?\s*$"
    r"|^[^\w*]*\*\*(?P<alone>\w+)\*\*\s*$"
)
_BETWEEN = re.compile(r"^\s*(Processing \[|Generating |Exporting |NOTICE|SKIPPED|WARNING|\*\*|\[\d+/\d+\]|#|Using )")
_DASHES = re.compile(r"\s*-{2,}(\s+-{2,}){2,}\s*")
RULE = re.compile(r"(?=[^-]*-)[\s:|-]+")


@dataclass(slots=True)
class Block:
    """One table. report: nsys's name for it, None if unknown. layout: "csv", "tsv", "markdown", "plain" or "json".
    semicolons: the separator where commas are decimal, so a dot may group thousands."""

    layout: str
    report: str | None
    line: int
    header: list[str]
    semicolons: bool = False
    rows: list[tuple[int, list[str]]] = field(default_factory=list)


def blocks(path: Path, text: str) -> tuple[list[Block], list[str]]:
    """All tables whose header names kernels or calls, and the names of nsys's reports without such a table. DerbyError
    for a row that does not fit its header."""
    lines = text.splitlines()
    found, others, report, index = [], [], None, 0
    while index < len(lines):
        line = lines[index]
        named = _REPORT.search(line)
        report = next(filter(None, named.groups()), None) if named else report
        block = _start(lines, index, report)
        if block is not None:
            index = _read(path, lines, index, block)
            found.append(block)
            report = None
            continue
        if named and report:
            others.append(report)
        if line.lstrip().startswith("SKIPPED"):  # no rows, because the profile has no such events
            others = [each for each in others if each != report]
            report = None
        index += 1
    return found, [each for each in dict.fromkeys(others) if each not in {block.report for block in found}]


def json_blocks(text: str) -> list[Block]:
    """The tables in the output of `nsys stats --format json`: a list of objects for each table, after the line that
    names its report."""
    found, report, end = [], None, 0
    for match in re.finditer(r"^.*$", text, re.MULTILINE):
        if match.start() < end:
            continue
        if match[0].lstrip().startswith("[") and not _REPORT.search(match[0]):
            try:
                rows, end = json.JSONDecoder().raw_decode(text, match.start() + len(match[0]) - len(match[0].lstrip()))
            except (ValueError, RecursionError):
                continue
            block = _of_objects(rows, report, text.count("\n", 0, match.start()) + 1)
            found += [block] if block else []
            report = None
        elif named := _REPORT.search(match[0]):
            report = next(filter(None, named.groups()), None)
    return found


def _of_objects(rows: object, report: str | None, line: int) -> Block | None:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    header = list(rows[0])
    if not is_header(header) or any(list(row) != header for row in rows):
        return None
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    return Block("json", report, line, header, False, list(enumerate(cells, line)))


def _start(lines: list[str], index: int, report: str | None) -> Block | None:
    line = lines[index]
    for layout, separator in (("tsv", "\t"), ("csv", ","), ("csv", ";")):
        if separator in line:
            header = csv_cells(line, separator)
            if is_header(header):
                return Block(layout, report, index + 1, header, separator == ";")
    following = lines[index + 1] if index + 1 < len(lines) else ""
    if "|" in line and "|" in following and RULE.fullmatch(following):
        header = bars(line)
        if is_header(header):
            return Block("markdown", report, index + 1, header)
    if _DASHES.fullmatch(following):
        cells = _under(line, following)
        if cells and is_header(cells):
            return Block("plain", report, index + 1, cells)
    return None


def _read(path: Path, lines: list[str], index: int, block: Block) -> int:
    """Fills the block's rows. Returns the index of the first line after it."""
    ruler = lines[index + 1] if block.layout in ("markdown", "plain") else ""
    index += 2 if ruler else 1
    while index < len(lines) and _goes_on(lines[index], block):
        cells = _row(lines[index], ruler, block)
        if cells is None or len(cells) != len(block.header):
            if block.layout == "tsv" and cells and len(cells) == 1:
                break  # text directly below a copied table
            raise DerbyError(f"{path}:{index + 1}: {_misfit(cells, block)}")
        block.rows.append((index + 1, cells))
        index += 1
    return index


def _goes_on(line: str, block: Block) -> bool:
    return "|" in line if block.layout == "markdown" else bool(line.strip() and not _BETWEEN.match(line))


def _row(line: str, ruler: str, block: Block) -> list[str] | None:
    """The cells of a row; None if a value crosses the columns of a plain table."""
    if block.layout == "markdown":
        return bars(line)
    if block.layout == "plain":
        return _under(line, ruler)
    separator = "\t" if block.layout == "tsv" else ";" if block.semicolons else ","
    return _named_last(line, separator, len(block.header)) or csv_cells(line, separator)


def _misfit(cells: list[str] | None, block: Block) -> str:
    if cells is None:
        return (
            f"a value runs over the columns that the dashes in line {block.line + 1} mark; print the table again, best "
            "with `--format csv`"
        )
    width = len(block.header)
    if block.layout == "markdown":
        told = counted(len(cells), "cell")
        return f"{told} where the header in line {block.line} has {width}; write a bar in a name as \\|"
    return (
        f"{counted(len(cells), 'field')}, but {width} in the header (line {block.line}): decimal commas, or names "
        f"without quotes; {MEND}"
    )


def _named_last(line: str, separator: str, width: int) -> list[str] | None:
    """The cells of an nsys CSV line whose last field is a quoted name, in which nsys does not double the quotes. None
    for any other line."""
    *cells, name = line.rstrip().split(separator, width - 1)
    if len(cells) != width - 1 or '"' in "".join(cells) or len(name) < 2 or not name.startswith('"') or name[-1] != '"':
        return None
    return [*cells, name[1:-1].replace('""', '"')]


def bars(line: str) -> list[str]:
    line = line.strip().removeprefix("|")
    line = line[:-1] if line.endswith("|") and not line.endswith("\\|") else line
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]


def _under(line: str, ruler: str) -> list[str] | None:
    """The cells of a line, by the runs of dashes in the ruler. Each column reaches from the end of the former one to
    its own end, the last one to the end of the line. None if this would cut a word in two."""
    ends = [match.end() for match in re.finditer("-+", ruler)]
    if any(line[end - 1 : end].strip() and line[end : end + 1].strip() for end in ends[:-1]):
        return None
    return [line[start:end].strip() for start, end in zip([0, *ends[:-1]], [*ends[:-1], None], strict=True)]
