"""derby mcp: the tools as a server for programs that write kernels."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, SECONDS, DerbyCommand, root_option
from kernelderby.cli.signals import end_at_once_on_signals


@click.command(cls=DerbyCommand)
@click.option(
    "--scratch",
    type=FILE,
    default=Path("derby-scratch"),
    show_default=True,
    help="The folder for candidates and rows, a copy of the set. Nothing outside of it is written.",
)
@click.option("--gpu-seconds", type=SECONDS, default=3600, help="For check, bench and gate together.")
@root_option
def command(scratch: Path, gpu_seconds: float, root: Path) -> None:
    """A server for programs that write kernels: Model Context Protocol on standard input and output.

    Tools: list, show, prompt, new, check, bench, explain, rank, gate. Needs pip install 'kernelderby[mcp]'.

    \b
    derby mcp --root /path/to/set --gpu-seconds 1800
    """
    from kernelderby.serving.session import Request, Session
    from kernelderby.serving.tools import server

    found = server(Session.begin(root, scratch, gpu_seconds))
    end_at_once_on_signals(Request.withdraw_all)  # a thread waits for the client's next line: nothing would unwind
    found.run()
