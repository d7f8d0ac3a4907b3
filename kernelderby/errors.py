"""The one exception that people see."""


class DerbyError(Exception):
    """Bad input. The message is one line that names the file, the field and the mend; the command prints it, exit 1.
    Notes (add_note) are further lines, printed before it."""
