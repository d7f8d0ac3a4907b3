"""derby report: one HTML page of all that the set says, or its Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, root_option
from kernelderby.cli.output import warn
from kernelderby.errors import DerbyError

DEFAULT = Path("reports") / "report.html"


@click.command(cls=DerbyCommand)
@click.argument("target", metavar="[OUT.html]", type=FILE, required=False)
@click.option("--against", type=FILE, metavar="DIR", help="Another trace set, or its traces: what changed since.")
@root_option
def command(target: Path | None, against: Path | None, root: Path) -> None:
    """One HTML file of rankings, operators, rooflines, profiles and what to trust; it opens from disk, without network.

    Default: reports/report.html under the set.
    """
    from kernelderby.files import write_whole
    from kernelderby.page.build import build_page
    from kernelderby.page.html import page_html

    page = build_page(root, against)
    path = target or root / DEFAULT
    if target is None:
        path.parent.mkdir(exist_ok=True)
    elif not path.parent.is_dir():
        raise DerbyError(f"{path}: cannot be written (there is no such folder); name a place that exists")
    write_whole(path, page_html(page).encode())
    warn([*page.model.trust.warnings, f"{path}: written"])
