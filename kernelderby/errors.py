"""The one exception that people see."""


class DerbyError(Exception):
    """Bad input. The message is one line that names the file, the field and the mend; the command prints it, exit 1.
    Notes (add_note) are further lines, printed before it."""


class LeftOut(str):
    """A warning of something that is broken, and takes no part in the answer."""
