"""derby report: one HTML page of all that the set says, or its Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, root_option, strict_option
from kernelderby.cli.output import expect_whole, say, warn
from kernelderby.cli.progress import bar
from kernelderby.errors import DerbyError


@click.command(cls=DerbyCommand)
@click.argument("target", metavar="[OUT.html]", type=FILE, required=False)
@click.option("--against", type=FILE, metavar="DIR", help="Show changes since another trace set or a folder of traces.")
@click.option("--markdown", is_flag=True, help="Markdown for a pull request, to OUT or to stdout.")
@click.option(
    "--picture", type=FILE, metavar="FILE.svg", help="Only a picture for a README: a race, and S of all operators."
)
@click.option("--race", metavar="D", help="The operator of the picture's race (default: most solutions).")
@strict_option
@root_option
def command(
    target: Path | None,
    against: Path | None,
    markdown: bool,
    picture: Path | None,
    race: str | None,
    strict: bool,
    root: Path,
) -> None:
    """One HTML file of rankings, operators, rooflines, profiles and what to trust; it opens from disk, without network.

    Default: reports/report.html of the set; for the installed set, report.html here. Needs no GPU and no torch.
    """
    from kernelderby.page.build import build_page
    from kernelderby.page.html import holds, page_html
    from kernelderby.page.markdown import page_markdown
    from kernelderby.page.picture import picture as draw
    from kernelderby.report.page_guard import expect_no_less, expect_no_shorter
    from kernelderby.store.fields import read_text
    from kernelderby.store.files import write_whole

    if picture is not None and (target is not None or markdown):
        raise click.UsageError("--picture is written instead of the page: leave out OUT.html and --markdown")
    if race is not None and picture is None:
        raise click.UsageError("--race goes with --picture")
    if picture is not None and picture.suffix != ".svg":
        raise click.UsageError(f"--picture {picture}: is written as SVG; end the name in .svg")
    for path in (target, picture):
        if path is not None and path.is_dir():
            raise DerbyError(f"{path}: is a folder; name a file in it")
        if path is not None and not path.parent.is_dir():
            raise DerbyError(f"{path}: cannot be written (no such folder); name an existing folder")
    with bar("building the page", 0):  # ten seconds and more
        page = build_page(root, against)
    if strict:
        expect_whole(page.left_out)
    warn(page.model.trust.warnings)
    if markdown and target is None:
        say(page_markdown(page.model, page.left_out))
        return
    path = picture or target or _default(root)
    is_html = not (picture or markdown)
    text = (
        page_html(page) if is_html else draw(page.model, race) if picture else page_markdown(page.model, page.left_out)
    )
    if page.left_out and path.is_file():
        before = read_text(path)
        if is_html:
            expect_no_less(path, holds(before), holds(text), page.left_out)
        else:
            expect_no_shorter(path, before, text, page.left_out)
    write_whole(path, text)
    warn([f"{path}: written"])


def _default(root: Path) -> Path:
    """reports/report.html of the set; of the installed one, which is not ours to write into, in the cwd."""
    from kernelderby.store.locate import is_installed

    if is_installed(root):
        return Path("report.html")
    (root / "reports").mkdir(exist_ok=True)
    return root / "reports" / "report.html"
