#!/usr/bin/env python3
"""Makes the pictures in docs/images/: the README's from the traces, and two screenshots of `derby report`.

python scripts/screenshots.py            # all of them; the screenshots need playwright and a Chromium on the PATH
python scripts/screenshots.py --svg      # only the README's picture, which needs neither
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from kernelderby.page.build import build_page
from kernelderby.page.html import page_html
from kernelderby.page.picture import picture

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
RACE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
SHOTS = {"report_overview.png": "overview", "report_race.png": f"race/{RACE}"}
SIZE = {"width": 1280, "height": 800}


def main() -> None:
    page = build_page(ROOT)
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "race.svg").write_text(picture(page.model, RACE), encoding="utf-8")
    if "--svg" not in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.html"
            file.write_text(page_html(page), encoding="utf-8")
            shoot(file)


def shoot(file: Path) -> None:
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_path is None:
        sys.exit("screenshots: no Chromium on the PATH; apt install chromium, or give --svg")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, place in SHOTS.items():
            view = browser.new_page(viewport=SIZE)
            view.goto(f"{file.as_uri()}#{place}")
            view.wait_for_function("performance.getEntriesByName('first section').length")
            view.screenshot(path=IMAGES / name)
            print(f"{IMAGES / name}: {(IMAGES / name).stat().st_size / 1e3:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
