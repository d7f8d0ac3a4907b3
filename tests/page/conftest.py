"""Pages built once, and a browser to look at them: Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
from browsing import LIMIT_SECONDS, wait_for

from kernelderby.page.build import build_page, page_of
from kernelderby.page.html import page_html

LOCAL = ("file:", "data:", "blob:")


def made_once(name, make):
    """make()'s result, made by the first process of a test run that asks: each page takes some seconds."""
    this_run = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    kept = Path(os.environ["KERNELDERBY_TESTS_BUILT"]) / f"{name}-{this_run}.pickle"
    if not kept.exists():
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps(make()))
        unfinished.replace(kept)
    return pickle.loads(kept.read_bytes())


@pytest.fixture(scope="session")
def built(checkout):
    """The page of this checkout."""
    return made_once("page", lambda: build_page(checkout))


@pytest.fixture(scope="session")
def page_file(built, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_html(built))
    return path


@pytest.fixture(scope="session")
def full_page(checkout):
    from full_set import FullSet

    return made_once("full-page", lambda: page_of(FullSet(checkout)))


@pytest.fixture(scope="session")
def full_file(full_page, tmp_path_factory):
    path = tmp_path_factory.mktemp("full") / "report.html"
    path.write_text(page_html(full_page))
    return path


@pytest.fixture(scope="session")
def browser():
    """Skipped, with the reason, where playwright or a Chromium is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs a Chromium on the PATH: apt install chromium")
    with api.sync_playwright() as driver:
        # Chromium's own sandbox needs privileges that containers lack; the pages are ours.
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=1e3 * LIMIT_SECONDS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """visit(file, hash, width, dark) -> the page. At the end of the test: no error on any console, nothing fetched."""
    problems, contexts = [], []

    def open_page(file, place="", width=1280, dark=False):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1e3 * LIMIT_SECONDS)
        page.on("console", lambda each: problems.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda each: None if each.url.startswith(LOCAL) else problems.append(each.url))
        page.goto(f"{file.as_uri()}{place and '#' + place}")
        wait_for(page, "performance.getEntriesByName('first section').length")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
