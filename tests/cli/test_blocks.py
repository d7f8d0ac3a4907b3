"""Generated blocks: those of this checkout are fresh; --write fills only the block whose marker is its command."""

import shlex
from glob import glob
from pathlib import Path

import pytest

from kernelderby.report.markers import blocks, read_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCKS = [(page, block.words) for page in PAGES for block in blocks(page, read_page(page))]
# Recordings of a GPU are not in git: what their blocks show cannot be made again here.
RECORDED = "reports/"


@pytest.mark.parametrize(("page", "words"), BLOCKS, ids=[f"{page.name}: {words}" for page, words in BLOCKS])
def test_a_block_is_what_its_command_prints(derby, monkeypatch, page, words):
    monkeypatch.chdir(ROOT)
    command = shlex.split(words)
    if any(word.startswith(RECORDED) for word in command):
        pytest.skip("made from recordings that are not in git")
    arguments = [path for word in command for path in (sorted(glob(word)) or [word])]
    code, out, err = derby(*arguments, "--format", "markdown")
    assert code == 0, err
    text = read_page(page)
    [block] = [each for each in blocks(page, text) if each.words == words]
    body = text[block.opening[1] : block.end].strip()
    assert body == out.strip(), f"stale: derby {words} --write {page.relative_to(ROOT)}"


def test_there_are_blocks_to_check():
    fresh = [words for _, words in BLOCKS if RECORDED not in words]
    assert len(fresh) >= 6 and {"rank", "roofline", "profile", "field"} == {words.split()[0] for words in fresh}


def page_with(tmp_path, *markers):
    page = tmp_path / "page.md"
    page.write_text("".join(f"before\n<!-- derby {marker} -->\nold\n<!-- /derby -->\n" for marker in markers))
    return page


def test_the_baseline_of_a_block_cannot_change_in_silence(derby, small_set, tmp_path):
    page = page_with(tmp_path, "rank --baseline toy_baseline")
    before = page.read_text()
    code, out, err = derby("rank", "--write", page, "--root", small_set)
    assert code == 1 and out == "" and err.count("\n") == 1 and page.read_text() == before
    assert "<!-- derby rank --baseline toy_baseline -->: is not this command, `derby rank`" in err
    assert derby("rank", "--baseline", "toy_baseline", "--write", page, "--root", small_set)[0] == 0
    assert "baseline toy\\_baseline" in page.read_text() or "baseline toy_baseline" in page.read_text()


def test_a_marker_with_the_verb_alone_gets_the_commands_words(derby, small_set, tmp_path):
    page = page_with(tmp_path, "rank")
    assert derby("rank", "--baseline=toy_baseline", "--json", "--write", page, "--root", small_set)[0] == 0
    assert page.read_text().startswith("before\n<!-- derby rank --baseline=toy_baseline -->\n**")
    assert "is not this command" in derby("rank", "--write", page, "--root", small_set)[2]
    assert derby("rank", "--baseline", "toy_baseline", "--write", page, "--root", small_set)[0] == 0


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("roofline --gpu h200", []),
        ("roofline", ["--gpu", "h200"]),
        ("roofline --gpu h20,h200", ["--gpu", "h20", "--gpu", "h200"]),
        ("roofline scale_rows_h4", ["scale_rows_h4", "--format", "csv"]),
    ],
)
def test_other_words_for_the_same_question_are_the_same_command(derby, small_set, tmp_path, marker, words):
    page = page_with(tmp_path, marker)
    code, _, err = derby("roofline", *words, "--write", page, "--root", small_set)
    assert code == 0, err
    assert page.read_text().startswith(f"before\n<!-- derby {marker} -->\n**")


def test_of_several_blocks_the_one_with_these_words_is_filled(derby, small_set, tmp_path):
    page = page_with(tmp_path, "roofline --gpu h20", "roofline --gpu h200", "rank")
    assert derby("roofline", "--gpu", "h200", "--write", page, "--root", small_set)[0] == 0
    parts = page.read_text().split("<!-- /derby -->")
    assert parts[0].endswith("\nold\n") and "NVIDIA H200" in parts[1] and parts[2].endswith("\nold\n")


def test_the_rest_of_a_page_stays_byte_by_byte(derby, small_set, tmp_path):
    page = tmp_path / "page.md"
    page.write_bytes(
        b"one\r\n`<!-- derby rank -->` in a line is no marker\r\n<!-- derby rank -->\r\n<!-- /derby -->\r\ntwo"
    )
    assert derby("rank", "--write", page, "--root", small_set)[0] == 0
    text = page.read_bytes()
    assert text.startswith(b"one\r\n`<!-- derby rank -->` in a line is no marker\r\n<!-- derby rank -->\r\n**")
    assert text.endswith(b"<!-- /derby -->\r\ntwo") and text.count(b"\n") == text.count(b"\r\n")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_page_that_cannot_be_read_is_one_line(derby, small_set, tmp_path, content):
    page = tmp_path / "page.md"
    if content:
        page.write_bytes(content)
    code, _, err = derby("rank", "--write", page, "--root", small_set)
    assert code == 1 and err.count("\n") == 1 and "cannot be read" in err
