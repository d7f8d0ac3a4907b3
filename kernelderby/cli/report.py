"""derby report: one HTML page of all that the set says, or its Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, root_option
from kernelderby.cli.output import say, warn
from kernelderby.errors import DerbyError

DEFAULT = Path("reports") / "report.html"


@click.command(cls=DerbyCommand)
@click.argument("target", metavar="[OUT.html]", type=FILE, required=False)
@click.option("--against", type=FILE, metavar="DIR", help="Another trace set, or its traces: what changed since.")
@click.option("--markdown", is_flag=True, help="Markdown for a pull request, to OUT or to stdout.")
@root_option
def command(target: Path | None, against: Path | None, markdown: bool, root: Path) -> None:
    """One HTML file of rankings, operators, rooflines, profiles and what to trust; it opens from disk, without network.

    Without OUT.html: reports/report.html of the set. Needs no GPU and no torch.
    """
    from kernelderby.files import write_whole
    from kernelderby.page.build import build_page
    from kernelderby.page.html import page_html
    from kernelderby.page.markdown import page_markdown

    if target is not None and not target.parent.is_dir():
        raise DerbyError(f"{target}: cannot be written (there is no such folder); name a place that exists")
    page = build_page(root, against)
    warn(page.model.trust.warnings)
    if markdown and target is None:
        say(page_markdown(page.model))
        return
    path = target or root / DEFAULT
    if target is None:
        path.parent.mkdir(exist_ok=True)
    write_whole(path, (page_markdown(page.model) if markdown else page_html(page)).encode())
    warn([f"{path}: written"])
