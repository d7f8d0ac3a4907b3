"""derby verify: sealed sessions against the rows."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, json_option, root_option
from kernelderby.cli.output import say_json, say_line
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand)
@click.argument("traces", type=FILE, required=False)
@click.option("--key", type=FILE, metavar="FILE", help="The judge's public key (SSH, minisign): signatures must hold.")
@root_option
@json_option
def command(traces: Path | None, key: Path | None, root: Path, as_json: bool) -> None:
    """Prove that the rows of sealed sessions (`derby bench --sealed`) are as they were written. TRACES is a .seal file
    or a folder (default: the set's traces).

    For each session: the secret is the one committed to before the run; the chain of rows and notes is whole; the
    files hold every sealed row unchanged, and no other row of the session; each row's code and inputs are the
    session's. Exit code 1 if one of these fails.
    """
    from kernelderby.measure.run.verify import verify
    from kernelderby.report.frame import picked
    from kernelderby.report.verified import seal_problems

    found = verify(traces or root / "traces", key)
    if as_json:
        names = ("session", "commitment", "rows", "signed")
        say_json(
            [{"file": str(each.path)} | picked(each, *names) | {"problems": seal_problems(each)} for each in found]
        )
    else:
        for each in found:
            how = "signed, " if each.signed else ""
            say_line(
                f"{'FAIL' if each.problems else 'ok  '}  {each.session or each.path.name}: "
                f"{how}{counted(each.rows, 'row')}"
            )
            if each.commitment:
                say_line(f"    commitment {each.commitment}")
            for problem in seal_problems(each):
                say_line(f"    {problem}")
    if any(each.problems for each in found):
        sys.exit(1)
