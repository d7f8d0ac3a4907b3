"""Reports and warnings, for the terminal, pipe or file that they go to."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click

WIDE = 240  # columns for a pipe that is grepped: a row that goes on further down is of no use to it


def rendered(reports: Sequence, style: str, pipe_width: int | None = None) -> str:
    """reports: report.model.Report. style: text, markdown or csv. pipe_width: columns of text that is not for a
    terminal (default: report.text.PIPE_WIDTH)."""
    from kernelderby.report import csv, markdown, text

    if style != "text":
        render = {"markdown": markdown, "csv": csv}[style].render
        return "\n".join(render(report) for report in reports)
    color = sys.stdout.isatty()
    width = shutil.get_terminal_size((text.PIPE_WIDTH, 40)).columns if color else pipe_width or text.PIPE_WIDTH
    return "\n".join(text.render(report, width=width, color=color) for report in reports)


def print_warnings(catalog) -> None:
    """What the catalog and the command left out, one line each, to stderr."""
    for warning in catalog.warnings:
        click.echo(f"derby: {warning}", err=True)
