"""The command `derby`, and `python -m kernelderby` where it is not on PATH."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports prints no traceback

from kernelderby.cli import main

if __name__ == "__main__":
    main()
