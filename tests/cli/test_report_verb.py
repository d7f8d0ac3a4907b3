"""derby report: where the page goes, what Markdown says, how it fails."""

import re


def test_the_page_goes_to_reports(derby, small_set):
    code, out, err = derby("report", "--root", small_set)
    assert (code, out) == (0, "") and err.endswith("reports/report.html: written\n")
    page = (small_set / "reports" / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r'\b(?:src|href)="(?!#)', page), "nothing is fetched"


def test_nothing_is_written_into_the_installed_set(derby, small_set, tmp_path, monkeypatch):
    monkeypatch.setattr("kernelderby.store.locate._INSTALLED", small_set.resolve())
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    code, _, err = derby("report", "--root", small_set)
    assert code == 0 and err == "derby: report.html: written\n"
    assert (working / "report.html").is_file() and not (small_set / "reports").exists()


def test_the_page_goes_where_it_is_asked(derby, small_set, tmp_path):
    code, _, err = derby("report", tmp_path / "page.html", "--root", small_set)
    assert code == 0 and err == f"derby: {tmp_path}/page.html: written\n"
    first = (tmp_path / "page.html").read_bytes()
    derby("report", tmp_path / "page.html", "--root", small_set)
    assert (tmp_path / "page.html").read_bytes() == first, "the same set gives the same page"


def test_markdown_is_the_same_on_the_screen_and_in_a_file(derby, small_set, tmp_path):
    code, out, _ = derby("report", "--markdown", "--root", small_set)
    assert code == 0 and out.startswith("**NVIDIA H200**") and "| scale_rows_h4 | **toy_fast** |" in out
    assert derby("report", tmp_path / "page.md", "--markdown", "--root", small_set)[0] == 0
    assert (tmp_path / "page.md").read_text().strip() == out.strip()


def test_markdown_against_itself_has_nothing_new(derby, small_set):
    code, out, _ = derby("report", "--markdown", "--against", small_set, "--root", small_set)
    assert code == 0 and "2 solutions have the same rows in both" in out and "| verdict |" not in out


def test_errors_are_one_line(derby, small_set, tmp_path):
    for words, says in (
        (["report", tmp_path / "no" / "page.html"], "no such folder"),
        (["report", "--against", tmp_path / "nowhere"], "--against"),
        (["report", ""], "is empty"),
    ):
        code, out, err = derby(*words, "--root", small_set)
        assert code == 1 and out == "" and err.count("\n") == 1 and says in err
    assert not (tmp_path / "no").exists()
