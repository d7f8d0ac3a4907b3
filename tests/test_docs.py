"""The pages: links and anchors lead somewhere, commands exist, docs/architecture.md is true of the tree."""

import functools
import re
from pathlib import Path

import click
import pytest

from kernelderby.cli import derby
from tests.test_layering import LAYERS, ROOMS_OF_MEASURE

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
# `derby VERB ...` within backticks, or a line of a fenced block up to its comment.
COMMAND = re.compile(r"`(derby [a-z][^`]*)`|^(?:[A-Z_]+=\S+ )*(derby [a-z].*?)(?:  #.*)?$", re.MULTILINE)


@functools.cache
def text(page):
    return page.read_text(encoding="utf-8")


@functools.cache
def anchors(page):
    """As GitHub makes them of headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text(page)), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text(page))):
        if link.startswith(("http", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def wrong_words(line):
    """The verb or the options of a command line that derby does not have."""
    command, rest = derby, line.replace("\\\n", " ").split()[1:]
    while isinstance(command, click.Group) and rest and re.fullmatch("[a-z-]+", rest[0]) and rest[0][0] != "-":
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            return [rest[0]]
        command, rest = found, rest[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    return [word for word in rest if re.match("--[a-z]", word) and re.match("--[a-z0-9-]+", word)[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_shown_exists_with_its_options(page):
    if page.name == "CHANGELOG.md":  # tells of commands as they were
        return
    lines = [block or fenced for block, fenced in COMMAND.findall(text(page).replace("\\\n", " "))]
    assert {line: wrong for line in lines if (wrong := wrong_words(line))} == {}


def test_a_command_that_does_not_exist_is_found():
    assert wrong_words("derby rank --summary sentence") == []
    assert wrong_words("derby ranks rms_norm") == ["ranks"]
    assert wrong_words("derby profile kernels FILE --gpus h200") == ["--gpus"]


def test_a_version_of_the_changelog_is_short_and_tells_nothing_twice():
    """A merge that keeps both sides brings back lines that were rewritten."""
    versions = text(ROOT / "CHANGELOG.md").split("\n## ")[1:]
    assert [version.split("\n")[0] for version in versions if version.count("\n") > 300] == []
    entries = [line for version in versions for line in version.splitlines() if line.startswith("- ")]
    assert len(entries) == len({*entries})


def test_every_table_ends_at_a_blank_line():
    """Otherwise the line below becomes its last row."""
    merged = re.compile(r"^\|.*\n(?![|\n]|<!--|$)(.+)$", re.MULTILINE)
    assert {page.name: found for page in PAGES if (found := merged.findall(text(page)))} == {}


def rooms_of(heading):
    """The names in the first column of the table below a line of the page."""
    table = ARCHITECTURE.partition(heading)[2].partition("| :-- |")[2].partition("\n\n")[0]
    return [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)/?`", row)]


@pytest.mark.parametrize(
    ("heading", "floors"),
    [("## Rooms, from the bottom up", LAYERS[:-1]), ("The rooms of `measure`", ROOMS_OF_MEASURE)],
)
def test_the_architecture_lists_the_rooms_in_their_order(heading, floors):
    height = {room: floor for floor, cell in enumerate(floors) for room in cell}
    rooms = rooms_of(heading)
    assert {*rooms} == {*height} and len(rooms) == len(height)
    assert [height[room] for room in rooms] == sorted(height.values())


def test_every_module_that_the_architecture_names_exists():
    modules = [path.as_posix() for room in ("kernelderby", "tests") for path in (ROOT / room).rglob("*.py")]
    named = {*re.findall(r"`([\w/]+\.py)`", ARCHITECTURE)} - {"main.py"}
    assert len(named) > 15
    assert [name for name in named if not any(module.endswith(f"/{name}") for module in modules)] == []
